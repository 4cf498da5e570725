"""Done marks: the protocol of both engines, and the engine `files` with one JSON per block in a folder per pass key.

store/blocks/<stage>/<key>/done/<block number>.json     checksums, counts, seconds, peak memory
store/blocks/<stage>/<key>/packed/<range>.parquet       packed done marks of many blocks
store/blocks/<stage>/<key>/failed/<block number>.json   the last error of a block that is not done

The worker that commits a block writes its mark; the coordinator packs marks (packed_marks). A mark in both places
counts once, and the single one is used because it is newer. Readers read single marks first.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.files import read_json, storage_errors, write_atomically, write_json
from lsdflow_contract.sealing import read_sealed, sealed
from lsdflow_runtime.store.packed_marks import PACK_BLOCKS, MarkPacks, in_ranges

# Ranges that are packed at a time during a run, so that 1e6 single marks of an old folder do not stall it.
PACKS_AT_A_TIME = 8


class BlockStore(Protocol):
    """The marks of the blocks of one pass. A block is done only if it has a mark."""

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

    def count_failed(self) -> int:
        """How many blocks have failed and are not done, for progress; fast, and correct to a block or two."""

    def remove_all(self) -> None:
        """Remove all marks, because the data of these blocks is no longer there."""

    def remove(self, *numbers: int) -> None:
        """Remove marks of blocks whose data is damaged. Only for the holder of the stage lock."""

    def remove_damaged(self, blocks: int) -> set[int]:
        """Remove unreadable marks; returns the numbers of the blocks (of `blocks` in total) without a mark as a result.

        Only for the holder of the stage lock.
        """

    def pack(self, blocks: int, *, all_of_them: bool = False) -> None:
        """Pack marks into fewer files: those of complete ranges, or all of them. `blocks`: total number of blocks.

        Only for the coordinator.
        """

    def mark_done(self, number: int, record: dict[str, Any]) -> None:
        """Record a finished block; the last step of its commit."""

    def mark_failed(self, number: int, record: dict[str, Any]) -> None:
        """Record why a block failed."""

    def record(self, number: int) -> dict[str, Any]:
        """The record of a finished block. MissingInput if it is not done."""

    def records(self) -> dict[int, dict[str, Any]]:
        """The records of all finished blocks, read at once."""

    def failure(self, number: int) -> dict[str, Any]:
        """The record of a failed block, with its error. MissingInput if it has not failed."""


@dataclass(frozen=True)
class DoneMarks:
    """The marks of one pass, as files."""

    folder: Path

    @classmethod
    def of(cls, store: Path, stage: str, key: str) -> DoneMarks:
        """Marks of the pass of `stage` with `key`."""
        return cls(store / "blocks" / stage / key)

    @property
    def where(self) -> str:
        """Where the marks are, for messages."""
        return str(self.folder)

    def done(self) -> set[int]:
        """Numbers of the finished blocks."""
        return _numbers(self.folder / "done").union(*self._packs.numbers().values())

    def count_done(self) -> int:
        """How many blocks are finished."""
        single, packs = _numbers(self.folder / "done"), self._packs.numbers()
        new = sum(number not in packs.get(number // PACK_BLOCKS, ()) for number in single)
        return new + sum(map(len, packs.values()))

    def is_done(self, number: int) -> bool:
        """True if the block is finished."""
        return self._mark(number).exists() or self._packs.has(number)

    def remove_all(self) -> None:
        """Remove all marks, because the data of these blocks is no longer there."""
        with storage_errors(self.folder):
            if self.folder.exists():
                shutil.rmtree(self.folder)

    def remove(self, *numbers: int) -> None:
        """Remove marks of blocks whose data is damaged. Only for the holder of the stage lock."""
        self._packs.remove(numbers)
        self._remove(numbers)

    def remove_damaged(self, blocks: int) -> set[int]:
        """Remove unreadable packs; returns the blocks (of `blocks` in total) whose only marks may have been in them."""
        ranges = self._packs.remove_damaged()
        lost = {n for r in ranges for n in range(r * PACK_BLOCKS, min((r + 1) * PACK_BLOCKS, blocks))}
        return lost - _numbers(self.folder / "done")

    def pack(self, blocks: int, *, all_of_them: bool = False) -> None:
        """Move single marks to packs: some complete ranges, or all marks."""
        packed = 0
        for range_, numbers in in_ranges(_numbers(self.folder / "done")).items():
            if not all_of_them and packed >= PACKS_AT_A_TIME:
                return
            if all_of_them or self._is_whole(range_, numbers, blocks):
                self._pack(range_, sorted(numbers))
                packed += 1

    def failed(self) -> set[int]:
        """Numbers of blocks that failed and are not done."""
        return _numbers(self.folder / "failed") - self.done()

    def count_failed(self) -> int:
        """How many blocks have failed and are not done; an obsolete mark of a failure also counts."""
        return len(_numbers(self.folder / "failed"))

    def mark_done(self, number: int, record: dict[str, Any]) -> None:
        """Record a finished block; the last step of its commit."""
        content = json.dumps(sealed(record), allow_nan=False).encode()
        write_atomically(self._mark(number), lambda file: file.write(content))
        (self.folder / "failed" / f"{number}.json").unlink(missing_ok=True)

    def mark_failed(self, number: int, record: dict[str, Any]) -> None:
        """Record why a block failed."""
        write_json(self.folder / "failed" / f"{number}.json", record)

    def record(self, number: int) -> dict[str, Any]:
        """The record of a finished block."""
        try:
            return self._single_record(number)
        except MissingInput:
            packed = self._packs.record(number)
            if packed is None:
                raise
            return packed

    def records(self) -> dict[int, dict[str, Any]]:
        """The records of all finished blocks."""
        single = self._single_records(_numbers(self.folder / "done"))
        return dict(sorted({**self._packs.records(), **single}.items()))

    def failure(self, number: int) -> dict[str, Any]:
        """Why the block failed."""
        return dict(read_json(self.folder / "failed" / f"{number}.json"))

    @property
    def _packs(self) -> MarkPacks:
        return MarkPacks(self.folder / "packed")

    def _mark(self, number: int) -> Path:
        return Path(f"{self.folder}/done/{number}.json")

    def _single_records(self, numbers: Collection[int]) -> dict[int, dict[str, Any]]:
        """Records of single marks, without marks that were packed since they were listed."""
        found = {}
        for number in sorted(numbers):
            with contextlib.suppress(MissingInput):
                found[number] = self._single_record(number)
        return found

    def _single_record(self, number: int) -> dict[str, Any]:
        return read_sealed(self._mark(number), "recompute the block: lsdflow repair EXPERIMENT")

    def _is_whole(self, range_: int, numbers: Collection[int], blocks: int) -> bool:
        packed = self._packs.numbers_of(range_)
        wanted = min(PACK_BLOCKS, blocks - range_ * PACK_BLOCKS)
        return len(packed) + sum(number not in packed for number in numbers) >= wanted

    def _pack(self, range_: int, numbers: Collection[int]) -> None:
        """Pack marks of a range. An unreadable mark stays single: reading its record is an error; repair removes it."""
        records: dict[int, dict[str, Any]] = {}
        for number in numbers:
            with contextlib.suppress(BadData, TypeError, ValueError):
                records |= self._single_records([number])
        if records:
            self._packs.add(range_, records)
            self._remove(records)

    def _remove(self, numbers: Iterable[int]) -> None:
        with storage_errors(self.folder):
            for number in numbers:
                self._mark(number).unlink(missing_ok=True)


def _numbers(folder: Path) -> set[int]:
    if not folder.is_dir():
        return set()
    with os.scandir(folder) as entries:
        return {int(e.name[:-5]) for e in entries if e.name.endswith(".json") and not e.name.startswith(".")}
