"""The graph cut into parts: ranges of ids, the levels that join them, and files with the nodes and edges of each part.

1. The ids of all nodes are counted in a histogram. Ranges with at most so many rows of nodes are the parts of level 0.
2. Each node goes to its part. Each edge that some threshold merges goes to the lowest part that has both ends; if that
   is above level 0, the parts of level 0 are noted as the ends of such an edge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.graph import RagEdges
from lsdflow_contract.sealing import write_sealed
from lsdflow_segment.components import UInt64s, require_fragments
from lsdflow_segment.mapped_files import RowFiles, map_array, write_array

# Ids uint64 (n,) and voxels uint64 (n,) of the nodes of each block; and the edges of each block.
Nodes = Callable[[], Iterable[tuple[UInt64s, UInt64s]]]
Edges = Callable[[], Iterable[RagEdges]]

NODE = np.dtype([("id", "<u8"), ("voxels", "<u8")])
EDGE = np.dtype([("u", "<u8"), ("v", "<u8"), ("score", "<f4")])
# An end of an edge that leaves its part of level 0, and the level of the part that has the edge.
END = np.dtype([("id", "<u8"), ("level", "u1")])

# Parts of a level that make one of the next: 2 ** FAN_BITS.
FAN_BITS = 3


@dataclass(frozen=True, eq=False)
class Partition:
    """Parts as ranges of ids: begins uint64 (p,) ascending, the smallest id of each part; the first begins at 0."""

    begins: UInt64s

    @property
    def levels(self) -> int:
        """Number of levels, at least 1; the last has one part."""
        return 1 + -(-(len(self.begins) - 1).bit_length() // FAN_BITS)

    def parts(self, level: int) -> int:
        """Number of parts of a level."""
        return ((len(self.begins) - 1) >> (FAN_BITS * level)) + 1

    def number(self, level: int, part: int) -> int:
        """Number of a part among those of all levels."""
        return sum(self.parts(below) for below in range(level)) + part

    def above(self, part: NDArray[np.int64], level: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Numbers, at these levels, of the parts that contain parts of level 0, (n,)."""
        return part >> (FAN_BITS * level.astype(np.int64))

    def below(self, level: int, part: int) -> range:
        """Numbers of the parts of the level below that make a part."""
        first = part << FAN_BITS
        return range(first, min(first + (1 << FAN_BITS), self.parts(level - 1)))

    def part_of(self, ids: UInt64s) -> NDArray[np.int64]:
        """Number of the part of level 0 of each id, (n,)."""
        return np.searchsorted(self.begins[1:], ids, side="right")

    def common_level(self, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The lowest level at which two parts of level 0 are in one part, (n,)."""
        level = np.zeros(len(a), np.uint8)
        for below in range(self.levels - 1):
            level += (a >> (FAN_BITS * below)) != (b >> (FAN_BITS * below))
        return level


class IdHistogram:
    """Numbers of ids in ranges of equal width, which are doubled when an id is beyond the last range."""

    def __init__(self, ranges: int = 1 << 20) -> None:
        self._counts = np.zeros(ranges, np.int64)
        self._shift = 0

    def add(self, ids: UInt64s) -> None:
        """Count ids, uint64 (n,)."""
        if not len(ids):
            return
        while int(ids.max()) >> self._shift >= len(self._counts):
            pairs = self._counts.reshape(-1, 2).sum(axis=1)
            self._counts = np.concatenate([pairs, np.zeros_like(pairs)])
            self._shift += 1
        np.add.at(self._counts, (ids >> np.uint64(self._shift)).astype(np.int64), 1)

    def partition(self, most: int) -> Partition:
        """Parts of at most `most` ids each, unless one range of the histogram has more."""
        begins, held = [0], 0
        for number in np.flatnonzero(self._counts).tolist():
            count = int(self._counts[number])
            if held and held + count > most:
                begins.append(number << self._shift)
                held = 0
            held += count
        return Partition(np.array(begins, np.uint64))


def cut_graph(path: Path, nodes: Nodes, most_nodes: int) -> Partition:
    """Parts with at most `most_nodes` rows of nodes each; kept at `path` (.npy) and read from there if it exists."""
    if not path.exists():
        histogram = IdHistogram()
        for ids, _ in nodes():
            histogram.add(ids)
        begins = histogram.partition(most_nodes).begins
        write_array(path, begins.shape, np.uint64, [begins])
    return Partition(map_array(path))


def distribute_graph(folder: Path, partition: Partition, nodes: Nodes, edges: Edges, highest_threshold: float) -> None:
    """Write nodes and edges into files of their parts, and then `dealt.json`: edges read, voxels, rows of each file.

    Raises BadData if there are no nodes.
    """
    for left in folder.glob("*.rows"):
        left.unlink()
    voxels, node_rows = _distribute_nodes(folder, partition, nodes)
    if not node_rows:
        require_fragments(np.zeros(0, np.uint64))
    read, edge_rows = _distribute_edges(folder, partition, edges, highest_threshold)
    write_sealed(folder / "dealt.json", {"edges": read, "voxels": voxels, "rows": {**node_rows, **edge_rows}})


def _distribute_nodes(folder: Path, partition: Partition, nodes: Nodes) -> tuple[int, dict[str, int]]:
    """Voxels of all nodes, and the number of rows in each file."""
    files = RowFiles(folder, "nodes", NODE)
    total = 0
    for ids, voxels in nodes():
        files.add(partition.part_of(ids), ids, voxels)
        total += int(voxels.sum())
    files.finish()
    return total, files.counts


def _distribute_edges(
    folder: Path, partition: Partition, edges: Edges, highest_threshold: float
) -> tuple[int, dict[str, int]]:
    """How many edges were read, and the number of rows in each file."""
    inside, ends = RowFiles(folder, "edges", EDGE), RowFiles(folder, "ends", END)
    before = np.array([partition.number(level, 0) for level in range(partition.levels)])
    highest = np.float32(highest_threshold)
    read = 0
    for rows in edges():
        read += len(rows)
        merging = np.flatnonzero(rows.merge_score <= highest)
        u, v, score = rows.u[merging], rows.v[merging], rows.merge_score[merging]
        part_u, part_v = partition.part_of(u), partition.part_of(v)
        level = partition.common_level(part_u, part_v)
        inside.add(before[level] + partition.above(part_u, level), u, v, score)
        leaving = level > 0
        for ids, part in ((u, part_u), (v, part_v)):
            ends.add(part[leaving], ids[leaving], level[leaving])
    inside.finish()
    ends.finish()
    return read, {**inside.counts, **ends.counts}
