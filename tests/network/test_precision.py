"""Which number format a device gets."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from lsdflow_network.precision import choose_precision  # noqa: E402


@pytest.fixture
def gpu_before_ampere(monkeypatch) -> torch.device:
    """As torch describes one: bf16 by emulation only."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    return torch.device("cuda")


def test_a_gpu_that_only_emulates_bf16_gets_float32(gpu_before_ampere) -> None:
    assert choose_precision(gpu_before_ampere) == "float32"


def test_bf16_is_used_where_it_is_asked_for(gpu_before_ampere) -> None:
    assert choose_precision(gpu_before_ampere, "bf16") == "bf16"


def test_a_gpu_with_bf16_gets_it(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: True)
    assert choose_precision(torch.device("cuda")) == "bf16"
