"""The largest segments of a layer with their voxels and bounding boxes, found by the workers in one pass.

OUT/.export/segments-<key>/<piece>.npy           the segments of one part of the volume (segment_files)
OUT/.export/segments-<key>/largest-<count>.npy   the largest of all, the largest first
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy.typing as npt

from lsdflow_contract.files import storage_errors
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_contract.hashing import hash_of
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_view.export.folder import Work, run_works
from lsdflow_view.export.precomputed_layer import BLOCK_VOX, PrecomputedLayer
from lsdflow_view.export.segment_files import largest_of, read_table, write_table
from lsdflow_view.export.segments import SegmentTable, table_of_blocks

# Voxels of a part: some seconds of computing, and 15,000 small files for 10^12 voxels.
PIECE_VOX = 1 << 26


@dataclass(frozen=True)
class LargestSegments:
    """The `count` largest segments of a layer; `under_way` is the folder for unfinished data."""

    layer: PrecomputedLayer
    under_way: Path
    count: int
    piece_vox: int

    def make(self, workers: int) -> None:
        """Read all blocks of the source with this many processes; resumes an earlier run."""
        run_works(f"segments of {self.layer.layer.name}", "piece", self.under_way, [self._work()], workers)
        pieces = [self._piece_file(number) for number in range(len(self._plan))]
        write_table(self._file, largest_of(pieces, self.count))

    def table(self) -> SegmentTable:
        """The memory-mapped table of `make`, largest first, equals by lowest id. Release it soon (read_table)."""
        return read_table(self._file)

    @cached_property
    def key(self) -> str:
        """Identifies the data and its division into parts."""
        shape, begin = self._plan.total.shape_vox, self.layer.levels[0].box.begin_vox
        name, identity = self.layer.layer.name, self.layer.layer.identity
        return hash_of(["segments", name, identity, begin, shape, self._plan.write_shape_vox])

    def _work(self) -> Work:
        name = f"{self.layer.layer.name}-segments"
        return Work(name, self.key, len(self._plan), self._folder, begin=self._begin, write=self._write)

    def _begin(self) -> bool:
        new = not self._folder.is_dir()
        with storage_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        return new

    def _write(self, number: int) -> None:
        write_table(self._piece_file(number), table_of_blocks(self._blocks(self._plan.block(number).write)))

    def _blocks(self, piece: Box) -> Iterator[tuple[npt.NDArray[Any], Vox3]]:
        """The source's blocks in one part of the volume, with their first voxels on the grid of the world."""
        volume, begin = self.layer.layer.volume, self.layer.levels[0].box.begin_vox
        edges = whole_chunks(volume.box, volume.chunk_shape_vox, BLOCK_VOX**3)
        for block in BlockPlan(piece, edges).blocks():
            yield volume.read(block.write), block.write.translate(begin).begin_vox

    @property
    def _plan(self) -> BlockPlan:
        volume = self.layer.layer.volume
        return BlockPlan(volume.box, whole_chunks(volume.box, volume.chunk_shape_vox, self.piece_vox))

    @property
    def _folder(self) -> Path:
        return self.under_way / f"segments-{self.key[:16]}"

    @property
    def _file(self) -> Path:
        return self._folder / f"largest-{self.count}.npy"

    def _piece_file(self, number: int) -> Path:
        return self._folder / f"{number}.npy"


def whole_chunks(box: Box, chunk_vox: Vox3, most_vox: int) -> Vox3:
    """Shape of a part of `box` with at most `most_vox` voxels: one chunk, its shortest edge doubled repeatedly."""
    edges = list(chunk_vox)
    while 2 * math.prod(edges) <= most_vox:
        shorter = [axis for axis in range(3) if edges[axis] < box.shape_vox[axis]]
        if not shorter:
            break
        edges[min(shorter, key=lambda axis: edges[axis])] *= 2
    return edges[0], edges[1], edges[2]
