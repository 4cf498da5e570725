"""An error for lack of memory says who holds the memory, and what helps against that."""

from __future__ import annotations

import pytest
import torch

from lsdflow_network.out_of_memory import does_not_fit

GIB = 2**30
# The first line of torch's message on a GPU.
TEXT = "CUDA out of memory. Tried to allocate 2 GiB. GPU 1 has a total capacity of 80.00 GiB of which 1 GiB is free."
SMALLER = "make predict.tile_shape smaller"


def error_if(monkeypatch: pytest.MonkeyPatch, own: int, free: int) -> str:
    """The message if, of the 80 GiB of the second of two GPUs, this process holds `own` GiB and `free` are free."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda number: own * GIB if number else 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (free * GIB, 80 * GIB))
    return does_not_fit("it does not fit in memory", torch.OutOfMemoryError(TEXT), "tile 0", SMALLER).message()


@pytest.mark.proves("TRB-01")
def test_what_this_process_holds_is_reported_with_the_option_that_takes_less(monkeypatch) -> None:
    message = error_if(monkeypatch, own=76, free=1)
    assert "cuda:1: 80.0 GiB in all, 76.0 GiB held by this process, 3.0 GiB by others, 1.0 GiB free" in message
    assert "cuda:0" not in message
    assert SMALLER in message


@pytest.mark.parametrize("own", [0, 5])
def test_what_other_processes_hold_is_not_blamed_on_the_tile(monkeypatch, own: int) -> None:
    message = error_if(monkeypatch, own=own, free=1)
    assert f"{own}.0 GiB held by this process, {79 - own}.0 GiB by others" in message
    assert "it does not fit in memory: other processes hold most of the GPU's" in message
    assert "tile_shape" not in message
    assert "nvidia-smi lists them" in message


def test_a_gpu_without_room_for_a_context_is_no_other_error(monkeypatch) -> None:
    error_if(monkeypatch, own=0, free=0)

    def no_room(number: int) -> tuple[int, int]:
        raise torch.OutOfMemoryError(TEXT)

    monkeypatch.setattr(torch.cuda, "mem_get_info", no_room)
    assert SMALLER in does_not_fit("it does not fit", torch.OutOfMemoryError(TEXT), "tile 0", SMALLER).message()
