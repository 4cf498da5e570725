"""A graph that is found part by part (hierarchy.py), its parts kept in files, so that a killed run goes on.

    <folder>/begins.npy                      1. where parts begin: all ids are counted
             nodes-0.rows edges-9.rows ...   2. nodes and edges are read once more, each dealt out to its part
             dealt.json                         ... and all of them are there
             part-9/                         3. up, level by level: nodes, forest, outer nodes of a part (Part) ...
             told-9/                            ... and what it tells: segments.npy (thresholds, 2, b), edges.npy
             final-9.npy                     4. down: names and voxels at the nodes of a part, (thresholds, 2, n)

A file or folder is there when it is complete; what is there is not made again. Parts are numbered through all levels.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.sealing import read_sealed
from lsdflow_segment.advice import PartitionFacts, facts_of_voxels
from lsdflow_segment.components import Forest, ThresholdSweep, places_of
from lsdflow_segment.hierarchy import FAN_BITS, Cut, Part, Segments, Told
from lsdflow_segment.lut_pieces import Piece
from lsdflow_segment.part_files import EDGE, END, NODE, appearing, mapped, read_rows, write_array
from lsdflow_segment.sizes import SizeCount, UInt64s
from lsdflow_segment.sorted_ids import SortedIds

LOG = logging.getLogger("lsdflow.segment")

_BATCH_ROWS = 1 << 20


@dataclass(frozen=True)
class PartedGraph:
    """The graph of a merge function in `folder`, dealt out to the parts of `cut` (dealing.py).

    `thresholds` ascending; `buffer_edges` as ThresholdSweep's.
    """

    folder: Path
    thresholds: tuple[float, ...]
    buffer_edges: int
    cut: Cut

    @cached_property
    def dealt(self) -> dict[str, Any]:
        """How many rows there are: nodes, edges read, voxels, and those of each file."""
        return read_sealed(self.folder / "dealt.json", f"remove {self.folder} and run segment again")

    @property
    def nodes(self) -> int:
        """Number of fragments."""
        return sum(mapped(self._part(0, n) / "ids.npy").size for n in range(self.cut.parts(0)))

    @property
    def edges(self) -> int:
        """Number of edges read."""
        return int(self.dealt["edges"])

    @property
    def voxels(self) -> int:
        """Voxels of all fragments."""
        return int(self.dealt["voxels"])

    def tables(self) -> Iterator[Sequence[Piece]]:
        """For each threshold the table, a piece for each part of level 0."""
        for number in range(len(self.thresholds)):
            yield [self._piece(number, part) for part in range(self.cut.parts(0))]

    def facts(self) -> tuple[PartitionFacts, ...]:
        """Facts of each partition; the voxels of its segments pass through a file."""
        return tuple(self._facts(number) for number in range(len(self.thresholds)))

    def _facts(self, number: int) -> PartitionFacts:
        path = self.folder / f"voxels-{number}.tmp"
        with path.open("wb") as file:
            for part in range(self.cut.parts(0)):
                loaded = self._load(0, part)
                roots, segments = self._final(loaded, 0, part, number)
                own = np.flatnonzero((roots == np.arange(len(roots))) & (segments.names == loaded.ids))
                file.write(segments.voxels[own].tobytes())
        try:
            return facts_of_voxels(self.thresholds[number], np.memmap(path, "<u8", "r"))
        finally:
            path.unlink()

    def _piece(self, number: int, part: int) -> Piece:
        folder = self._part(0, part)
        find = partial(self._segments, number, part)
        return Piece(mapped(folder / "ids.npy"), mapped(folder / "voxels.npy"), find)

    def _segments(self, number: int, part: int) -> UInt64s:
        roots, segments = self._final(self._load(0, part), 0, part, number)
        return np.take(segments.names, roots)

    def _final(self, loaded: Part, level: int, part: int, number: int) -> tuple[NDArray[Any], Segments]:
        """Roots within a part and final segments at them, at a threshold."""
        roots = next(loaded.forest.partitions(number + 1, first=number))
        return roots, loaded.final(roots, self._known(level, part, number), self._answer(level, part, number))

    def go_up(self) -> None:
        """Find the parts of every level, and what each tells."""
        for level in range(self.cut.levels):
            for part in range(self.cut.parts(level)):
                if not self._part(level, part).exists():
                    self._write_part(level, part)
                if level + 1 < self.cut.levels and not self._told(level, part).exists():
                    self._tell(level, part)
            LOG.info("level %d: %d parts", level, self.cut.parts(level))

    def go_down(self) -> None:
        """Answer the parts of every level but the lowest, whose segments are found when asked for."""
        for level in range(self.cut.levels - 1, 0, -1):
            for part in range(self.cut.parts(level)):
                if not self._finals(level, part).exists():
                    self._write_finals(level, part)

    def _write_part(self, level: int, part: int) -> None:
        ids, reach, voxels = self._nodes_of_part(level, part)
        forest = self._forest_over(ids, level, part)
        outer = np.flatnonzero(reach > level)
        arrays: dict[str, NDArray[Any]] = {"ids": ids, "outer": outer, "reach": reach[outer], "voxels": voxels}
        arrays |= {"u": forest.u, "v": forest.v, "level": forest.level}
        with appearing(self._part(level, part)) as folder:
            for name, values in arrays.items():
                write_array(folder / f"{name}.npy", values.shape, values.dtype, [values])

    def _forest_over(self, ids: UInt64s, level: int, part: int) -> Forest:
        if not len(ids):  # parts that no edge joins with others
            return Forest.empty()
        sweep = ThresholdSweep(ids, self.thresholds, self.buffer_edges)
        for rows in (self._rows("edges", level, part, EDGE), *self._told_edges(level, part)):
            for batch in _batches(rows):
                sweep.add(*(np.ascontiguousarray(batch[name]) for name in EDGE.names or ()))
        return sweep.forest()

    def _nodes_of_part(self, level: int, part: int) -> tuple[UInt64s, NDArray[np.uint8], UInt64s]:
        """Ids ascending, the highest level of an edge at each (0: none leaves level 0), voxels (level 0 only)."""
        if level:
            parts = [self._part(level - 1, below) for below in self.cut.below(level, part)]
            ids = [mapped(folder / "ids.npy")[mapped(folder / "outer.npy")] for folder in parts]
            reach = np.concatenate([mapped(folder / "reach.npy") for folder in parts])
            return np.concatenate(ids), reach, np.zeros(0, np.uint64)
        count = SizeCount()
        for batch in _batches(self._rows("nodes", 0, part, NODE)):
            count.add_counts(np.ascontiguousarray(batch["id"]), batch["voxels"].astype(np.int64))
        sizes = count.sizes()
        reach = np.zeros(len(sizes.ids), np.uint8)
        places = SortedIds(sizes.ids)
        for batch in _batches(self._rows("ends", 0, part, END)):
            np.maximum.at(reach, places_of(np.ascontiguousarray(batch["id"]), places), batch["level"])
        return sizes.ids, reach, sizes.voxels.view(np.uint64)

    def _told_edges(self, level: int, part: int) -> Iterator[NDArray[Any]]:
        if level:
            for below in self.cut.below(level, part):
                yield mapped(self._told(level - 1, below) / "edges.npy")

    def _tell(self, level: int, part: int) -> None:
        loaded = self._load(level, part)
        edges: list[NDArray[Any]] = [np.zeros(0, EDGE)]

        def told() -> Iterator[NDArray[np.uint64]]:
            for number, said in enumerate(loaded.tell(len(self.thresholds), partial(self._known, level, part))):
                edges.append(_edge_rows(said, self.thresholds[number]))
                yield np.stack([said.segments.names, said.segments.voxels])

        with appearing(self._told(level, part)) as folder:
            shape = (len(self.thresholds), 2, len(loaded.outer))
            write_array(folder / "segments.npy", shape, np.uint64, told())
            rows = np.concatenate(edges)
            write_array(folder / "edges.npy", rows.shape, EDGE, [rows])

    def _write_finals(self, level: int, part: int) -> None:
        loaded = self._load(level, part)

        def finals() -> Iterator[NDArray[np.uint64]]:
            for number, roots in enumerate(loaded.forest.partitions(len(self.thresholds))):
                known, answer = self._known(level, part, number), self._answer(level, part, number)
                segments = loaded.final(roots, known, answer)
                yield np.stack([segments.names[roots], segments.voxels[roots]])

        shape = (len(self.thresholds), 2, len(loaded.ids))
        write_array(self._finals(level, part), shape, np.uint64, finals())

    def _known(self, level: int, part: int, number: int) -> Segments:
        """What is known of the nodes of a part before it joins them."""
        if not level:
            folder = self._part(0, part)
            return Segments(mapped(folder / "ids.npy"), mapped(folder / "voxels.npy"))
        below = [self._told(level - 1, p) / "segments.npy" for p in self.cut.below(level, part)]
        return Segments(*np.concatenate([mapped(path)[number] for path in below], axis=1))

    def _answer(self, level: int, part: int, number: int) -> Segments:
        """Final segments at the outer nodes of a part."""
        if level + 1 == self.cut.levels:
            return Segments(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
        above = part >> FAN_BITS
        before = [self._outer_nodes(level, p) for p in self.cut.below(level + 1, above) if p < part]
        begin = sum(before)
        rows = mapped(self._finals(level + 1, above))[number, :, begin : begin + self._outer_nodes(level, part)]
        return Segments(*rows)

    def _outer_nodes(self, level: int, part: int) -> int:
        return mapped(self._part(level, part) / "outer.npy").size

    def _load(self, level: int, part: int) -> Part:
        folder = self._part(level, part)
        ids, outer, u, v, levels = (mapped(folder / f"{n}.npy") for n in ("ids", "outer", "u", "v", "level"))
        return Part(ids, Forest(len(ids), u, v, levels), outer)

    def _rows(self, kind: str, level: int, part: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        return read_rows(self.folder, kind, self.cut.number(level, part), dtype, self.dealt["rows"])

    def _part(self, level: int, part: int) -> Path:
        return self.folder / f"part-{self.cut.number(level, part)}"

    def _told(self, level: int, part: int) -> Path:
        return self.folder / f"told-{self.cut.number(level, part)}"

    def _finals(self, level: int, part: int) -> Path:
        return self.folder / f"final-{self.cut.number(level, part)}.npy"


def _batches(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (rows[begin : begin + _BATCH_ROWS] for begin in range(0, len(rows), _BATCH_ROWS))


def _edge_rows(told: Told, score: float) -> NDArray[Any]:
    rows = np.empty(len(told.u), EDGE)
    rows["u"], rows["v"], rows["score"] = told.u, told.v, score
    return rows
