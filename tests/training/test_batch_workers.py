"""Processes that make batches ahead of time: in order, slow ones too, and gone with their training."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("gunpowder")

from lsdflow_contract.errors import BadData, InternalError
from lsdflow_training.data.batches import BatchWorker


def wait_until(holds: Callable[[], bool], seconds: float = 120.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.02)
    return holds()


def is_gone(process: int) -> bool:
    """Ended; a zombie whose new parent has not waited for it yet has ended too."""
    stat = Path(f"/proc/{process}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_worker_makes_every_nth_number() -> None:
    worker = BatchWorker(lambda number: {"number": number}, first=4, step=3, ahead=2)
    try:
        assert [worker.next()["number"] for _ in range(4)] == [4, 7, 10, 13]
    finally:
        worker.stop()


def test_the_error_of_a_worker_reaches_the_training() -> None:
    def fail(number: int) -> dict[str, int]:
        raise BadData("no patch", where=f"batch {number}")

    worker = BatchWorker(fail, first=1, step=1, ahead=2)
    try:
        with pytest.raises(BadData, match="no patch") as caught:
            worker.next()
        assert caught.value.where == "batch 1"
    finally:
        worker.stop()


@pytest.mark.parametrize("size", [0, 1 << 24])
def test_a_worker_that_dies_is_an_error_not_a_wait(size: int) -> None:
    """Also when it dies while it hands over a batch larger than a pipe holds."""

    def die(number: int) -> bytes:
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return bytes(size)

    worker = BatchWorker(die, first=1, step=1, ahead=4)
    try:
        with pytest.raises(InternalError, match="died"):
            list(map(BatchWorker.next, [worker, worker]))
    finally:
        worker.stop()


@pytest.mark.parametrize("size", [0, 1 << 24])
def test_workers_end_when_the_training_is_killed_with_full_queues(tmp_path: Path, size: int) -> None:
    notes = tmp_path / "workers"
    training = os.fork()
    if training == 0:
        workers = [BatchWorker(lambda number: bytes(size), first=w, step=2, ahead=1) for w in range(2)]
        notes.with_suffix(".new").write_text(" ".join(str(w._process.pid) for w in workers))
        notes.with_suffix(".new").rename(notes)
        signal.pause()
    try:
        assert wait_until(notes.exists)
        processes = [int(p) for p in notes.read_text().split()]
        assert not any(is_gone(p) for p in processes)
    finally:
        os.kill(training, signal.SIGKILL)
        os.waitpid(training, 0)
    assert wait_until(lambda: all(is_gone(p) for p in processes))


@pytest.mark.proves("DDP-27")
def test_a_worker_sees_no_gpu_and_cannot_reach_the_one_of_the_training() -> None:
    """Forked, it shares no context with the driver: torch finds no device, or refuses if the training uses one."""
    import torch

    def observe(_: int) -> dict[str, object]:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        try:
            torch.zeros(1, device="cuda")
        except (RuntimeError, AssertionError):
            return {"visible": seen, "refused": True}
        return {"visible": seen, "refused": False}

    worker = BatchWorker(observe, first=1, step=1, ahead=1)
    try:
        assert worker.next() == {"visible": "", "refused": True}
    finally:
        worker.stop()
    assert os.environ.get("CUDA_VISIBLE_DEVICES") != "" or torch.cuda.device_count() == 0
