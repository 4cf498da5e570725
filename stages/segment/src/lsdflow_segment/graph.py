"""Reading the region adjacency graph once: nodes into columns, edges streamed into the sweep."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData, ConfigError, ContractMismatch, MissingInput
from lsdflow_contract.experiment import Experiment, did_you_mean
from lsdflow_contract.failed_blocks import missing_in_result
from lsdflow_contract.graph import (
    DEFAULT_MERGE_FUNCTIONS,
    MAX_ID,
    NODES_COLLECTION,
    RagEdges,
    RagNodes,
    edges_collection,
)
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_runtime.store.rag_store import RagStore
from lsdflow_segment.advice import PartitionFacts, partition_facts
from lsdflow_segment.components import ThresholdSweep
from lsdflow_segment.lut_pieces import Piece
from lsdflow_segment.sizes import SegmentSizes, SizeCount

Rows = TypeVar("Rows", RagNodes, RagEdges)


@dataclass(frozen=True)
class GraphSource:
    """Where the graph comes from: the manifests of its writers and the merge functions whose edges are there."""

    watershed: Manifest
    agglomerate: Manifest
    merge_functions: tuple[str, ...]

    def chosen(self, wanted: str | None) -> str:
        """The merge function asked for, or agglomerate's first. MissingInput if it has no edges."""
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


class SegmentGraph(Protocol):
    """A graph whose segments are found, in one memory (SweptGraph) or in parts (PartedGraph)."""

    @property
    def nodes(self) -> int:
        """Number of fragments."""

    @property
    def edges(self) -> int:
        """Number of edges read."""

    @property
    def voxels(self) -> int:
        """Voxels of all fragments."""

    def facts(self) -> tuple[PartitionFacts, ...]:
        """Facts of the partition of each threshold, ascending."""

    def tables(self) -> Iterator[Sequence[Piece]]:
        """For each threshold the lookup table, in pieces of ascending fragments."""


@dataclass(frozen=True, eq=False)
class SweptGraph:
    """Fragments uint64 (n,) ascending, their voxels uint64 (n,), the loaded sweep of `thresholds`, and the number of
    edges read.
    """

    fragments: NDArray[np.uint64]
    sizes_vox: NDArray[np.uint64]
    sweep: ThresholdSweep
    thresholds: tuple[float, ...]
    edges: int

    @property
    def nodes(self) -> int:
        """Number of fragments."""
        return len(self.fragments)

    @property
    def voxels(self) -> int:
        """Voxels of all fragments."""
        return int(self.sizes_vox.sum())

    def facts(self) -> tuple[PartitionFacts, ...]:
        """Facts of the partition of each threshold, ascending."""
        partitions = zip(self.thresholds, self.sweep.partitions(), strict=True)
        return tuple(partition_facts(threshold, positions, self.sizes_vox) for threshold, positions in partitions)

    def tables(self) -> Iterator[Sequence[Piece]]:
        """For each threshold the lookup table, in one piece."""
        for positions in self.sweep.partitions():
            yield [Piece(self.fragments, self.sizes_vox, partial(np.take, self.fragments, positions))]


def graph_source(experiment: Experiment) -> GraphSource:
    """The finished graph of the experiment. MissingInput if a writer has not finished, ContractMismatch if
    the edges were made from other fragments.
    """
    watershed = read_manifest(experiment.layout, "watershed")
    agglomerate = read_manifest(experiment.layout, "agglomerate")
    made_from = agglomerate.inputs.get("watershed", watershed.identity)
    if made_from != watershed.identity:
        raise ContractMismatch(
            "edges and fragments come from different runs",
            where=experiment.layout.manifest("agglomerate"),
            wanted=f"fragments {watershed.identity[:12]}",
            found=f"edges of fragments {made_from[:12]}",
            fix="run agglomerate again",
        )
    return GraphSource(watershed, agglomerate, merge_functions_of(agglomerate.config))


def merge_functions_of(config: dict[str, Any]) -> tuple[str, ...]:
    """Merge functions that an agglomerate config names, under `merge_functions` or `merge_function`."""
    named = config.get("merge_functions") or [config.get("merge_function", "")]
    functions = tuple(str(name) for name in ([named] if isinstance(named, str) else named) if name)
    if not functions:
        raise BadData("agglomerate's manifest names no merge function", found=str(sorted(config)))
    return functions


def read_fragments(store: RagStore, source: GraphSource) -> SegmentSizes:
    """Fragments and their voxels; one that several blocks describe counts with the sum of its voxels.

    BadData (65) if the rows of a block are lost or damaged, or hold the id of another block.
    """
    count = SizeCount()
    for ids, voxels in read_nodes(store, source):
        count.add_counts(ids, voxels.astype(np.int64))
    return count.sizes()


