"""Choosing the threshold: facts of every partition, VOI where there is truth, the advice, and what the user set."""

from __future__ import annotations

import logging

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.failed_blocks import failed_blocks_of_results
from lsdflow_contract.geometry import Box, Geometry, region_box
from lsdflow_contract.manifest import work_key
from lsdflow_runtime.blocks import pieces
from lsdflow_runtime.io.target import Truth, open_truth, target_grid
from lsdflow_segment.advice import advise_by_stability, advise_by_voi
from lsdflow_segment.config import SegmentConfig
from lsdflow_segment.graph import GraphSource, SegmentGraph
from lsdflow_segment.tables import ThresholdTable
from lsdflow_segment.thresholds import require_computed, threshold_range, with_extra
from lsdflow_segment.truth import fragments_against_truth, voi_of_thresholds
from lsdflow_segment.work import open_fragments

LOG = logging.getLogger("lsdflow.segment")


def thresholds_of(config: SegmentConfig) -> tuple[float, ...]:
    """All thresholds that get a table, ascending."""
    grid = threshold_range(config.thresholds_minmax, config.thresholds_step)
    return with_extra(grid, config.extra_thresholds, "segment.extra_thresholds")


def tables_key(config: SegmentConfig, source: GraphSource, merge_function: str) -> str:
    """Key of the tables: everything that decides them and the choice among them."""
    chosen_by = config.model_dump(mode="json", include={"threshold", "advice", "truth_dataset", "truth_roi"})
    parameters = {"merge_function": merge_function, "thresholds": list(thresholds_of(config)), **chosen_by}
    return work_key("segment-tables", parameters, source.inputs)


def choose(
    experiment: Experiment, config: SegmentConfig, graph: SegmentGraph, merge_function: str, taken: bool
) -> ThresholdTable:
    """Facts of every threshold, the advice, and the threshold: the one set if this merge function is `taken`."""
    thresholds = thresholds_of(config)
    facts = graph.facts()
    voi = _voi_of_thresholds(experiment, config, graph)
    if voi:
        advice = advise_by_voi(thresholds, [split for split, _ in voi], [merge for _, merge in voi])
    else:
        advice = advise_by_stability(facts, graph.nodes, graph.voxels)
    chosen = advice.threshold
    if taken and config.threshold != "auto":
        chosen = require_computed(config.threshold, thresholds, merge_function)
    return ThresholdTable(merge_function, facts, voi, advice, chosen)


def why(config: SegmentConfig, table: ThresholdTable) -> str:
    """One line for the log: the threshold taken, and the advice behind it."""
    if config.threshold == "auto":
        return f"threshold {table.chosen:.4f} by {table.advice.method}: {table.advice.reason}"
    advice = table.advice
    return f"threshold {table.chosen:.4f} as set (advice by {advice.method}: {advice.threshold:.4f}, {advice.reason})"


def truth_for_advice(experiment: Experiment, config: SegmentConfig, grid: Geometry) -> Truth | None:
    """The truth of the target on the target's grid; none if the advice does not want it or the target has none.

    Raises MissingInput if advice = "truth" and there is none.
    """
    if config.advice == "stability":
        return None
    failed = failed_blocks_of_results(experiment.layout, ("watershed", "agglomerate"))
    truth = open_truth(experiment, config.truth_dataset, grid, failed)
    require_truth_if_asked(experiment, config, truth is not None)
    return truth


def require_truth_if_asked(experiment: Experiment, config: SegmentConfig, there: bool) -> None:
    """MissingInput (66) if advice = "truth" and there is none."""
    if there or config.advice != "truth":
        return
    made = experiment.layout.target_volume
    raise MissingInput(
        "advice by truth needs truth",
        where=made / config.truth_dataset if made.exists() else "segment.advice",
        fix='give truth to prepare, or set segment.advice = "stability"',
    )


def truth_box(config: SegmentConfig, grid: Geometry, fragments: Box, truth: Box) -> Box:
    """The part of the truth that the advice sees: inside both volumes."""
    return region_box(config.truth_roi, grid.voxel_size_nm, truth.intersect(fragments), "segment.truth_roi")


def _voi_of_thresholds(
    experiment: Experiment, config: SegmentConfig, graph: SegmentGraph
) -> tuple[tuple[float, float], ...]:
    """(split, merge) of every threshold; empty without truth."""
    grid = target_grid(experiment)
    truth = truth_for_advice(experiment, config, grid)
    if truth is None:
        return ()
    fragments = open_fragments(experiment, grid)
    box = truth_box(config, grid, fragments.box, truth.labels.box)
    table = fragments_against_truth(fragments, truth, pieces(box, fragments.chunk_shape_vox))
    if table.total_vox == 0:
        LOG.warning("the truth has no labels in %s: advice by stability", box)
        return ()
    return voi_of_thresholds(table, graph)
