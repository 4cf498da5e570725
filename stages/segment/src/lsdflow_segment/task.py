"""segment: read the graph once, write all tables, choose a threshold, relabel the fragments, verify.

graph --sweep--> facts of all thresholds --advice--> threshold
                      |                                 |
                      v                                 v
                 luts/*.npz            fragments --relabel--> volumes/segmentation
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from lsdflow_command.app import RunOptions
from lsdflow_contract.errors import MissingInput, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_runtime.block_task import BlockTask
from lsdflow_runtime.blockwise import plan_task, run_task, status_task, worker_task
from lsdflow_segment.choice import choose, open_truth, tables_key, thresholds_of, truth_box, why
from lsdflow_segment.config import SegmentConfig
from lsdflow_segment.graph import graph_source, load_sweep
from lsdflow_segment.regions import region_box
from lsdflow_segment.tables import is_complete, luts_folder, read_summary, write_tables
from lsdflow_segment.thresholds import require_computed
from lsdflow_segment.verify import require_sizes
from lsdflow_segment.work import STAGE, open_fragments, relabelling_task, target_grid

LOG = logging.getLogger("lsdflow.segment")


def run(experiment: Experiment, options: RunOptions) -> None:
    """Write the tables and the segmentation, and check it voxel by voxel against the graph."""
    config = experiment.table(STAGE, SegmentConfig)
    source = graph_source(experiment)
    merge_function = source.chosen(config.merge_function)
    store = relabelling_task(experiment, config, source, merge_function, 0.0).rag_store
    graph = load_sweep(store, source, merge_function, thresholds_of(config), config.buffer_edges)
    LOG.info("%s: %d fragments, %d edges", merge_function, len(graph.fragments), graph.edges)
    table = choose(experiment, config, graph, merge_function)
    LOG.info("%s: %s", merge_function, why(config, table))
    task = relabelling_task(experiment, config, source, merge_function, table.chosen)
    task.create_outputs(options.replace)
    facts = {
        "key": tables_key(config, source, merge_function),
        "fingerprint": source.agglomerate.identity,
        "fragments_fingerprint": source.watershed.identity,
        "nodes": len(graph.fragments),
        "edges": graph.edges,
        "voxels": int(graph.sizes_vox.sum()),
    }
    summary = write_tables(luts_folder(experiment.layout.luts, config.run_type), graph, table, facts)
    manifest = run_task(task, options)
    sizes = require_sizes(experiment, task, graph, table)
    chosen = {"merge_function": merge_function, "threshold": table.chosen, "advice": summary["advice"]}
    known = {**manifest.facts, **chosen, "thresholds": len(table.thresholds), **sizes}
    manifest.model_copy(update={"facts": known}).write(experiment.layout)
    LOG.info("%d segments, the largest has %d voxels", sizes["segments"], sizes["largest_segment_vox"])


def validate(experiment: Experiment) -> list[StageError]:
    """All problems that can be seen now; what earlier stages have not made yet is no problem."""
    config = experiment.table(STAGE, SegmentConfig)
    layout = experiment.layout
    checks: list[Callable[[], object]] = [lambda: _require_thresholds(config)]
    if layout.target_volume.exists():
        checks.append(lambda: _require_regions(experiment, config))
    if layout.manifest("agglomerate").exists():
        checks.append(lambda: graph_source(experiment).chosen(config.merge_function))
    return [problem for check in checks if (problem := _problem_of(check)) is not None]


def plan(experiment: Experiment) -> dict[str, Any]:
    """Blocks and bytes of the segmentation, and the tables that would be written."""
    config = experiment.table(STAGE, SegmentConfig)
    thresholds = thresholds_of(config)
    source = graph_source(experiment)
    merge_function = source.chosen(config.merge_function)
    chosen = thresholds[0] if config.threshold == "auto" else config.threshold
    tables = {"tables": len(thresholds), "lowest_threshold": thresholds[0], "highest_threshold": thresholds[-1]}
    return {**tables, **plan_task(relabelling_task(experiment, config, source, merge_function, chosen))}


def status(experiment: Experiment) -> dict[str, Any]:
    """What is done so far."""
    try:
        task = block_task(experiment)
    except MissingInput as error:
        return {"done": 0, "finished": False, "waiting_for": error.what}
    return status_task(task)


def worker(experiment: Experiment) -> None:
    """Take blocks from a running coordinator."""
    worker_task(block_task(experiment))


def block_task(experiment: Experiment) -> BlockTask:
    """The relabelling work of a run whose tables are written. MissingInput if they are not."""
    config = experiment.table(STAGE, SegmentConfig)
    source = graph_source(experiment)
    merge_function = source.chosen(config.merge_function)
    folder = luts_folder(experiment.layout.luts, config.run_type)
    summary = read_summary(folder, merge_function)
    if summary["key"] != tables_key(config, source, merge_function) or not is_complete(folder, summary):
        raise MissingInput("the thresholds of this graph are not computed", where=folder, hint="run: segment run")
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
    region_box(config.roi, grid, written, "segment.roi")
    truth = open_truth(experiment, config, grid)
    if truth is not None:
        truth_box(config, grid, written, truth.box)


def _problem_of(check: Callable[[], object]) -> StageError | None:
    try:
        check()
    except StageError as error:
        return error
    return None
