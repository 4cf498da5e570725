"""segment: read the graph once, write the tables of all thresholds, choose one, relabel the fragments, check the sizes.

graph --find segments--> facts of all thresholds --select--> threshold
                              |                                 |
                              v                                 v
                         luts/<graph>/*.npz    fragments --relabel--> volumes/segmentation
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from lsdflow_contract.arrays import SEGMENTATION, ArraySpec
from lsdflow_contract.errors import BadData, MissingInput, StageError, problems_of
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.hashing import hash_of, hash_of_file
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.lut import LUTS_FACT
from lsdflow_contract.manifest import Manifest, finished_manifests, read_manifest, remove_manifest, work_key
from lsdflow_contract.sealing import require_sha256
from lsdflow_metrics.contingency import Contingency
from lsdflow_runtime.engine.block_stage import BlockStage
from lsdflow_runtime.engine.block_task import BlockTask, task_of_stage
from lsdflow_runtime.engine.blockwise import run_task
from lsdflow_runtime.engine.planning import describe_manifest, describe_outputs, plan_task
from lsdflow_runtime.io.target import knows_target
from lsdflow_runtime.io.volumes import OutputArray
from lsdflow_runtime.store.stores import open_store
from lsdflow_segment.config import SegmentConfig
from lsdflow_segment.graph import SegmentGraph, StoredGraph, find_in_memory, sizes_of_segments
from lsdflow_segment.inputs import (
    STAGE,
    SegmentInputs,
    count_truth,
    open_inputs,
    require_merge_function,
    require_regions,
)
from lsdflow_segment.partitioned_graph import PartitionedGraph, find_in_parts
from lsdflow_segment.relabel import block_relabelling
from lsdflow_segment.sizes import SegmentSizes, SizeCount, require_same_sizes
from lsdflow_segment.tables import (
    is_complete,
    read_summary,
    require_tables,
    require_undamaged,
    write_mapped_lut,
    write_tables,
)
from lsdflow_segment.threshold_selection import ThresholdChoice, choose_threshold, set_threshold, thresholds_of, why

LOG = logging.getLogger("lsdflow.segment")
# Hashes of the summaries of all merge functions; each summary has those of its lookup tables.
TABLES_SHA256 = "tables_sha256"


class Segment(BlockStage):
    """The stage: tables of all thresholds, then one pass that relabels the fragments."""

    name = STAGE

    def passes(self, experiment: Experiment) -> list[BlockTask]:
        """The relabelling of a run whose tables are written. Raises MissingInput (66) if they are not."""
        inputs = _inputs(experiment)
        return [_relabelling(experiment, inputs, _chosen_before(experiment.layout, inputs))]

    def process(self, experiment: Experiment) -> Manifest:
        """Write the tables and the segmentation, and compare its voxels with the graph."""
        inputs = _inputs(experiment)
        stored, truth = _graph_and_truth(experiment, inputs)
        graph, choice = _choose(inputs, stored, inputs.merge_function, set_threshold(inputs.config), truth)
        task = _relabelling(experiment, inputs, choice.chosen)
        task.create_outputs()
        _write_tables(inputs, graph, choice)
        if isinstance(graph, PartitionedGraph):
            _write_mapped_luts(inputs, graph, choice)
        choices = {choice.merge_function: choice}
        for other in inputs.source.merge_functions:
            if other != inputs.merge_function:
                graph_of_other, choices[other] = _choose(inputs, stored, other, None, truth)
                _write_tables(inputs, graph_of_other, choices[other])
        manifest = run_task(task)
        sizes = _check_sizes(experiment.layout, task, inputs.fragments.box, graph, choice)
        finished = _with_facts(manifest, inputs, choice, sizes, experiment.layout.root)
        if truth is not None:
            finished.facts["lowest_voi"] = {name: choices[name].lowest_voi for name in inputs.source.merge_functions}
        if finished.facts != manifest.facts:
            finished.write(experiment.layout)
        inputs.folders.remove_scratch()
        LOG.info("%d segments, the largest has %d voxels", len(sizes.ids), sizes.largest[1])
        return finished

    def verify(self, experiment: Experiment) -> dict[str, Any]:
        """Read the segmentation again, and the tables of every merge function."""
        facts = super().verify(experiment)
        inputs, known = _inputs(experiment), read_manifest(experiment.layout, STAGE).facts.get(TABLES_SHA256, {})
        for merge_function in inputs.source.merge_functions:
            summary = read_summary(inputs.folders, merge_function)
            path = inputs.folders.summary(merge_function)
            if summary["key"] != inputs.tables_key(merge_function):
                require_tables(inputs.folders, merge_function, inputs.thresholds)
                continue
            require_sha256(path, known.get(merge_function), "run: segment repair")
            require_undamaged(inputs.folders.tables, summary)
        return facts

    def invalidate_damaged(self, experiment: Experiment) -> dict[str, Any]:
        """Remove done marks of damaged blocks; a missing or damaged summary of the tables is written again first."""
        try:
            self.passes(experiment)
        except (BadData, MissingInput):
            inputs = _inputs(experiment)
            stored, truth = _graph_and_truth(experiment, inputs)
            graph, choice = _choose(inputs, stored, inputs.merge_function, set_threshold(inputs.config), truth)
            _write_tables(inputs, graph, choice)
        return super().invalidate_damaged(experiment)

    def problems(self, experiment: Experiment) -> list[StageError]:
        """All problems that can be found now; what earlier stages have not made yet is no problem."""
        config = experiment.table(STAGE, SegmentConfig)
        checks: list[Callable[[], object]] = [
            lambda: set_threshold(config),
            lambda: require_merge_function(
                experiment.layout,
                experiment.tables.get("agglomerate", {}),
                config.merge_function,
                real=experiment.descriptions is None,
            ),
        ]
        if knows_target(experiment.layout):
            checks.append(lambda: require_regions(experiment.layout, config))
        return problems_of(checks)

    def plan(self, experiment: Experiment) -> dict[str, Any]:
        """Blocks and bytes of the segmentation, and the tables that would be written."""
        thresholds = thresholds_of(experiment.table(STAGE, SegmentConfig))
        tables = {"tables": len(thresholds), "lowest_threshold": thresholds[0], "highest_threshold": thresholds[-1]}
        return {**tables, **plan_task(self._planned(experiment))}

    def describe(self, experiment: Experiment) -> None:
        """Leave the metadata of the segmentation and a manifest in `experiment.descriptions`."""
        describe_outputs(task := self._planned(experiment))
        describe_manifest([task])

    def status(self, experiment: Experiment) -> dict[str, Any]:
        """What is done so far."""
        try:
            return super().status(experiment)
        except MissingInput as error:
            return {"done": 0, "finished": False, "waiting_for": error.what}

    def _planned(self, experiment: Experiment) -> BlockTask:
        """The relabelling; before the tables are written, with the lowest threshold for one still to be chosen."""
        with suppress(BadData, MissingInput):
            return self.last_pass(experiment)
        inputs = _inputs(experiment)
        wanted = inputs.config.threshold
        return _relabelling(experiment, inputs, inputs.thresholds[0] if wanted == "auto" else wanted)


def _inputs(experiment: Experiment) -> SegmentInputs:
    return open_inputs(experiment.layout, experiment.table(STAGE, SegmentConfig))


def _graph_and_truth(experiment: Experiment, inputs: SegmentInputs) -> tuple[StoredGraph, Contingency | None]:
    return StoredGraph(open_store(experiment).rag, inputs.source), count_truth(experiment.layout, inputs)


def _chosen_before(layout: ExperimentLayout, inputs: SegmentInputs) -> float:
    """The threshold that a run with these settings chose. MissingInput (66) if there was none, or its tables are lost.

    It is in the summary of the tables, or, after a run with other settings, in the manifest of the result.
    """
    summary = read_summary(inputs.folders, inputs.merge_function)
    chosen = [float(summary["chosen"])] if summary["key"] == inputs.tables_key(inputs.merge_function) else []
    finished = finished_manifests(layout, STAGE).values()
    chosen += [float(made.facts["threshold"]) for made in finished if inputs.is_choice_of(made)]
    if not chosen or not is_complete(inputs.folders, inputs.merge_function, inputs.thresholds):
        where = inputs.folders.tables
        raise MissingInput("the thresholds of this graph are not computed", where=where, fix="run: segment run")
    return chosen[0]


def _choose(
    inputs: SegmentInputs, stored: StoredGraph, merge_function: str, wanted: float | None, truth: Contingency | None
) -> tuple[SegmentGraph, ThresholdChoice]:
    """Read the edges of a merge function, find the segments of all thresholds, and choose one."""
    graph = _find_segments(inputs, stored, merge_function)
    choice = choose_threshold(graph, merge_function, wanted, truth, inputs.calibrated(merge_function))
    LOG.info("%s: %d fragments, %d edges; %s", merge_function, graph.nodes, graph.edges, why(choice, wanted))
    return graph, choice


def _find_segments(inputs: SegmentInputs, stored: StoredGraph, merge_function: str) -> SegmentGraph:
    config, thresholds = inputs.config, inputs.thresholds
    if stored.count_nodes() <= config.nodes_in_memory:
        edges = stored.read_edges(merge_function)
        return find_in_memory(stored.fragments, edges, thresholds, min_segment_vox=config.min_segment_vox)
    # The folder is named by everything that decides its content, so that a killed run resumes with the same settings.
    decides = hash_of([list(thresholds), config.nodes_in_memory])[:16]
    return find_in_parts(
        inputs.folders.scratch / f"{merge_function}-{decides}",
        stored.read_nodes,
        partial(stored.read_edges, merge_function),
        thresholds,
        config.nodes_in_memory,
        min_segment_vox=config.min_segment_vox,
    )


def _write_tables(inputs: SegmentInputs, graph: SegmentGraph, choice: ThresholdChoice) -> None:
    facts = {
        "key": inputs.tables_key(choice.merge_function),
        "fingerprint": inputs.source.agglomerate.identity,
        "fragments_fingerprint": inputs.source.watershed.identity,
        "nodes": graph.nodes,
        "edges": graph.edges,
        "voxels": graph.voxels,
    }
    write_tables(inputs.folders, graph, choice, facts)


def _write_mapped_luts(inputs: SegmentInputs, graph: SegmentGraph, choice: ThresholdChoice) -> None:
    """The tables of the segmentations as arrays, so that a worker does not hold all of one."""
    written = {choice.chosen, *inputs.config.extra_thresholds}
    for threshold, lut in zip(choice.thresholds, graph.luts(), strict=True):
        path = inputs.folders.mapped_lut(choice.merge_function, threshold)
        if threshold in written and not path.exists():
            write_mapped_lut(path, lut)


def _relabelling(experiment: Experiment, inputs: SegmentInputs, chosen: float) -> BlockTask:
    """The pass that writes the segmentation of threshold `chosen`, and those of the extra thresholds."""
    config, plan, folders = inputs.config, inputs.plan, inputs.folders
    thresholds = {"segmentation": chosen, **{f"segmentation_{t:.4f}": t for t in config.extra_thresholds}}
    parameters = {
        "merge_function": inputs.merge_function,
        "threshold": chosen,
        "extra_thresholds": list(config.extra_thresholds),
        "begin_vox": list(plan.total.begin_vox),
        "shape_vox": list(plan.total.shape_vox),
        "block_shape_vox": list(plan.write_shape_vox),
        "zarr_format": config.zarr_format,
    }
    if config.min_segment_vox:
        parameters["min_segment_vox"] = config.min_segment_vox
    key = work_key(STAGE, parameters, inputs.source.inputs)
    container = experiment.layout.result(STAGE, key) / "segmentation.zarr"
    luts = {
        name: (folders.lut(inputs.merge_function, t), folders.mapped_lut(inputs.merge_function, t))
        for name, t in thresholds.items()
    }
    return BlockTask(
        **task_of_stage(STAGE, experiment),
        key=key,
        config={**config.model_dump(mode="json"), "resolved": parameters},
        inputs=inputs.source.inputs,
        plan=plan,
        outputs={
            name: OutputArray(container, _spec(name), inputs.grid, plan.total, plan.write_shape_vox, config.zarr_format)
            for name in thresholds
        },
        open=partial(block_relabelling, inputs.fragments, luts),
        may_have_holes=True,
    )


def _spec(name: str) -> ArraySpec:
    """`segmentation`, or `segmentation_<threshold>` beside it."""
    group = SEGMENTATION.dataset.rpartition("/")[0]
    return ArraySpec(f"{group}/{name}", SEGMENTATION.dtype, SEGMENTATION.channels, SEGMENTATION.kind)


def _check_sizes(
    layout: ExperimentLayout, task: BlockTask, fragments: Box, graph: SegmentGraph, choice: ThresholdChoice
) -> SegmentSizes:
    """Voxels of each written segment, counted block by block.

    If all fragments were written, they are compared with those of the graph. Raises BadData, and removes the manifest,
    if they differ.
    """
    segmentation, count = task.outputs["segmentation"].open(), SizeCount()
    for block in task.plan.blocks():
        count.add(segmentation.read(block.write))
    sizes = count.sizes()
    if fragments == task.plan.total and not segmentation.holes:
        lut = next(itertools.islice(graph.luts(), choice.thresholds.index(choice.chosen), None))
        try:
            require_same_sizes(sizes, sizes_of_segments(lut))
        except BadData:
            remove_manifest(layout, STAGE, [task.key])
            raise
    return sizes


def _with_facts(
    manifest: Manifest, inputs: SegmentInputs, choice: ThresholdChoice, sizes: SegmentSizes, root: Path
) -> Manifest:
    """The manifest with the choice, the sizes and the tables."""
    folders = inputs.folders
    chosen = {"merge_function": choice.merge_function, "threshold": choice.chosen, "advice": asdict(choice.advice)}
    if (calibrated := inputs.calibrated(choice.merge_function)) is not None:
        chosen["calibrated"] = calibrated
    if inputs.config.min_segment_vox:
        of_chosen = next(found for found in choice.facts if found.threshold == choice.chosen)
        chosen |= {"small_segments": of_chosen.small_segments, "small_vox": of_chosen.small_vox}
    facts = {**manifest.facts, **chosen, "thresholds": len(choice.thresholds), **sizes.summary()}
    facts[TABLES_SHA256] = {name: hash_of_file(folders.summary(name)) for name in inputs.source.merge_functions}
    facts[LUTS_FACT] = str(folders.tables.relative_to(root))
    return manifest.model_copy(update={"facts": facts})
