"""segment: read the graph once, write all tables, choose a threshold, relabel the fragments, verify.

graph --sweep--> facts of all thresholds --advice--> threshold
                      |                                 |
                      v                                 v
                 luts/<graph>/*.npz    fragments --relabel--> volumes/segmentation
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import BadData, MissingInput, StageError, problems_of
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import storage_errors
from lsdflow_contract.geometry import region_box
from lsdflow_contract.hashing import hash_of, hash_of_file
from lsdflow_contract.lut import LUTS_FACT
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_contract.sealing import require_sha256
from lsdflow_runtime.blocks import block_plan
from lsdflow_runtime.engine.block_stage import BlockStage
from lsdflow_runtime.engine.block_task import BlockTask
from lsdflow_runtime.engine.blockwise import run_task
from lsdflow_runtime.engine.planning import describe_manifest, describe_outputs, plan_task
from lsdflow_runtime.io.target import knows_target, open_truth, target_grid
from lsdflow_runtime.store.rag_store import RagStore
from lsdflow_segment.choice import choose, require_truth_if_asked, tables_key, thresholds_of, truth_box, why
from lsdflow_segment.config import SegmentConfig
from lsdflow_segment.dealing import find_by_parts
from lsdflow_segment.graph import (
    GraphSource,
    SegmentGraph,
    SweptGraph,
    graph_source,
    load_sweep,
    read_edges,
    read_fragments,
    read_nodes,
    require_merge_function,
)
from lsdflow_segment.lut_pieces import write_mapped_lut
from lsdflow_segment.parted_graph import PartedGraph
from lsdflow_segment.sizes import SegmentSizes
from lsdflow_segment.tables import (
    ThresholdTable,
    graph_folder,
    is_complete,
    luts_folder,
    mapped_lut_path,
    parts_folder,
    read_summary,
    require_undamaged,
    summary_path,
    write_tables,
)
from lsdflow_segment.thresholds import require_computed
from lsdflow_segment.verify import require_sizes
from lsdflow_segment.work import STAGE, open_fragments, relabelling_task

LOG = logging.getLogger("lsdflow.segment")
# Hashes of the summaries of all merge functions; each holds those of its lookup tables.
TABLES_SHA256 = "tables_sha256"


@dataclass(frozen=True)
class _Opened:
    """What one run works on."""

    experiment: Experiment
    config: SegmentConfig
    source: GraphSource
    store: RagStore
    taken: str

    @cached_property
    def fragments(self) -> SegmentSizes:
        """All fragments and their voxels, in one memory."""
        return read_fragments(self.store, self.source)

    @property
    def tables(self) -> Path:
        """The folder of the tables of this graph."""
        return graph_folder(self.experiment.layout.luts, self.config.run_type, self.source.agglomerate.identity)

    @property
    def parts(self) -> Path:
        """The folder of what is needed only until the run has finished."""
        return parts_folder(self.all_tables, self.source.agglomerate.identity)

    @property
    def all_tables(self) -> Path:
        """The folder of the tables of all graphs."""
        return luts_folder(self.experiment.layout.luts, self.config.run_type)


class Segment(BlockStage):
    """The stage: tables of all thresholds, then one pass that relabels the fragments."""

    name = STAGE

    def passes(self, experiment: Experiment) -> list[BlockTask]:
        """The relabelling of a run whose tables are written. MissingInput (66) if they are not."""
        return [_relabelling(experiment)]

    def process(self, experiment: Experiment) -> Manifest:
        """Write the tables and the segmentation, and compare its voxels with the graph."""
        return _run(experiment)

    def verify(self, experiment: Experiment) -> dict[str, Any]:
        """Read the segmentation again, and the tables of every merge function."""
        facts = super().verify(experiment)
        work, known = _opened(experiment), read_manifest(experiment.layout, STAGE).facts.get(TABLES_SHA256, {})
        for merge_function in work.source.merge_functions:
            summary = read_summary(work.tables, merge_function)
            require_sha256(summary_path(work.tables, merge_function), known.get(merge_function), "run: segment repair")
            require_undamaged(work.tables, summary)
        return facts

    def invalidate_damaged(self, experiment: Experiment) -> dict[str, Any]:
        """Remove done marks of damaged blocks; a missing or damaged summary of the tables is written again first."""
        try:
            self.passes(experiment)
        except (BadData, MissingInput):
            work = _opened(experiment)
            _write(work, *_swept(work, work.taken))
        return super().invalidate_damaged(experiment)

    def problems(self, experiment: Experiment) -> list[StageError]:
        """All problems that can be found now; what earlier stages have not made yet is no problem."""
        config = experiment.table(STAGE, SegmentConfig)
        agglomerated = experiment.layout.manifest("agglomerate").exists() and experiment.descriptions is None
        checks: list[Callable[[], object]] = [
            lambda: _require_thresholds(config),
            lambda: require_merge_function(experiment, config.merge_function),
        ]
        if knows_target(experiment):
            checks.append(lambda: _require_regions(experiment, config))
        if agglomerated:
            checks.append(lambda: graph_source(experiment).chosen(config.merge_function))
        return problems_of(checks)

    def plan(self, experiment: Experiment) -> dict[str, Any]:
        """Blocks and bytes of the segmentation, and the tables that would be written."""
        thresholds = thresholds_of(experiment.table(STAGE, SegmentConfig))
        tables = {"tables": len(thresholds), "lowest_threshold": thresholds[0], "highest_threshold": thresholds[-1]}
        return {**tables, **plan_task(_planned(experiment))}

    def describe(self, experiment: Experiment) -> None:
        """Leave the metadata of the segmentation and a manifest in `experiment.descriptions`."""
        describe_outputs(task := _planned(experiment))
        describe_manifest([task])

    def status(self, experiment: Experiment) -> dict[str, Any]:
        """What is done so far."""
        try:
            return super().status(experiment)
        except MissingInput as error:
            return {"done": 0, "finished": False, "waiting_for": error.what}


def _run(experiment: Experiment) -> Manifest:
    work = _opened(experiment)
    graph, table = _swept(work, work.taken)
    task = relabelling_task(experiment, work.config, work.source, work.taken, table.chosen)
    task.create_outputs()
    _write(work, graph, table)
    if isinstance(graph, PartedGraph):
        _write_mapped(work, graph, table)
    for other in work.source.merge_functions:
        if other != work.taken:
            _write(work, *_swept(work, other))
    manifest = run_task(task)
    sizes = require_sizes(experiment, task, graph, table)
    chosen = {"merge_function": work.taken, "threshold": table.chosen, "advice": asdict(table.advice)}
    known = {**manifest.facts, **chosen, "thresholds": len(table.thresholds), **sizes}
    if "segments" not in manifest.facts or TABLES_SHA256 in manifest.facts:  # not a manifest of contracts before 1.8
        names = work.source.merge_functions
        known[TABLES_SHA256] = {name: hash_of_file(summary_path(work.tables, name)) for name in names}
    if work.tables != work.all_tables:  # not tables of contracts before 2.1
        known[LUTS_FACT] = str(work.tables.relative_to(experiment.layout.root))
    if known != manifest.facts:
        manifest = manifest.model_copy(update={"facts": known})
        manifest.write(experiment.layout)
    _forget(work.parts)
    LOG.info("%d segments, the largest has %d voxels", sizes["segments"], sizes["largest_segment_vox"])
    return manifest


def _opened(experiment: Experiment) -> _Opened:
    config = experiment.table(STAGE, SegmentConfig)
    source = graph_source(experiment)
    taken = source.chosen(config.merge_function)
    store = relabelling_task(experiment, config, source, taken, 0.0).rag_store
    return _Opened(experiment, config, source, store, taken)


def _swept(work: _Opened, merge_function: str) -> tuple[SegmentGraph, ThresholdTable]:
    """Read the edges of a merge function and look at all thresholds."""
    graph = _found_by_parts(work, merge_function) if _is_parted(work) else _found(work, merge_function)
    table = choose(work.experiment, work.config, graph, merge_function, merge_function == work.taken)
    reason = why(work.config, table)
    LOG.info("%s: %d fragments, %d edges; %s", merge_function, graph.nodes, graph.edges, reason)
    return graph, table


def _is_parted(work: _Opened) -> bool:
    if work.config.find == "auto":
        return work.store.count_nodes(work.source.watershed.key) > work.config.nodes_in_memory
    return work.config.find == "hierarchical"


def _found(work: _Opened, merge_function: str) -> SweptGraph:
    edges = read_edges(work.store, work.source, merge_function)
    return load_sweep(edges, work.fragments, thresholds_of(work.config), work.config.buffer_edges)


def _found_by_parts(work: _Opened, merge_function: str) -> PartedGraph:
    """In a folder that names all that decides what stands there."""
    thresholds, most_nodes = thresholds_of(work.config), work.config.nodes_in_memory
    return find_by_parts(
        work.parts / f"{merge_function}-{hash_of([list(thresholds), most_nodes])[:16]}",
        partial(read_nodes, work.store, work.source),
        partial(read_edges, work.store, work.source, merge_function),
        thresholds,
        most_nodes,
        work.config.buffer_edges,
    )


def _write_mapped(work: _Opened, graph: PartedGraph, table: ThresholdTable) -> None:
    """The tables of the segmentations, so that a worker need not hold all of one."""
    written = {table.chosen, *work.config.extra_thresholds}
    for threshold, pieces in zip(table.thresholds, graph.tables(), strict=True):
        path = mapped_lut_path(work.all_tables, work.source.agglomerate.identity, table.merge_function, threshold)
        if threshold in written and not path.exists():
            write_mapped_lut(path, pieces)


def _forget(folder: Path) -> None:
    """Remove what a finished run needs no more, and what runs of other graphs left."""
    with storage_errors(folder):
        if folder.parent.exists():
            shutil.rmtree(folder.parent)


def _write(work: _Opened, graph: SegmentGraph, table: ThresholdTable) -> None:
    facts = {
        "key": tables_key(work.config, work.source, table.merge_function),
        "fingerprint": work.source.agglomerate.identity,
        "fragments_fingerprint": work.source.watershed.identity,
        "nodes": graph.nodes,
        "edges": graph.edges,
        "voxels": graph.voxels,
    }
    write_tables(work.tables, graph, table, facts)


def _planned(experiment: Experiment) -> BlockTask:
    """The relabelling; before the tables are written, the lowest threshold takes the place of the one to be chosen."""
    with suppress(BadData, MissingInput):
        return _relabelling(experiment)
    config, source = experiment.table(STAGE, SegmentConfig), graph_source(experiment)
    chosen = thresholds_of(config)[0] if config.threshold == "auto" else config.threshold
    return relabelling_task(experiment, config, source, source.chosen(config.merge_function), chosen)


def _relabelling(experiment: Experiment) -> BlockTask:
    """The relabelling of a run whose tables are written. MissingInput if they are not."""
    config = experiment.table(STAGE, SegmentConfig)
    source = graph_source(experiment)
    merge_function = source.chosen(config.merge_function)
    folder = graph_folder(experiment.layout.luts, config.run_type, source.agglomerate.identity)
    summary = read_summary(folder, merge_function)
    if summary["key"] != tables_key(config, source, merge_function) or not is_complete(folder, summary):
        raise MissingInput("the thresholds of this graph are not computed", where=folder, fix="run: segment run")
    return relabelling_task(experiment, config, source, merge_function, float(summary["chosen"]))


def _require_thresholds(config: SegmentConfig) -> None:
    thresholds = thresholds_of(config)
    if config.threshold != "auto":
        require_computed(config.threshold, thresholds, config.merge_function or "the merge function")


def _require_regions(experiment: Experiment, config: SegmentConfig) -> None:
    grid = target_grid(experiment)
    written = grid.box
    if experiment.layout.manifest("watershed").exists():
        written = open_fragments(experiment, grid).box
    box = region_box(config.roi, grid.voxel_size_nm, written, "segment.roi")
    if config.block_shape is not None:
        block_plan(box, config.block_shape.to_vox(grid.voxel_size_nm, "segment.block_shape"), (0, 0, 0), STAGE)
    if config.advice != "stability":
        truth = open_truth(experiment, config.truth_dataset, grid)
        require_truth_if_asked(experiment, config, truth is not None)
        if truth is not None:
            truth_box(config, grid, written, truth.labels.box)