def read_nodes(store: RagStore, source: GraphSource) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.uint64]]]:
    """Ids and voxels of the nodes of each block, uint64 (n,) each. BadData as read_fragments."""
    made = source.watershed
    blocks = _blocks_of(made, NODES_COLLECTION)
    numbers = itertools.count() if blocks is None else blocks
    for block, nodes in zip(numbers, _naming(made, store.iter_nodes(made.key, blocks)), strict=False):
        _require_own_ids(made, block, nodes.id)
        if not nodes.id.all():
            raise BadData("a node of the graph has id 0, which is background", fix="run watershed again")
        yield nodes.id, nodes.size_vox


def read_edges(store: RagStore, source: GraphSource, merge_function: str) -> Iterator[RagEdges]:
    """The edges of a merge function, block by block. BadData (65) if the rows of a block are lost or damaged, or have
    scores outside [0, 1].
    """
    made = source.agglomerate
    blocks = _blocks_of(made, edges_collection(merge_function))
    for rows in _naming(made, store.iter_edges(made.key, merge_function, blocks)):
        _require_scores(rows)
        yield rows


def _require_own_ids(made: Manifest, block: int, ids: NDArray[np.uint64]) -> None:
    """Each id once in a block; in mode `blocks` from its own range: another one may stand for two fragments."""
    mode, size = made.config.get("id_mode"), int(made.config.get("resolved", {}).get("voxels_per_block", 0))
    if mode not in ("blocks", "seamless") or not size:
        return
    first, last = (block * size + 1, (block + 1) * size) if mode == "blocks" else (1, MAX_ID)
    foreign = ids[(ids < first) | (ids > last)]
    repeated = np.sort(ids)[1:][np.diff(np.sort(ids)) == 0]
    if len(foreign) or len(repeated):
        wrong = int(foreign[0] if len(foreign) else repeated[0])
        owner = "background" if not wrong else f"block {(wrong - 1) // size}" if mode == "blocks" else f"block {block}"
        raise BadData(
            f"block {block} of the graph has nodes with ids that are not its own, or twice the same",
            wanted=f"ids {first} to {last}, each once",
            found=f"{len(foreign) + len(repeated)} such ids; id {wrong} belongs to {owner}",
            fix=f"make it again: {made.writer.stage} repair; if that finds nothing: remove "
            f"store/blocks/{made.writer.stage}, and {made.writer.stage} run",
        )


def _blocks_of(made: Manifest, collection: str) -> list[int] | None:
    """The blocks that must have rows, all but accepted failed ones; None for graphs imported by a version that did not
    count them.
    """
    blocks = made.facts.get("blocks", made.facts.get("imported", {}).get(collection, {}).get("blocks"))
    failed = {block.block for block in missing_in_result(made)}
    return None if blocks is None else [number for number in range(int(blocks)) if number not in failed]


def _naming(made: Manifest, rows: Iterator[Rows]) -> Iterator[Rows]:
    """Rows; one that is lost or damaged is told with the stage that makes it again."""
    imported = bool(made.config.get("imported"))
    try:
        yield from rows
    except BadData as error:
        error.fix = "import the graph again" if imported else f"make it again: {made.writer.stage} repair"
        raise


def load_sweep(
    edges: Iterable[RagEdges], fragments: SegmentSizes, thresholds: Sequence[float], buffer_edges: int
) -> SweptGraph:
    """Read the edges once into a sweep of all thresholds."""
    sweep = ThresholdSweep(fragments.ids, thresholds, buffer_edges)
    count = 0
    for rows in edges:
        sweep.add(rows.u, rows.v, rows.merge_score)
        count += len(rows)
    return SweptGraph(fragments.ids, fragments.voxels.view(np.uint64), sweep, tuple(thresholds), count)


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


def require_merge_function(experiment: Experiment, wanted: str | None) -> None:
    """ConfigError (78) for edges that agglomerate will not make; once they are made, GraphSource.chosen decides."""
    made = experiment.tables.get("agglomerate", {}).get("merge_functions", list(DEFAULT_MERGE_FUNCTIONS))
    computed = experiment.layout.manifest("agglomerate").exists() and experiment.descriptions is None
    if wanted is None or computed or not isinstance(made, list):
        return
    if wanted not in made:
        raise ConfigError(
            "agglomerate does not compute this merge function",
            where="segment.merge_function",
            wanted=f"one of agglomerate.merge_functions: {', '.join(map(str, made))}",
            found=wanted,
            fix=f"add {wanted} to agglomerate.merge_functions, or choose one of these",
        )
