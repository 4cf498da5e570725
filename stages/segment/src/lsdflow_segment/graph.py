"""The region adjacency graph: where it comes from, its nodes and edges block by block, and the segments found in it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput
from lsdflow_contract.experiment import did_you_mean
from lsdflow_contract.failed_blocks import missing_in_result
from lsdflow_contract.graph import MAX_ID, NODES_COLLECTION, RagEdges, RagNodes, edges_collection
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_runtime.store.rag_store import RagStore
from lsdflow_segment.components import BUFFER_EDGES, ThresholdSweep
from lsdflow_segment.sizes import SegmentationFacts, SegmentSizes, SizeCount, UInt64s, facts_of_roots

Rows = TypeVar("Rows", RagNodes, RagEdges)


@dataclass(frozen=True)
class GraphSource:
    """The manifests of the stages that wrote the graph, and the merge functions whose edges it has."""

    watershed: Manifest
    agglomerate: Manifest
    merge_functions: tuple[str, ...]

    @classmethod
    def of(cls, layout: ExperimentLayout) -> GraphSource:
        """The finished graph of an experiment.

        Raises MissingInput if a stage that writes it has not finished, ContractMismatch if the edges belong to other
        fragments.
        """
        watershed, agglomerate = (read_manifest(layout, stage) for stage in ("watershed", "agglomerate"))
        made_from = agglomerate.inputs.get("watershed", watershed.identity)
        if made_from != watershed.identity:
            raise ContractMismatch(
                "edges and fragments come from different runs",
                where=layout.manifest("agglomerate"),
                wanted=f"fragments {watershed.identity[:12]}",
                found=f"edges of fragments {made_from[:12]}",
                fix="run agglomerate again",
            )
        return cls(watershed, agglomerate, merge_functions_of(agglomerate.config))

    def select(self, wanted: str | None) -> str:
        """The merge function `wanted`, or agglomerate's first. Raises MissingInput if it has no edges."""
        if wanted is None:
            return self.merge_functions[0]
        if wanted not in self.merge_functions:
            raise MissingInput(
                f"no edges of merge function {wanted}",
                wanted=f"edges_{wanted}",
                found=", ".join(f"edges_{m}" for m in self.merge_functions),
                fix=f"{did_you_mean(wanted, self.merge_functions)}; or add it to agglomerate.merge_functions",
            )
        return wanted

    @property
    def inputs(self) -> dict[str, str]:
        """Identities of the inputs, as a manifest records them."""
        return {"watershed": self.watershed.identity, "agglomerate": self.agglomerate.identity}


@dataclass(frozen=True)
class StoredGraph:
    """The nodes and edges of a finished graph, in the store."""

    store: RagStore
    source: GraphSource

    @cached_property
    def fragments(self) -> SegmentSizes:
        """All fragments and their voxels, in memory. Raises as read_nodes does."""
        return sum_nodes(self.read_nodes())

    def count_nodes(self) -> int:
        """Number of rows of nodes."""
        return self.store.count_nodes(self.source.watershed.key)

    def read_nodes(self) -> Iterator[tuple[UInt64s, UInt64s]]:
        """Ids and voxels of the nodes of each block, uint64 (n,) each.

        Raises BadData (65) if the rows of a block are missing or damaged, or have the id of another block.
        """
        written_by = self.source.watershed
        blocks = _blocks_of(written_by, NODES_COLLECTION)
        numbers = itertools.count() if blocks is None else blocks
        rows = _with_repair_hint(written_by, self.store.iter_nodes(written_by.key, blocks))
        for block, nodes in zip(numbers, rows, strict=False):
            _require_own_ids(written_by, block, nodes.id)
            if not nodes.id.all():
                raise BadData("a node of the graph has id 0, which is background", fix="run watershed again")
            yield nodes.id, nodes.size_vox

    def read_edges(self, merge_function: str) -> Iterator[RagEdges]:
        """The edges of a merge function, block by block.

        Raises BadData (65) if the rows of a block are missing or damaged, or have scores outside [0, 1].
        """
        written_by = self.source.agglomerate
        blocks = _blocks_of(written_by, edges_collection(merge_function))
        for rows in _with_repair_hint(written_by, self.store.iter_edges(written_by.key, merge_function, blocks)):
            _require_scores(rows)
            yield rows


