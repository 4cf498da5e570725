"""Which number format a device gets."""

from __future__ import annotations

import os
import subprocess
import sys

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


ON_A_CPU_WITHOUT_BF16 = """
import logging
import torch
from lsdflow_contract.errors import ConfigError
from lsdflow_network.precision import choose_precision

logging.basicConfig(level="INFO")
cpu = torch.device("cpu")
print(choose_precision(cpu), choose_precision(cpu))
try:
    choose_precision(cpu, "bf16")
except ConfigError as error:
    print(error.what)
"""


def test_a_cpu_with_avx2_only_computes_in_float32_and_refuses_bf16() -> None:
    command = [sys.executable, "-c", ON_A_CPU_WITHOUT_BF16]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["float32 float32", "this CPU cannot compute in bf16"]
    assert done.stderr.count("float32") == 1
