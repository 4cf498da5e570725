"""Packs of done marks: the records of up to 4096 blocks with consecutive numbers in one Parquet file.

    packed/<range>.parquet     block, record (JSON); range = block number // 4096

A finished block first has a single mark (done_marks). Only the coordinator moves such marks to packs:
    1. the pack of the range is written by rename, including the content of the older pack
    2. the single marks that it contains now are removed
After a kill between the two, a mark is in both places and counts once. A reader that reads single marks first and then
packs finds all of them. Two coordinators at once (if one seemed lost) can lose marks of a range; these blocks are
recomputed.

The metadata hold two hashes, of the numbers and of all rows, because a Parquet footer has no checksum.
"""

from __future__ import annotations

import errno
import functools
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lsdflow_contract.errors import BadData
from lsdflow_contract.files import fsync_folder, storage_errors, write_atomically
from lsdflow_contract.hashing import hash_of, hash_of_array

PACK_BLOCKS = 4096
NUMBERS_HASH, ROWS_HASH = b"lsdflow.numbers", b"lsdflow.rows"
# Packs whose records stay in memory (about 2 MB each); records are mostly read in the order of blocks.
KEPT_RECORDS = 4
# Packs whose numbers stay in memory, enough for 10^8 blocks; of a full pack only the bounds are kept.
KEPT_NUMBERS = 1 << 15
# On NFS a file that was replaced during reading is stale; then the new file is read.
STALE_TRIES = 3

Record = dict[str, Any]
Signature = tuple[int, int, int]
Found = TypeVar("Found")


