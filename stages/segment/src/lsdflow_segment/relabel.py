"""Fragments -> segmentation: look each id up once per run of equal voxels.

1. Ids repeat along x, so the last answer is reused until the id changes.
2. At a change, the id is searched in a small table of recent ids (4096 entries, by the low bits of the id), and only
   then in the sorted lookup table, by a binary search. Nothing of the size of the lookup table is built per block.
3. 0 stays 0. An id that is not in the table is an error that names it: the published scripts wrote 0 there, in silence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_contract.lut import Lut, read_lut
from lsdflow_runtime.blocks import Block
from lsdflow_runtime.compiled import compiled
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput
from lsdflow_runtime.io.volumes import Volume
from lsdflow_segment.mapped_files import map_array

UInt64s = NDArray[np.uint64]

_RECENT = 4096


@contextmanager
def block_relabelling(fragments: Volume, luts: Mapping[str, tuple[Path, Path]]) -> Iterator[BlockFunction]:
    """Open the tables once per worker; yields the function that turns the fragments of a block into segments.

    `luts`: for each output array its lookup table (.npz), and the same as an array to be memory-mapped, which is used
    if it exists, so that no worker holds all of it.
    """
    tables = {name: _open_lut(*paths) for name, paths in luts.items()}

    def relabel_block(block: Block) -> BlockOutput:
        """Map fragments u64 (z, y, x) of one block to segments, one array for each table."""
        ids = fragments.read(block.write)
        arrays = {n: relabel(ids, lut.fragments, lut.segments, where=str(block)) for n, lut in tables.items()}
        return BlockOutput(arrays, facts={"voxels": ids.size})

    yield relabel_block


def _open_lut(path: Path, mapped: Path) -> Lut:
    if mapped.exists():
        return Lut(*map_array(mapped))
    lut = read_lut(path)
    if not bool((lut.fragments[1:] > lut.fragments[:-1]).all()):
        raise BadData("the lookup table is not ascending", where=path, fix="run segment again")
    return lut


def relabel(fragments: UInt64s, lut_fragments: UInt64s, lut_segments: UInt64s, where: str = "") -> UInt64s:
    """The segment id of every voxel.

    `fragments` uint64 of any shape; `lut_fragments` uint64 (n,) ascending and distinct, `lut_segments` uint64 (n,).
    Returns uint64 of the same shape. Raises BadData naming the id and `where` (the block) if an id is not in the
    table.
    """
    flat = np.ascontiguousarray(fragments).reshape(-1)
    segments = np.empty_like(flat)
    missing_at = _look_up(flat, lut_fragments, lut_segments, segments)
    if missing_at >= 0:
        position = tuple(int(i) for i in np.unravel_index(missing_at, fragments.shape))
        raise BadData(
            f"fragment {int(flat[missing_at])} is not in the lookup table",
            where=f"{where} voxel {position}".strip(),
            wanted="an entry for each fragment",
            found=f"{len(lut_fragments)} entries, none for {int(flat[missing_at])}",
            fix="the fragments changed after segment read the graph: run segment again",
        )
    return segments.reshape(fragments.shape)


@compiled
def _look_up(flat: NDArray[Any], lut_fragments: NDArray[Any], lut_segments: NDArray[Any], out: NDArray[Any]) -> int:
    """Fill `out`; returns -1, or the position of the first voxel whose id has no entry."""
    recent_ids = np.zeros(_RECENT, np.uint64)
    recent_segments = np.zeros(_RECENT, np.uint64)
    last, segment = np.uint64(0), np.uint64(0)
    for voxel in range(len(flat)):
        fragment = flat[voxel]
        if fragment != last:
            place = np.int64(fragment & np.uint64(_RECENT - 1))
            if fragment == 0:
                segment = np.uint64(0)
            elif recent_ids[place] == fragment:
                segment = recent_segments[place]
            else:
                entry = np.searchsorted(lut_fragments, fragment)
                if entry == len(lut_fragments) or lut_fragments[entry] != fragment:
                    return voxel
                segment = lut_segments[entry]
                recent_ids[place] = fragment
                recent_segments[place] = segment
            last = fragment
        out[voxel] = segment
    return -1