@dataclass(frozen=True, eq=False)
class LutSlice:
    """Consecutive fragments of a lookup table, uint64 (n,) ascending, their voxels, uint64 (n,), and their segments.

    The segment is 0 for fragments of segments that are too small (`min_segment_vox`).
    """

    fragments: UInt64s
    voxels: UInt64s
    find_segments: Callable[[], UInt64s]

    @property
    def segments(self) -> UInt64s:
        """The segment of each fragment, uint64 (n,); computed at each access, so that no more than a slice is held."""
        return self.find_segments()


class SegmentGraph(Protocol):
    """A graph whose segments are known at every threshold: InMemoryGraph, or PartitionedGraph in files."""

    @property
    def nodes(self) -> int:
        """Number of fragments."""

    @property
    def edges(self) -> int:
        """Number of edges read."""

    @property
    def voxels(self) -> int:
        """Voxels of all fragments."""

    def facts(self) -> tuple[SegmentationFacts, ...]:
        """Facts of the segments of each threshold, ascending."""

    def luts(self) -> Iterator[Sequence[LutSlice]]:
        """The lookup table of each threshold, ascending, in slices in the order of the fragments."""


@dataclass(frozen=True, eq=False)
class InMemoryGraph:
    """Fragments uint64 (n,) ascending, their voxels uint64 (n,), a sweep of `thresholds` that has all edges, and the
    number of edges read. Segments of fewer than `min_segment_vox` voxels are 0 in the tables.
    """

    fragments: UInt64s
    sizes_vox: UInt64s
    sweep: ThresholdSweep
    thresholds: tuple[float, ...]
    edges: int
    min_segment_vox: int = 0

    @property
    def nodes(self) -> int:
        """Number of fragments."""
        return len(self.fragments)

    @property
    def voxels(self) -> int:
        """Voxels of all fragments."""
        return int(self.sizes_vox.sum())

    def facts(self) -> tuple[SegmentationFacts, ...]:
        """Facts of the segments of each threshold, ascending."""
        segmentations = zip(self.thresholds, self.sweep.roots(), strict=True)
        return tuple(facts_of_roots(t, roots, self.sizes_vox, self.min_segment_vox) for t, roots in segmentations)

    def luts(self) -> Iterator[Sequence[LutSlice]]:
        """The lookup table of each threshold, in one slice."""
        for roots in self.sweep.roots():
            yield [LutSlice(self.fragments, self.sizes_vox, partial(self._segments, roots))]

    def _segments(self, roots: NDArray[Any]) -> UInt64s:
        ids = self.fragments
        if self.min_segment_vox:
            # A sum of whole numbers in float64 is exact below 2^53 voxels.
            voxels = np.bincount(roots, self.sizes_vox, len(ids))
            ids = np.where(voxels < self.min_segment_vox, np.uint64(0), ids)
        return np.take(ids, roots)


def find_in_memory(
    fragments: SegmentSizes,
    edges: Iterable[RagEdges],
    thresholds: Sequence[float],
    buffer_edges: int = BUFFER_EDGES,
    min_segment_vox: int = 0,
) -> InMemoryGraph:
    """Find the segments of all thresholds, ascending, from one reading of the edges. Raises as ThresholdSweep does."""
    sweep = ThresholdSweep(fragments.ids, thresholds, buffer_edges)
    count = 0
    for rows in edges:
        sweep.add(rows.u, rows.v, rows.merge_score)
        count += len(rows)
    voxels = fragments.voxels.view(np.uint64)
    return InMemoryGraph(fragments.ids, voxels, sweep, tuple(thresholds), count, min_segment_vox)


