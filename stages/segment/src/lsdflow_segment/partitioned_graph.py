"""A graph whose segments are found part by part (hierarchy.py), with its parts in files, so that a killed run resumes.

    <folder>/begins.npy                      1. the first id of each part of level 0: the ids are counted
             nodes-0.rows edges-9.rows ...   2. nodes and edges are read again and distributed to their parts ...
             dealt.json                         ... and all of these files are complete
             part-9/                         3. up, level by level: nodes, forest, boundary nodes of a part (Part) ...
             summary-9/                         ... and its summaries: segments.npy (thresholds, 2, b), edges.npy
             final-9.npy                     4. down: ids and voxels of the segments of its nodes (thresholds, 2, n)

A file or folder exists only when it is complete, and is then not computed again. The numbers of parts run through all
levels.
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
from lsdflow_segment.components import BUFFER_EDGES, Forest, SortedIds, ThresholdSweep, positions_of
from lsdflow_segment.graph import LutSlice, sum_nodes
from lsdflow_segment.hierarchy import BoundarySummary, Part, Segments
from lsdflow_segment.mapped_files import appearing_folder, map_array, read_rows, write_array
from lsdflow_segment.partition import EDGE, END, FAN_BITS, NODE, Edges, Nodes, Partition, cut_graph, distribute_graph
from lsdflow_segment.sizes import SegmentationFacts, UInt64s, facts_of_voxels

LOG = logging.getLogger("lsdflow.segment")

_BATCH_ROWS = 1 << 20


def find_in_parts(
    folder: Path,
    nodes: Nodes,
    edges: Edges,
    thresholds: tuple[float, ...],
    most_nodes: int,
    buffer_edges: int = BUFFER_EDGES,
    min_segment_vox: int = 0,
) -> PartitionedGraph:
    """Find the segments of all thresholds, part by part, in `folder`; what an earlier run completed there is used.

    `nodes` are read twice, `edges` once. `most_nodes`: rows of nodes of a part. Raises BadData as find_in_memory does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    partition = cut_graph(folder / "begins.npy", nodes, most_nodes)
    graph = PartitionedGraph(folder, thresholds, buffer_edges, partition, min_segment_vox)
    if not (folder / "dealt.json").exists():
        distribute_graph(folder, graph.partition, nodes, edges, thresholds[-1])
    graph.go_up()
    graph.go_down()
    return graph


