"""segment import-graph: a graph that the LSD scripts made, from their database or a dump, into the experiment's store.

sources --batches--> columns --checks--> rows of the store --> manifests of watershed and agglomerate --> segment run

The old nodes have no sizes: voxels are counted in the fragments, which must be in fragments.zarr. No stage sees the
graph before both manifests are written, which happens last; an import that was stopped starts again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from lsdflow_command.experiment_lock import stage_lock
from lsdflow_command.progress import Progress
from lsdflow_contract.arrays import FRAGMENTS
from lsdflow_contract.errors import BadData, MissingInput, OutputConflict, StageError
from lsdflow_contract.experiment import Experiment, did_you_mean
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer, read_manifest, work_key
from lsdflow_runtime.blocks import pieces
from lsdflow_runtime.io.target import target_grid
from lsdflow_runtime.io.volumes import Volume, open_volume
from lsdflow_runtime.store.mongo_import import (
    ForeignGraph,
    ForeignRows,
    edge_columns,
    node_columns,
    open_foreign,
    works_in,
)
from lsdflow_runtime.store.rag_store import checksum_of_edges, checksum_of_nodes
from lsdflow_runtime.store.stores import Store, open_store
from lsdflow_segment.import_checks import EdgeCheck, ImportedIds, NodeCheck
from lsdflow_segment.inputs import STAGE
from lsdflow_segment.sizes import SegmentSizes, SizeCount

LOG = logging.getLogger("lsdflow.segment")
# Where a user puts the fragments of a graph.
USERS_FRAGMENTS = "fragments.zarr"


@dataclass(frozen=True)
class ImportOptions:
    """What to import: paths, the database of a server, merge functions (none = all); whether the fragments are only a
    part of the volume of the graph, and whether another graph is replaced.
    """

    sources: tuple[Path, ...]
    database: str | None = None
    merge_functions: tuple[str, ...] = ()
    cut_out: bool = False
    replace: bool = False


def import_graph(experiment: Experiment, options: ImportOptions) -> None:
    """Read the graph, check it, and write what watershed and agglomerate would have written.

    Raises OutputConflict (73) if the experiment has another graph, BadData (65) with counts of everything wrong.
    """
    fragments = _open_fragments(experiment.layout)
    graph = open_foreign(options.sources, options.database, experiment.store.retry_s)
    edges = _select_edges(graph, options.merge_functions)
    importer = GraphImporter(experiment.layout, open_store(experiment), graph, edges, fragments, options.cut_out)
    with ExitStack() as locks:
        for stage in (*importer.keys, STAGE):
            locks.enter_context(stage_lock(experiment.layout, stage))
        if importer.is_finished() and not options.replace:
            LOG.info("this graph is imported already; --replace reads it again")
            return
        if not options.replace:
            importer.require_no_other_graph()
        _warn_of_unfinished_blocks(graph)
        importer.run()
        if options.replace:
            for stage, key in importer.keys.items():
                importer.store.drop_others(stage, {key})


@dataclass(frozen=True)
class GraphImporter:
    """One import: from `graph`, of which `edges` (by merge function) are wanted, into `store`.

    `fragments`: the volume from which the graph was made, or a part of it (`cut_out`). `facts` of each collection are
    added as it is read.
    """

    layout: ExperimentLayout
    store: Store
    graph: ForeignGraph
    edges: Mapping[str, ForeignRows]
    fragments: Volume
    cut_out: bool
    facts: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def keys(self) -> dict[str, str]:
        """Keys of the rows, by the stage that they replace."""
        origin = {"nodes": self.graph.nodes.where, "edges": {name: rows.where for name, rows in self.edges.items()}}
        parameters = {"imported": origin, "cut_out": self.cut_out}
        return {stage: work_key(stage, parameters, {}) for stage in ("watershed", "agglomerate")}

    def is_finished(self) -> bool:
        """True if both manifests are those of this import."""
        return all(self._current_key(stage) == key for stage, key in self.keys.items())

    def require_no_other_graph(self) -> None:
        """Raise OutputConflict (73) if the experiment has a graph that this import does not make."""
        for stage, key in self.keys.items():
            if self._current_key(stage) not in (None, key):
                raise OutputConflict(
                    f"the experiment has the results of {stage} already",
                    where=self.layout.manifest(stage),
                    fix="import into an experiment of its own, or add --replace",
                )

    def run(self) -> None:
        """Write nodes, edges and both manifests. After an error, no row of this graph is left."""
        with self._cleared():
            ids, nodes = self._import_nodes()
            edges = {name: self._import_edges(name, ids) for name in self.edges}
            watershed, agglomerate = self.keys.values()
            fragments = hash_of([watershed, nodes])
            self._write_manifest("watershed", fragments, {}, {})
            functions = {"merge_functions": list(self.edges)}
            scored = hash_of([agglomerate, fragments, edges])
            self._write_manifest("agglomerate", scored, functions, {"watershed": fragments})
        for name, read in self.facts.items():
            LOG.info("%s: %d of %d imported", name, read["documents"] - read["left_out"], read["documents"])
        LOG.info("the graph is imported; next: segment run")

    def _current_key(self, stage: str) -> str | None:
        """The key of the result that the experiment has of a stage, if any."""
        return read_manifest(self.layout, stage).key if self.layout.manifest(stage).exists() else None

    def _import_nodes(self) -> tuple[ImportedIds, list[str]]:
        """Write the nodes; returns their ids, and the checksums of the blocks of rows."""
        check, checksums = None, []
        rows, key = self.graph.nodes, self.keys["watershed"]
        for number, documents in enumerate(_batches(rows)):
            columns = node_columns(documents, rows.where)
            if check is None:
                counted = self.cut_out or columns.size_vox is None
                check = NodeCheck(_count_voxels(self.fragments) if counted else None, self.cut_out)
            nodes = check.add(columns.id, columns.center_nm, columns.size_vox)
            self.store.rag.write_nodes(key, number, nodes)
            checksums.append(checksum_of_nodes(nodes))
        ids = (check or NodeCheck(None)).finish(rows.where)
        self.facts["nodes"] = {**rows.provenance(), "left_out": len(ids.outside), "blocks": len(checksums)}
        return ids, checksums

    def _import_edges(self, merge_function: str, ids: ImportedIds) -> list[str]:
        """Write the edges of a merge function; returns the checksums of the blocks of rows."""
        check, checksums = EdgeCheck(ids), []
        rows, key = self.edges[merge_function], self.keys["agglomerate"]
        for number, documents in enumerate(_batches(rows)):
            columns = edge_columns(documents, rows.where)
            edges = check.add(columns.u, columns.v, columns.merge_score, columns.never)
            self.store.rag.write_edges(key, merge_function, number, edges)
            checksums.append(checksum_of_edges(edges))
        check.finish(rows.where)
        read = {**rows.provenance(), "left_out": check.left_out, "blocks": len(checksums)}
        self.facts[f"edges_{merge_function}"] = read
        return checksums

    def _write_manifest(self, stage: str, identity: str, config: dict[str, Any], inputs: dict[str, str]) -> None:
        """The manifest that the next stage reads, in place of that of the stage that would have made the rows."""
        fragments = str(Path(self.fragments.where).relative_to(self.layout.root))
        collections = [name for name in self.facts if name.startswith("edges_") == (stage == "agglomerate")]
        manifest = Manifest(
            writer=Writer.of(STAGE),
            key=self.keys[stage],
            config={**config, "imported": True},
            inputs=inputs,
            outputs={"fragments": fragments} if stage == "watershed" else {},
            facts={"imported": {name: self.facts[name] for name in collections}},
            identity=identity,
        )
        manifest.write(self.layout, stage)

    @contextmanager
    def _cleared(self) -> Iterator[None]:
        """No rows of this graph before, and none after an error. Another graph stays until both are read."""
        for stage, key in self.keys.items():
            self.store.begin(stage, key)
            if self._current_key(stage) == key:
                self.layout.manifest(stage).unlink()
        self._drop_rows()
        try:
            yield
        except StageError:
            self._drop_rows()
            raise

    def _drop_rows(self) -> None:
        for key in self.keys.values():
            self.store.rag.drop(key)


def _open_fragments(layout: ExperimentLayout) -> Volume:
    """Those of watershed if it has finished, else those of the user."""
    place = layout.root / USERS_FRAGMENTS, FRAGMENTS.dataset
    with suppress(MissingInput):
        place = read_manifest(layout, "watershed").output_array(layout, "fragments")
    try:
        return open_volume(*place, target_grid(layout))
    except MissingInput as error:
        raise MissingInput(
            "the import of a graph needs its fragments",
            where=error.where,
            found=error.what,
            fix="run prepare, and put or link the fragments: fragments.zarr, array volumes/fragments",
        ) from error


def _select_edges(graph: ForeignGraph, merge_functions: tuple[str, ...]) -> Mapping[str, ForeignRows]:
    for name in merge_functions:
        if name not in graph.edges:
            raise MissingInput(
                f"no edges of merge function {name}",
                where=graph.nodes.where,
                wanted=f"edges_{name}",
                found=", ".join(f"edges_{there}" for there in graph.edges),
                fix=did_you_mean(name, list(graph.edges)),
            )
    return {name: graph.edges[name] for name in merge_functions or graph.edges}


def _batches(rows: ForeignRows) -> Iterator[list[dict[str, Any]]]:
    """Batches of documents. Raises BadData if they come from several results of lsdflow."""
    results: set[object] = set()
    with Progress(f"import {rows.where}", total=rows.total, unit=rows.unit) as progress:
        for documents, amount in rows.batches():
            results |= works_in(documents)
            if len(results) > 1:
                raise BadData(
                    "rows of several results of lsdflow",
                    where=rows.where,
                    found=", ".join(sorted(map(str, results))),
                    fix='dump one of them: mongodump --query \'{"key": "..."}\'',
                )
            if documents:
                yield documents
            progress.advance(amount)


def _count_voxels(fragments: Volume) -> SegmentSizes:
    """Voxels of each fragment, chunk by chunk."""
    count, boxes = SizeCount(), list(pieces(fragments.box, fragments.chunk_shape_vox))
    with Progress("count voxels of fragments", total=len(boxes), unit="chunk") as progress:
        for box in boxes:
            count.add(fragments.read(box))
            progress.advance()
    return count.sizes()


def _warn_of_unfinished_blocks(graph: ForeignGraph) -> None:
    """The old scripts mark finished blocks only: fewer for the edges than for the nodes means lost edges."""
    done = {name: sum(len(documents) for documents, _ in rows.batches()) for name, rows in graph.blocks.items()}
    for name, count in done.items():
        LOG.info("%s: %d blocks were finished", name, count)
        extracted = done.get("blocks_extracted", 0)
        if name.startswith("blocks_agglomerated") and count < extracted:
            LOG.warning("WARNING: %s has %d of %d blocks: edges of the others are lost", name, count, extracted)
