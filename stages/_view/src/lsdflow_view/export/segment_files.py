"""Tables of segments as files, one for each part of a volume, merged with memory that does not grow with their number.

*.npy     uint64 (8, segments): id, voxels, first voxel (z, y, x), the one after the last (z, y, x)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from lsdflow_command.interruption import end_if_asked
from lsdflow_contract.errors import BadData
from lsdflow_contract.files import write_atomically
from lsdflow_view.export.segments import SegmentTable, merged, no_segments

# Rows that are merged at a time: 64 bytes each, in several copies.
ROWS_AT_ONCE = 1 << 22
# Every so many-th id of a file is read to divide the ids into ranges.
_SAMPLED = 64
_COLUMNS = 8


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