def sizes_of_segments(lut: Sequence[LutSlice]) -> SegmentSizes:
    """Voxels of each segment of a lookup table, added up from its fragments."""
    count = SizeCount()
    for lut_slice in lut:
        count.add_counts(lut_slice.segments, lut_slice.voxels.view(np.int64))
    return count.sizes()


def merge_functions_of(config: dict[str, Any]) -> tuple[str, ...]:
    """Merge functions that an agglomerate config names, under `merge_functions` or `merge_function`."""
    named = config.get("merge_functions") or [config.get("merge_function", "")]
    functions = tuple(str(name) for name in ([named] if isinstance(named, str) else named) if name)
    if not functions:
        raise BadData("agglomerate's manifest names no merge function", found=str(sorted(config)))
    return functions


def sum_nodes(nodes: Iterable[tuple[UInt64s, UInt64s]]) -> SegmentSizes:
    """All fragments and their voxels. A fragment in the rows of several blocks gets the sum of its voxels."""
    count = SizeCount()
    for ids, voxels in nodes:
        count.add_counts(ids, voxels.astype(np.int64))
    return count.sizes()


def _require_own_ids(watershed: Manifest, block: int, ids: UInt64s) -> None:
    """Each id once in a block, and in mode `blocks` from the block's own range: else it may mean two fragments."""
    mode, size = watershed.config.get("id_mode"), int(watershed.config.get("resolved", {}).get("voxels_per_block", 0))
    if mode not in ("blocks", "seamless") or not size:
        return
    first, last = (block * size + 1, (block + 1) * size) if mode == "blocks" else (1, MAX_ID)
    foreign = ids[(ids < first) | (ids > last)]
    repeated = np.sort(ids)[1:][np.diff(np.sort(ids)) == 0]
    if len(foreign) or len(repeated):
        wrong = int(foreign[0] if len(foreign) else repeated[0])
        owner = "background" if not wrong else f"block {(wrong - 1) // size}" if mode == "blocks" else f"block {block}"
        stage = watershed.writer.stage
        raise BadData(
            f"block {block} of the graph has nodes with ids that are not its own, or twice the same",
            wanted=f"ids {first} to {last}, each once",
            found=f"{len(foreign) + len(repeated)} such ids; id {wrong} belongs to {owner}",
            fix=f"lsdflow repair EXPERIMENT; if that finds nothing: remove store/blocks/{stage}, and {stage} run",
        )


def _blocks_of(written_by: Manifest, collection: str) -> list[int] | None:
    """The blocks that must have rows: all but accepted failed ones. None for graphs imported by a version that did not
    count them.
    """
    facts = written_by.facts
    blocks = facts.get("blocks", facts.get("imported", {}).get(collection, {}).get("blocks"))
    failed = {block.block for block in missing_in_result(written_by)}
    return None if blocks is None else [number for number in range(int(blocks)) if number not in failed]


def _with_repair_hint(written_by: Manifest, rows: Iterator[Rows]) -> Iterator[Rows]:
    """The rows; an error for missing or damaged ones names the command that recomputes them."""
    imported = bool(written_by.config.get("imported"))
    try:
        yield from rows
    except BadData as error:
        error.fix = "import the graph again" if imported else "recompute it: lsdflow repair EXPERIMENT"
        raise


def _require_scores(edges: RagEdges) -> None:
    scores = edges.merge_score
    wrong = ~np.isnan(scores) & ~((scores >= 0) & (scores <= 1))
    if wrong.any():
        raise BadData(
            f"{int(wrong.sum())} edges have a score outside [0, 1]",
            wanted="score = 1 - affinity, 0 to 1, or none",
            found=f"{float(scores[wrong][0])}",
            fix="run agglomerate again",
        )
