"""The largest segments of a layer with their voxels and bounding boxes, found block by block.

OUT/.export/segments-<key>/<block>.npy           the segments of one block of the volume
OUT/.export/segments-<key>/largest-<count>.npy   the largest of all, the largest first

A file is uint64 (8, segments): id, voxels, first voxel (z, y, x), the one after the last (z, y, x). Files are merged
with memory that does not grow with the number of segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import cc3d
import fastremap
import numpy as np
import numpy.typing as npt

from lsdflow_command.interruption import end_if_asked
from lsdflow_contract.errors import BadData
from lsdflow_contract.files import storage_errors, write_atomically
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_contract.hashing import hash_of
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_view.export.levels import whole_chunks
from lsdflow_view.export.passes import ExportPass, PassRunner, Write
from lsdflow_view.export.precomputed_volume import BLOCK_VOX, PrecomputedLayer

BACKGROUND = 0
# Voxels of a block: some seconds of computing, and 15,000 small files for 10^12 voxels.
SEARCH_BLOCK_VOX = 1 << 26
# Tables of so many blocks are kept before they are merged into one.
_MERGED_AT_ONCE = 64
_Integer = TypeVar("_Integer", np.int64, np.uint64)
# Rows that are merged at a time: 64 bytes each, in several copies.
ROWS_AT_ONCE = 1 << 22
# Every so many-th id of a file is read to divide the ids into ranges.
_SAMPLED = 64
_COLUMNS = 8


@dataclass(frozen=True)
class SegmentTable:
    """One row per segment: id, voxels, first voxel and the one after the last (z, y, x)."""

    ids: npt.NDArray[np.uint64]
    sizes_vox: npt.NDArray[np.int64]
    begin_vox: npt.NDArray[np.int64]
    end_vox: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)

    def box(self, row: int) -> Box:
        """Bounding box of the segment of a row."""
        return Box.from_bounds(_vox3(self.begin_vox[row]), _vox3(self.end_vox[row]))

    def largest(self, count: int) -> npt.NDArray[np.intp]:
        """Rows of the `count` segments with most voxels, the largest first; equals by lowest id."""
        return np.lexsort((self.ids, -self.sizes_vox))[:count]

    def take(self, rows: slice | npt.NDArray[np.intp]) -> SegmentTable:
        """A copy with these rows."""
        return SegmentTable(
            _copy(self.ids[rows]), _copy(self.sizes_vox[rows]), _copy(self.begin_vox[rows]), _copy(self.end_vox[rows])
        )


def no_segments() -> SegmentTable:
    """A table without rows."""
    return SegmentTable(
        np.empty(0, np.uint64), np.empty(0, np.int64), np.empty((0, 3), np.int64), np.empty((0, 3), np.int64)
    )


def table_of_block(labels: npt.NDArray[Any], begin_vox: Vox3) -> SegmentTable:
    """The segments of a block whose first voxel is `begin_vox`, ascending ids, without background."""
    numbered, numbers = fastremap.renumber(labels, preserve_zero=True)
    found_ids = np.array([(number, label) for label, number in numbers.items() if number], np.uint64).reshape(-1, 2)
    ids = np.zeros(len(found_ids) + 1, np.uint64)
    ids[found_ids[:, 0]] = found_ids[:, 1]
    found = cc3d.statistics(numbered, no_slice_conversion=True)
    bounds = found["bounding_boxes"][1:].astype(np.int64)
    corner = np.array(begin_vox, np.int64)
    order = np.argsort(ids[1:])
    return SegmentTable(
        ids[1:][order],
        found["voxel_counts"][1:].astype(np.int64)[order],
        (bounds[:, 0::2] + corner)[order],
        (bounds[:, 1::2] + 1 + corner)[order],
    )


def merged(tables: Sequence[SegmentTable]) -> SegmentTable:
    """The tables of several blocks (at least one) as one, ascending ids."""
    ids = np.concatenate([table.ids for table in tables])
    order = np.argsort(ids, kind="stable")
    starts = np.flatnonzero(np.diff(ids[order], prepend=np.uint64(BACKGROUND)))
    if len(starts) == 0:
        return tables[0]

    def joined(columns: Iterable[npt.NDArray[np.int64]], how: np.ufunc) -> npt.NDArray[np.int64]:
        """The column of all tables, int64, with the rows of one id reduced by `how`."""
        column: npt.NDArray[np.int64] = how.reduceat(np.concatenate(list(columns))[order], starts, axis=0)
        return column

    return SegmentTable(
        ids[order][starts],
        joined((table.sizes_vox for table in tables), np.add),
        joined((table.begin_vox for table in tables), np.minimum),
        joined((table.end_vox for table in tables), np.maximum),
    )


def table_of_blocks(blocks: Iterable[tuple[npt.NDArray[Any], Vox3]]) -> SegmentTable:
    """The segments of a volume, ascending ids, from its blocks and their first voxels."""
    tables = [no_segments()]
    for labels, begin_vox in blocks:
        tables.append(table_of_block(labels, begin_vox))
        if len(tables) >= _MERGED_AT_ONCE:
            tables = [merged(tables)]
    return merged(tables)


def _copy(values: npt.NDArray[_Integer]) -> npt.NDArray[_Integer]:
    """A copy in memory, also of memory-mapped values."""
    return np.array(values, order="C", subok=False)


def _vox3(values: npt.NDArray[np.int64]) -> Vox3:
    z, y, x = (int(v) for v in values)
    return z, y, x


def write_table(path: Path, table: SegmentTable) -> None:
    """Write a table and flush it to disk (fsync)."""
    rows = np.empty((_COLUMNS, len(table)), np.uint64)
    rows[0] = table.ids
    signed = rows.view(np.int64)
    signed[1], signed[2:5], signed[5:8] = table.sizes_vox, table.begin_vox.T, table.end_vox.T
    write_atomically(path, lambda file: np.save(file, rows, allow_pickle=False))


def read_table(path: Path) -> SegmentTable:
    """A memory-mapped table. Release it before the file is removed (otherwise NFS keeps the folder).

    Raises BadData (65) if it is damaged.
    """
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, str(error)) from error
    if rows.dtype != np.uint64 or rows.ndim != 2 or len(rows) != _COLUMNS:
        raise _damaged(path, f"{rows.dtype} {rows.shape}")
    signed = rows.view(np.int64)
    return SegmentTable(rows[0], signed[1], signed[2:5].T, signed[5:8].T)


def largest_of(files: Sequence[Path], count: int, rows_at_once: int = ROWS_AT_ONCE) -> SegmentTable:
    """The `count` segments with most voxels, the largest first, from the tables (ascending ids) of a volume's parts.

    Memory: twice `count` rows, and about `rows_at_once` rows with their copies, because ids are merged range by range.
    """
    kept = [no_segments()]
    for first, end in _ranges(files, rows_at_once):
        end_if_asked()
        kept.append(_largest([no_segments(), *(_part(read_table(file), first, end) for file in files)], count))
        if sum(map(len, kept)) > 2 * count:
            kept = [_largest(kept, count)]
    return _largest(kept, count)


def _largest(tables: Sequence[SegmentTable], count: int) -> SegmentTable:
    table = merged(tables)
    return table.take(table.largest(count))


def _ranges(files: Sequence[Path], rows_at_once: int) -> Iterator[tuple[np.uint64, np.uint64 | None]]:
    """First id and id after the last (None: no end) of ranges that cover all ids of the files."""
    sampled = np.sort(np.concatenate([read_table(file).ids[::_SAMPLED] for file in files]))
    firsts = np.unique(sampled[:: max(1, rows_at_once // _SAMPLED)])
    return pairwise([*firsts, None])


def _part(table: SegmentTable, first: np.uint64, end: np.uint64 | None) -> SegmentTable:
    """The rows of a range of ids, read into memory."""
    begin = int(np.searchsorted(table.ids, first))
    stop = len(table) if end is None else int(np.searchsorted(table.ids, end))
    return table.take(slice(begin, stop))


def _damaged(path: Path, found: str) -> BadData:
    fix = f"remove the folder {path.parent} and run the same command again"
    return BadData("damaged table of segments", where=path, found=found, fix=fix)


@dataclass(frozen=True)
class LargestSegments:
    """The `count` largest segments of a layer; `unfinished` is the folder for unfinished data."""

    layer: PrecomputedLayer
    unfinished: Path
    count: int
    block_vox: int

    def make(self, runner: PassRunner) -> None:
        """Read all blocks of the source; resumes an earlier run."""
        runner.run([self._pass()])
        write_table(self._file, largest_of([self._block_file(n) for n in range(len(self._plan))], self.count))

    def table(self) -> SegmentTable:
        """The memory-mapped table of `make`, largest first, equals by lowest id. Release it soon (read_table)."""
        return read_table(self._file)

    @cached_property
    def key(self) -> str:
        """Identifies the data and its division into blocks."""
        shape, begin = self._plan.total.shape_vox, self.layer.levels[0].box.begin_vox
        name, identity = self.layer.layer.name, self.layer.layer.identity
        return hash_of(["segments", name, identity, begin, shape, self._plan.write_shape_vox])

    def _pass(self) -> ExportPass:
        name = f"{self.layer.layer.name}-segments"
        return ExportPass(name, self.key, self._plan, self._folder, begin=self._begin, open=self._open_pass)

    @contextmanager
    def _open_pass(self) -> Iterator[Write]:
        yield lambda block: write_table(self._block_file(block.number), table_of_blocks(self._parts(block.write)))

    def _begin(self) -> bool:
        new = not self._folder.is_dir()
        with storage_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        return new

    def _parts(self, box: Box) -> Iterator[tuple[npt.NDArray[Any], Vox3]]:
        """The source's voxels in `box` part by part, with their first voxels on the grid of the world."""
        volume, begin = self.layer.layer.volume, self.layer.levels[0].box.begin_vox
        edges = whole_chunks(volume.box, volume.chunk_shape_vox, BLOCK_VOX**3)
        for part in BlockPlan(box, edges).blocks():
            yield volume.read(part.write), part.write.translate(begin).begin_vox

    @property
    def _plan(self) -> BlockPlan:
        volume = self.layer.layer.volume
        return BlockPlan(volume.box, whole_chunks(volume.box, volume.chunk_shape_vox, self.block_vox))

    @property
    def _folder(self) -> Path:
        return self.unfinished / f"segments-{self.key[:16]}"

    @property
    def _file(self) -> Path:
        return self._folder / f"largest-{self.count}.npy"

    def _block_file(self, number: int) -> Path:
        return self._folder / f"{number}.npy"
