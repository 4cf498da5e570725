"""segment import-graph: a graph that the LSD scripts made, from their database or a dump, into the experiment's store.

sources --batches--> columns --checks--> rows of the store --> manifests of watershed and agglomerate --> segment run

The old nodes do not tell their voxels: they are counted in the fragments, which must lie in fragments.zarr. Until both
manifests are written, last, no stage sees the graph; an import that was stopped is begun again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lsdflow_command.progress import Progress
from lsdflow_contract.arrays import FRAGMENTS
from lsdflow_contract.errors import BadData, MissingInput, NotOurs, StageError
from lsdflow_contract.experiment import Experiment, did_you_mean
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import Manifest, Writer, read_manifest, work_key
from lsdflow_runtime.blocks import pieces
from lsdflow_runtime.mongo_foreign import ForeignGraph, ForeignRows, edge_columns, node_columns, open_foreign, works_in
from lsdflow_runtime.rag_store import checksum_of_edges, checksum_of_nodes
from lsdflow_runtime.stage_lock import stage_lock
from lsdflow_runtime.stores import Store, open_store
from lsdflow_runtime.target import target_grid
from lsdflow_runtime.volumes import Volume, open_volume
from lsdflow_segment.imported import EdgeImport, ImportedIds, NodeImport
from lsdflow_segment.inputs import STAGE
from lsdflow_segment.sizes import SegmentSizes, SizeCount

LOG = logging.getLogger("lsdflow.segment")
# Where a user puts the fragments of a graph.
USERS_FRAGMENTS = "fragments.zarr"


@dataclass(frozen=True)
class ImportOptions:
    """What to import: paths, the database of a server, merge functions (none = all); whether the fragments are a
    part of the volume of the graph, and whether another graph is replaced.
    """

    sources: tuple[Path, ...]
    database: str | None = None
    merge_functions: tuple[str, ...] = ()
    cut_out: bool = False
    replace: bool = False


@dataclass(frozen=True)
class _Import:
    """What one import works on; `facts` of each collection come in as it is read."""

    experiment: Experiment
    graph: ForeignGraph
    edges: Mapping[str, ForeignRows]
    fragments: Volume
    store: Store
    cut_out: bool
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def keys(self) -> dict[str, str]:
        """Key of the rows, by the stage whose place they take."""
        origin = {"nodes": self.graph.nodes.where, "edges": {name: rows.where for name, rows in self.edges.items()}}
        parameters = {"imported": origin, "cut_out": self.cut_out}
        return {stage: work_key(stage, parameters, {}) for stage in ("watershed", "agglomerate")}


def import_graph(experiment: Experiment, options: ImportOptions) -> None:
    """Read the graph, check it, and leave it as watershed and agglomerate would have.

    Raises NotOurs (73) if the experiment has another graph already, BadData (65) with counts of everything wrong.
    """
    fragments = _fragments(experiment)
    graph = open_foreign(options.sources, options.database, experiment.store.retry_s)
    edges, store = _wanted(graph, options.merge_functions), open_store(experiment)
    work = _Import(experiment, graph, edges, fragments, store, options.cut_out)
    with ExitStack() as locks:
        for stage in (*work.keys, STAGE):
            locks.enter_context(stage_lock(experiment.layout.stage_runs(stage)))
        if _is_there(work) and not options.replace:
            LOG.info("this graph is imported already; --replace reads it again")
            return
        _require_place(work, options.replace)
        _warn_of_blocks(graph)
        with _cleared(work):
            _import(work)
        if options.replace:
            for stage, key in work.keys.items():
                work.store.drop_others(stage, {key})


def _import(work: _Import) -> None:
    ids, nodes = _import_nodes(work)
    edges = {name: _import_edges(work, name, ids) for name in work.edges}
    watershed, agglomerate = work.keys.values()
    made = hash_of([watershed, nodes])
    _leave(work, "watershed", made, {}, {})
    functions = {"merge_functions": list(work.edges)}
    _leave(work, "agglomerate", hash_of([agglomerate, made, edges]), functions, {"watershed": made})
    for name, read in work.facts.items():
        LOG.info("%s: %d of %d imported", name, read["documents"] - read["left_out"], read["documents"])
    LOG.info("the graph is imported; next: segment run")


def _import_nodes(work: _Import) -> tuple[ImportedIds, list[str]]:
    """Write the nodes; their ids, and the checksums of the blocks of rows."""
    nodes, checksums = None, []
    rows, key = work.graph.nodes, work.keys["watershed"]
    for number, documents in enumerate(_batches(rows)):
        columns = node_columns(documents, rows.where)
        if nodes is None:
            counted = work.cut_out or columns.size_vox is None
            nodes = NodeImport(_count(work.fragments) if counted else None, work.cut_out)
        taken = nodes.take(columns.id, columns.center_nm, columns.size_vox)
        work.store.rag.write_nodes(key, number, taken)
        checksums.append(checksum_of_nodes(taken))
    ids = (nodes or NodeImport(None)).finish(rows.where)
    work.facts["nodes"] = {**rows.provenance(), "left_out": len(ids.outside), "blocks": len(checksums)}
    return ids, checksums


def _import_edges(work: _Import, merge_function: str, ids: ImportedIds) -> list[str]:
    """Write the edges of a merge function; the checksums of the blocks of rows."""
    edges, checksums = EdgeImport(ids), []
    rows, key = work.edges[merge_function], work.keys["agglomerate"]
    for number, documents in enumerate(_batches(rows)):
        columns = edge_columns(documents, rows.where)
        taken = edges.take(columns.u, columns.v, columns.merge_score, columns.never)
        work.store.rag.write_edges(key, merge_function, number, taken)
        checksums.append(checksum_of_edges(taken))
    edges.finish(rows.where)
    read = {**rows.provenance(), "left_out": edges.left_out, "blocks": len(checksums)}
    work.facts[f"edges_{merge_function}"] = read
    return checksums


def _batches(rows: ForeignRows) -> Iterator[list[dict[str, Any]]]:
    works: set[object] = set()
    with Progress(f"import {rows.where}", total=rows.total, unit=rows.unit) as progress:
        for documents, amount in rows.batches():
            works |= works_in(documents)
            _require_one(works, rows.where)
            if documents:
                yield documents
            progress.advance(amount)


def _require_one(works: set[object], where: str) -> None:
    if len(works) > 1:
        raise BadData(
            "rows of several works of lsdflow",
            where=where,
            found=", ".join(sorted(map(str, works))),
            hint='dump one of them: mongodump --query \'{"key": "..."}\'',
        )


def _count(fragments: Volume) -> SegmentSizes:
    """Voxels of each fragment, chunk by chunk."""
    count, boxes = SizeCount(), list(pieces(fragments.box, fragments.chunk_shape_vox))
    with Progress("count voxels of fragments", total=len(boxes), unit="chunk") as progress:
        for box in boxes:
            count.add(fragments.read(box))
            progress.advance()
    return count.sizes()


def _leave(work: _Import, stage: str, identity: str, config: dict[str, Any], inputs: dict[str, str]) -> None:
    """The manifest that the next stage reads, in the place of the stage that would have made the rows."""
    layout = work.experiment.layout
    fragments = str(Path(work.fragments.where).relative_to(layout.root))
    ours = [name for name in work.facts if name.startswith("edges_") == (stage == "agglomerate")]
    manifest = Manifest(
        writer=Writer.of(STAGE),
        key=work.keys[stage],
        config={**config, "imported": True},
        inputs=inputs,
        outputs={"fragments": fragments} if stage == "watershed" else {},
        facts={"imported": {name: work.facts[name] for name in ours}},
        identity=identity,
    )
    manifest.write(layout, stage)


def _fragments(experiment: Experiment) -> Volume:
    """Those of watershed where it has finished, or of the user."""
    place = experiment.layout.root / USERS_FRAGMENTS, FRAGMENTS.dataset
    with suppress(MissingInput):
        place = read_manifest(experiment.layout, "watershed").output_array(experiment.layout, "fragments")
    try:
        return open_volume(*place, target_grid(experiment))
    except MissingInput as error:
        raise MissingInput(
            "a graph can be imported where its fragments lie",
            where=error.where,
            found=error.what,
            hint="run prepare, and put or link the fragments: fragments.zarr, array volumes/fragments",
        ) from error


def _wanted(graph: ForeignGraph, merge_functions: tuple[str, ...]) -> Mapping[str, ForeignRows]:
    for name in merge_functions:
        if name not in graph.edges:
            raise MissingInput(
                f"no edges of merge function {name}",
                where=graph.nodes.where,
                wanted=f"edges_{name}",
                found=", ".join(f"edges_{there}" for there in graph.edges),
                hint=did_you_mean(name, list(graph.edges)),
            )
    return {name: graph.edges[name] for name in merge_functions or graph.edges}


def _is_there(work: _Import) -> bool:
    layout = work.experiment.layout
    return all(
        layout.manifest(stage).exists() and read_manifest(layout, stage).key == key for stage, key in work.keys.items()
    )


def _require_place(work: _Import, replace: bool) -> None:
    """NotOurs (73) if the experiment has a graph that this import does not replace."""
    layout = work.experiment.layout
    for stage, key in work.keys.items():
        there = layout.manifest(stage).exists()
        if there and not replace and read_manifest(layout, stage).key != key:
            raise NotOurs(
                f"the experiment has the results of {stage} already",
                where=layout.manifest(stage),
                hint="import into an experiment of its own, or say --replace",
            )


@contextmanager
def _cleared(work: _Import) -> Iterator[None]:
    """Nothing of this graph before; nothing of it after an error either. Another graph stays until both are read."""
    layout = work.experiment.layout
    for stage, key in work.keys.items():
        work.store.begin(stage, key)
        if layout.manifest(stage).exists() and read_manifest(layout, stage).key == key:
            layout.manifest(stage).unlink()
    _drop(work)
    try:
        yield
    except StageError:
        _drop(work)
        raise


def _drop(work: _Import) -> None:
    for key in work.keys.values():
        work.store.rag.drop(key)


def _warn_of_blocks(graph: ForeignGraph) -> None:
    """The old scripts mark finished blocks only: fewer for the edges than for the nodes means lost edges."""
    done = {name: sum(len(documents) for documents, _ in rows.batches()) for name, rows in graph.blocks.items()}
    for name, count in done.items():
        LOG.info("%s: %d blocks were finished", name, count)
        extracted = done.get("blocks_extracted", 0)
        if name.startswith("blocks_agglomerated") and count < extracted:
            LOG.warning("WARNING: %s has %d of %d blocks: edges of the others are lost", name, count, extracted)
