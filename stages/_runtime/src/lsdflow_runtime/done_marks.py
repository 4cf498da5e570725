"""Done marks. One protocol, engines behind it; here: `files`, one JSON per block in a folder named by the work's key.

store/blocks/<stage>/<key>/done/<block number>.json     checksums, counts, seconds, peak memory
store/blocks/<stage>/<key>/failed/<block number>.json   the last error of a block that is not done
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lsdflow_contract.files import read_json, storage_errors, write_json


class BlockStore(Protocol):
    """What is known of the blocks of one piece of work. A block is done only by its mark."""

    @property
    def where(self) -> str:
        """Where the marks are, for messages."""

    def done(self) -> set[int]:
        """Numbers of the finished blocks."""

    def count_done(self) -> int:
        """How many blocks are finished."""

    def is_done(self, number: int) -> bool:
        """True if the block is finished."""

    def failed(self) -> set[int]:
        """Numbers of blocks that failed and are not done."""

    def forget(self) -> None:
        """Remove all marks: what they stand for is no longer there."""

    def take_back(self, number: int) -> None:
        """Remove the mark of a block: what it stands for is broken."""

    def mark_done(self, number: int, record: dict[str, Any]) -> None:
        """Record a finished block; the last step of its commit."""

    def mark_failed(self, number: int, record: dict[str, Any]) -> None:
        """Record why a block failed."""

    def record(self, number: int) -> dict[str, Any]:
        """What was recorded when the block was done. MissingInput if it is not."""

    def records(self) -> dict[int, dict[str, Any]]:
        """What was recorded of every finished block, in one reading."""

    def failure(self, number: int) -> dict[str, Any]:
        """Why the block failed. MissingInput if it did not."""


@dataclass(frozen=True)
class DoneMarks:
    """The marks of one piece of work, as files."""

    folder: Path

    @classmethod
    def of(cls, store: Path, stage: str, key: str) -> DoneMarks:
        """Marks of `stage` for the work named by `key`."""
        return cls(store / "blocks" / stage / key)

    @property
    def where(self) -> str:
        """Where the marks are, for messages."""
        return str(self.folder)

    def done(self) -> set[int]:
        """Numbers of the finished blocks."""
        return _numbers(self.folder / "done")

    def count_done(self) -> int:
        """How many blocks are finished."""
        return len(self.done())

    def is_done(self, number: int) -> bool:
        """True if the block is finished."""
        return (self.folder / "done" / f"{number}.json").exists()

    def forget(self) -> None:
        """Remove all marks: what they stand for is no longer there."""
        with storage_errors(self.folder):
            if self.folder.exists():
                shutil.rmtree(self.folder)

    def take_back(self, number: int) -> None:
        """Remove the mark of a block: what it stands for is broken."""
        with storage_errors(self.folder):
            (self.folder / "done" / f"{number}.json").unlink(missing_ok=True)

    def failed(self) -> set[int]:
        """Numbers of blocks that failed and are not done."""
        return _numbers(self.folder / "failed") - self.done()

    def mark_done(self, number: int, record: dict[str, Any]) -> None:
        """Record a finished block; the last step of its commit."""
        write_json(self.folder / "done" / f"{number}.json", record)
        (self.folder / "failed" / f"{number}.json").unlink(missing_ok=True)

    def mark_failed(self, number: int, record: dict[str, Any]) -> None:
        """Record why a block failed."""
        write_json(self.folder / "failed" / f"{number}.json", record)

    def record(self, number: int) -> dict[str, Any]:
        """What was recorded when the block was done."""
        return dict(read_json(self.folder / "done" / f"{number}.json"))

    def records(self) -> dict[int, dict[str, Any]]:
        """What was recorded of every finished block."""
        return {number: self.record(number) for number in sorted(self.done())}

    def failure(self, number: int) -> dict[str, Any]:
        """Why the block failed."""
        return dict(read_json(self.folder / "failed" / f"{number}.json"))


def _numbers(folder: Path) -> set[int]:
    if not folder.is_dir():
        return set()
    with os.scandir(folder) as entries:
        return {int(e.name[:-5]) for e in entries if e.name.endswith(".json") and not e.name.startswith(".")}
