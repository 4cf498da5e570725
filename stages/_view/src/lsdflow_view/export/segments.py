"""Voxels and bounding box of every segment of a volume, or of a part of it, computed block by block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import cc3d
import fastremap
import numpy as np
import numpy.typing as npt

from lsdflow_contract.geometry import Box, Vox3

BACKGROUND = 0
# Tables of so many blocks are kept before they are merged into one.
_MERGED_AT_ONCE = 64
_Integer = TypeVar("_Integer", np.int64, np.uint64)


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
