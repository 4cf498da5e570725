"""A storage that fails for a moment fails no block; one that keeps failing, or is full, ends the stage as before."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from lsdflow_contract.errors import BadData, Interrupted, StorageFailure
from lsdflow_contract.files import write_atomically
from lsdflow_runtime import transient_errors
from lsdflow_runtime.transient_errors import DATABASE, STORAGE, Transient, is_of_storage, try_block

PAUSES_S = (1.0, 5.0, 20.0)


def test_pauses_grow_to_the_longest_and_end_with_the_attempts() -> None:
    assert tuple(STORAGE.pauses_s()) == PAUSES_S
    assert list(itertools.islice(DATABASE.pauses_s(), 8)) == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    assert tuple(Transient(attempts=3).pauses_s()) == (0.0, 0.0)
    assert tuple(Transient(attempts=1).pauses_s()) == ()


class Disk:
    """A block that fails with these errors in turn, and is then done."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.done = list(errors), []

    def do_block(self, number: int) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.done.append(number)


def failing(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The waiting times. Other threads of this process, as those of pymongo, continue to sleep."""
    waited: list[float] = []
    monkeypatch.setattr(transient_errors, "time", SimpleNamespace(sleep=waited.append))
    return waited


@pytest.mark.proves("NEW-05")
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_block_whose_storage_failed_for_a_moment_is_done_again(pauses: list[float], number: int) -> None:
    disk = Disk(failing(number), failing(number))
    try_block(disk.do_block, 7)
    assert disk.done == [7]
    assert pauses == list(PAUSES_S[:2])


def test_our_own_error_over_it_counts_as_well(pauses: list[float], tmp_path: Path) -> None:
    def write(_: object) -> None:
        raise failing(errno.EIO)

    with pytest.raises(StorageFailure) as caught:
        write_atomically(tmp_path / "a", write)
    disk = Disk(caught.value)
    try_block(disk.do_block, 1)
    assert (disk.done, len(pauses)) == ([1], 1)


def test_a_storage_that_keeps_failing_is_an_error(pauses: list[float]) -> None:
    disk = Disk(*(failing(errno.EIO) for _ in range(len(PAUSES_S) + 1)))
    with pytest.raises(OSError, match="Input/output error"):
        try_block(disk.do_block, 1)
    assert pauses == list(PAUSES_S)


@pytest.mark.parametrize(
    "error", [failing(errno.ENOSPC), failing(errno.EACCES), BadData("damaged"), ValueError("a fault of the block")]
)
def test_what_no_retry_can_solve_is_an_error_at_once(pauses: list[float], error: Exception) -> None:
    assert not is_of_storage(error)
    with pytest.raises(type(error)):
        try_block(Disk(error).do_block, 1)
    assert pauses == []


def test_a_stop_is_heard_before_the_block_is_done_again(monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> None:
    def asked() -> None:
        if pauses:
            raise Interrupted("asked to stop")

    monkeypatch.setattr(transient_errors, "end_if_asked", asked)
    disk = Disk(failing(errno.EIO))
    with pytest.raises(Interrupted):
        try_block(disk.do_block, 1)
    assert disk.done == []