@dataclass(frozen=True)
class MarkPacks:
    """The packs of one pass."""

    folder: Path

    def numbers(self) -> dict[int, Collection[int]]:
        """Block numbers by range. BadData if a pack is damaged."""
        return {range_: self.numbers_of(range_) for range_ in self._ranges()}

    def numbers_of(self, range_: int) -> Collection[int]:
        """Block numbers in the pack of a range; none if there is no pack."""
        return self._look(range_, _numbers, ())

    def has(self, number: int) -> bool:
        """True if the mark of a block is in a pack."""
        return number in self.numbers_of(number // PACK_BLOCKS)

    def record(self, number: int) -> Record | None:
        """The record of a block; None if it is in no pack."""
        text = self._texts_of(number // PACK_BLOCKS).get(number)
        return None if text is None else dict(json.loads(text))

    def records(self) -> dict[int, Record]:
        """All records, in ascending block number."""
        texts = (self._texts_of(range_) for range_ in self._ranges())
        return {number: json.loads(text) for pack in texts for number, text in pack.items()}

    def add(self, range_: int, records: Mapping[int, Record]) -> None:
        """Add records of blocks to the pack of their range; they replace existing records of the same blocks."""
        texts = {number: json.dumps(record, separators=(",", ":")) for number, record in records.items()}
        self._replace(range_, {**self._texts_of(range_), **texts})

    def remove(self, numbers: Iterable[int]) -> None:
        """Remove the marks of blocks; an unreadable pack is removed as a whole."""
        for range_, out in in_ranges(numbers).items():
            try:
                texts = self._texts_of(range_)
            except BadData:
                texts = dict.fromkeys(out, "")
            left = {number: text for number, text in texts.items() if number not in out}
            if len(left) < len(texts):
                self._replace(range_, left)

    def remove_damaged(self) -> list[int]:
        """Remove unreadable packs; returns their ranges."""
        damaged = []
        for range_ in self._ranges():
            try:
                self._texts_of(range_)
            except BadData:
                self._replace(range_, {})
                damaged.append(range_)
        return damaged

    def _ranges(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        with os.scandir(self.folder) as entries:
            names = [entry.name.removesuffix(".parquet") for entry in entries if entry.name.endswith(".parquet")]
        return sorted(int(name) for name in names if name.isdigit())

    def _texts_of(self, range_: int) -> Mapping[int, str]:
        nothing: Mapping[int, str] = {}
        return self._look(range_, _texts, nothing)

    def _path(self, range_: int) -> Path:
        return Path(f"{self.folder}/{range_}.parquet")

    def _replace(self, range_: int, texts: Mapping[int, str]) -> None:
        path = self._path(range_)
        if not texts:
            with storage_errors(path):
                path.unlink(missing_ok=True)
                fsync_folder(self.folder)
            return
        if not self.folder.is_dir():
            with storage_errors(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                fsync_folder(self.folder.parent)

        def write(file: BinaryIO) -> None:
            """Write the marks as a Parquet table to `file`."""
            pq.write_table(_table(texts), file, compression="zstd", use_dictionary=False, write_page_checksum=True)

        write_atomically(path, write)

    def _look(self, range_: int, read: Callable[..., Found], missing: Found) -> Found:
        """The result of `read` for the pack of a range; from memory if the file has not changed since it was read.

        The file is opened for this check, because NFS then contacts the server, whereas a stat may return an old state.
        """
        path = self._path(range_)
        if not path.exists():
            return missing
        for tries_left in reversed(range(STALE_TRIES)):
            try:
                with path.open("rb") as file:
                    seen = os.fstat(file.fileno())
                return read(path, (seen.st_mtime_ns, seen.st_ino, seen.st_size))
            except FileNotFoundError:
                return missing
            except (pa.ArrowException, OSError, KeyError, ValueError) as error:
                if getattr(error, "errno", None) != errno.ESTALE or not tries_left:
                    raise damaged_pack(path, error) from error
        return missing


def in_ranges(numbers: Iterable[int]) -> dict[int, set[int]]:
    """Block numbers by the range they are packed in."""
    found: dict[int, set[int]] = {}
    for number in numbers:
        found.setdefault(number // PACK_BLOCKS, set()).add(number)
    return dict(sorted(found.items()))


def damaged_pack(path: Path, found: object) -> BadData:
    """The error for an unreadable pack, whose marks are stored nowhere else."""
    fix = "lsdflow repair EXPERIMENT recomputes the blocks whose marks are lost, with the same bits"
    first = int(path.stem) * PACK_BLOCKS
    wanted = f"marks of blocks {first} to {first + PACK_BLOCKS - 1}"
    return BadData("damaged pack of done marks", where=path, wanted=wanted, found=found, fix=fix)


def _table(texts: Mapping[int, str]) -> pa.Table:
    numbers = sorted(texts)
    rows = [texts[number] for number in numbers]
    table = pa.table({"block": pa.array(numbers, pa.int64()), "record": pa.array(rows, pa.string())})
    hashes = {NUMBERS_HASH: hash_of_array(np.array(numbers, np.int64)), ROWS_HASH: hash_of([numbers, rows])}
    return table.replace_schema_metadata(hashes)


@functools.lru_cache(KEPT_NUMBERS)
def _numbers(path: Path, _signature: Signature) -> Collection[int]:
    table = _read(path, ["block"])
    numbers = table["block"].to_numpy()
    _require_hash(path, table, NUMBERS_HASH, hash_of_array(numbers))
    if len(numbers) == PACK_BLOCKS:
        return range(int(numbers[0]), int(numbers[-1]) + 1)
    return frozenset(numbers.tolist())


@functools.lru_cache(KEPT_RECORDS)
def _texts(path: Path, _signature: Signature) -> Mapping[int, str]:
    table = _read(path, ["block", "record"])
    numbers, texts = table["block"].to_pylist(), table["record"].to_pylist()
    _require_hash(path, table, ROWS_HASH, hash_of([numbers, texts]))
    return dict(zip(numbers, texts, strict=True))


def _read(path: Path, columns: list[str]) -> pa.Table:
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        return file.read(columns, use_threads=False)


def _require_hash(path: Path, table: pa.Table, name: bytes, found: str) -> None:
    wanted = (table.schema.metadata or {}).get(name, b"").decode()
    if found != wanted:
        raise damaged_pack(path, f"rows with the hash {found[:12]}, written with {wanted[:12]}")