@dataclass(frozen=True)
class PartitionedGraph:
    """The graph of a merge function in `folder`, distributed to the parts of `partition`.

    `thresholds` ascending; `buffer_edges` as ThresholdSweep's; `min_segment_vox` as InMemoryGraph's.
    """

    folder: Path
    thresholds: tuple[float, ...]
    buffer_edges: int
    partition: Partition
    min_segment_vox: int = 0

    @property
    def nodes(self) -> int:
        """Number of fragments."""
        return sum(map_array(self._part(0, n) / "ids.npy").size for n in range(self.partition.parts(0)))

    @property
    def edges(self) -> int:
        """Number of edges read."""
        return int(self._counts["edges"])

    @property
    def voxels(self) -> int:
        """Voxels of all fragments."""
        return int(self._counts["voxels"])

    def facts(self) -> tuple[SegmentationFacts, ...]:
        """Facts of the segments of each threshold, ascending; the voxels of the segments pass through a file."""
        return tuple(self._facts(number) for number in range(len(self.thresholds)))

    def luts(self) -> Iterator[Sequence[LutSlice]]:
        """The lookup table of each threshold, ascending, in a slice for each part of level 0."""
        for number in range(len(self.thresholds)):
            yield [self._lut_slice(number, part) for part in range(self.partition.parts(0))]

    def go_up(self) -> None:
        """Find the segments of the parts of every level, and the summaries of their boundary nodes."""
        for level in range(self.partition.levels):
            for part in range(self.partition.parts(level)):
                if not self._part(level, part).exists():
                    self._write_part(level, part)
                if level + 1 < self.partition.levels and not self._summaries(level, part).exists():
                    self._write_summaries(level, part)
            LOG.info("level %d: %d parts", level, self.partition.parts(level))

    def go_down(self) -> None:
        """Write the final segments of the parts of every level but the lowest, where they are computed at each use."""
        for level in range(self.partition.levels - 1, 0, -1):
            for part in range(self.partition.parts(level)):
                if not self._finals(level, part).exists():
                    self._write_finals(level, part)

    @cached_property
    def _counts(self) -> dict[str, Any]:
        """Edges read, voxels, and the number of rows in each file."""
        return read_sealed(self.folder / "dealt.json", f"remove {self.folder} and run segment again")

    def _facts(self, number: int) -> SegmentationFacts:
        path = self.folder / f"voxels-{number}.tmp"
        with path.open("wb") as file:
            for part in range(self.partition.parts(0)):
                loaded = self._load(0, part)
                roots, segments = self._final(loaded, 0, part, number)
                own = np.flatnonzero((roots == np.arange(len(roots))) & (segments.ids == loaded.ids))
                file.write(segments.voxels[own].tobytes())
        try:
            return facts_of_voxels(self.thresholds[number], np.memmap(path, "<u8", "r"), self.min_segment_vox)
        finally:
            path.unlink()

    def _lut_slice(self, number: int, part: int) -> LutSlice:
        folder = self._part(0, part)
        find_segments = partial(self._segment_ids, number, part)
        return LutSlice(map_array(folder / "ids.npy"), map_array(folder / "voxels.npy"), find_segments)

    def _segment_ids(self, number: int, part: int) -> UInt64s:
        roots, segments = self._final(self._load(0, part), 0, part, number)
        return np.take(np.where(segments.voxels < self.min_segment_vox, np.uint64(0), segments.ids), roots)

    def _final(self, loaded: Part, level: int, part: int, number: int) -> tuple[NDArray[Any], Segments]:
        """Roots within a part and final segments at them, at a threshold."""
        roots = next(loaded.forest.roots(number + 1, first=number))
        return roots, loaded.final(roots, self._known(level, part, number), self._at_boundary(level, part, number))

    def _write_part(self, level: int, part: int) -> None:
        ids, reach, voxels = self._nodes_of_part(level, part)
        forest = self._forest_over(ids, level, part)
        boundary = np.flatnonzero(reach > level)
        arrays: dict[str, NDArray[Any]] = {"ids": ids, "outer": boundary, "reach": reach[boundary], "voxels": voxels}
        arrays |= {"u": forest.u, "v": forest.v, "level": forest.level}
        with appearing_folder(self._part(level, part)) as folder:
            for name, values in arrays.items():
                write_array(folder / f"{name}.npy", values.shape, values.dtype, [values])

    def _nodes_of_part(self, level: int, part: int) -> tuple[UInt64s, NDArray[np.uint8], UInt64s]:
        """Ids ascending, the highest level of an edge at each (0: none leaves level 0), voxels (level 0 only)."""
        if level:
            parts = [self._part(level - 1, below) for below in self.partition.below(level, part)]
            boundary_ids = [map_array(folder / "ids.npy")[map_array(folder / "outer.npy")] for folder in parts]
            reach = np.concatenate([map_array(folder / "reach.npy") for folder in parts])
            return np.concatenate(boundary_ids), reach, np.zeros(0, np.uint64)
        rows = _batches(self._rows("nodes", 0, part, NODE))
        sizes = sum_nodes((np.ascontiguousarray(batch["id"]), batch["voxels"]) for batch in rows)
        reach = np.zeros(len(sizes.ids), np.uint8)
        sorted_ids = SortedIds(sizes.ids)
        for batch in _batches(self._rows("ends", 0, part, END)):
            np.maximum.at(reach, positions_of(np.ascontiguousarray(batch["id"]), sorted_ids), batch["level"])
        return sizes.ids, reach, sizes.voxels.view(np.uint64)

    def _forest_over(self, ids: UInt64s, level: int, part: int) -> Forest:
        if not len(ids):  # parts without edges to other parts
            return Forest.empty()
        sweep = ThresholdSweep(ids, self.thresholds, self.buffer_edges)
        for rows in (self._rows("edges", level, part, EDGE), *self._summary_edges(level, part)):
            for batch in _batches(rows):
                sweep.add(*(np.ascontiguousarray(batch[name]) for name in EDGE.names or ()))
        return sweep.forest()

    def _summary_edges(self, level: int, part: int) -> Iterator[NDArray[Any]]:
        if level:
            for below in self.partition.below(level, part):
                yield map_array(self._summaries(level - 1, below) / "edges.npy")

    def _write_summaries(self, level: int, part: int) -> None:
        loaded = self._load(level, part)
        edges: list[NDArray[Any]] = [np.zeros(0, EDGE)]

        def segments() -> Iterator[UInt64s]:
            """Per threshold: ids and voxels (2, b) of the segments at the boundary nodes; collects their edges."""
            summaries = loaded.summaries(len(self.thresholds), partial(self._known, level, part))
            for threshold, summary in zip(self.thresholds, summaries, strict=True):
                edges.append(_edge_rows(summary, threshold))
                yield np.stack([summary.segments.ids, summary.segments.voxels])

        with appearing_folder(self._summaries(level, part)) as folder:
            shape = (len(self.thresholds), 2, len(loaded.boundary))
            write_array(folder / "segments.npy", shape, np.uint64, segments())
            rows = np.concatenate(edges)
            write_array(folder / "edges.npy", rows.shape, EDGE, [rows])

    def _write_finals(self, level: int, part: int) -> None:
        loaded = self._load(level, part)

        def finals() -> Iterator[UInt64s]:
            """Per threshold: ids and voxels (2, n) of the final segments of the nodes."""
            for number, roots in enumerate(loaded.forest.roots(len(self.thresholds))):
                known, at_boundary = self._known(level, part, number), self._at_boundary(level, part, number)
                segments = loaded.final(roots, known, at_boundary)
                yield np.stack([segments.ids[roots], segments.voxels[roots]])

        shape = (len(self.thresholds), 2, len(loaded.ids))
        write_array(self._finals(level, part), shape, np.uint64, finals())

    def _known(self, level: int, part: int, number: int) -> Segments:
        """Segments of the nodes of a part before it joins them."""
        if not level:
            folder = self._part(0, part)
            return Segments(map_array(folder / "ids.npy"), map_array(folder / "voxels.npy"))
        below = [self._summaries(level - 1, p) / "segments.npy" for p in self.partition.below(level, part)]
        return Segments(*np.concatenate([map_array(path)[number] for path in below], axis=1))

    def _at_boundary(self, level: int, part: int, number: int) -> Segments:
        """Final segments of the boundary nodes of a part."""
        if level + 1 == self.partition.levels:
            return Segments(np.zeros(0, np.uint64), np.zeros(0, np.uint64))
        above = part >> FAN_BITS
        begin = sum(self._boundary_nodes(level, p) for p in self.partition.below(level + 1, above) if p < part)
        end = begin + self._boundary_nodes(level, part)
        return Segments(*map_array(self._finals(level + 1, above))[number, :, begin:end])

    def _boundary_nodes(self, level: int, part: int) -> int:
        return map_array(self._part(level, part) / "outer.npy").size

    def _load(self, level: int, part: int) -> Part:
        folder = self._part(level, part)
        ids, boundary, u, v, levels = (map_array(folder / f"{n}.npy") for n in ("ids", "outer", "u", "v", "level"))
        return Part(ids, Forest(len(ids), u, v, levels), boundary)

    def _rows(self, kind: str, level: int, part: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        return read_rows(self.folder, kind, self.partition.number(level, part), dtype, self._counts["rows"])

    def _part(self, level: int, part: int) -> Path:
        return self.folder / f"part-{self.partition.number(level, part)}"

    def _summaries(self, level: int, part: int) -> Path:
        return self.folder / f"summary-{self.partition.number(level, part)}"

    def _finals(self, level: int, part: int) -> Path:
        return self.folder / f"final-{self.partition.number(level, part)}.npy"


def _batches(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (rows[begin : begin + _BATCH_ROWS] for begin in range(0, len(rows), _BATCH_ROWS))


def _edge_rows(summary: BoundarySummary, score: float) -> NDArray[Any]:
    rows = np.empty(len(summary.u), EDGE)
    rows["u"], rows["v"], rows["score"] = summary.u, summary.v, score
    return rows
