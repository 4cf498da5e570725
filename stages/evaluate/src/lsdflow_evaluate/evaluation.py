"""The run of evaluate: score what there is, write the report, then the manifest; and the report alone, at any time.

truth + fragments, in blocks, + tables --> scores.json    every part that is missing or broken becomes a problem
volumes, losses, block times --> index.html               on the page; the page is written first, then the first
places of all volumes --> neuroglancer.json               problem that concerns evaluate ends the command
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lsdflow_contract.errors import MissingInput, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.failed_blocks import fact_of, failed_blocks_of_results
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.lut import Lut, luts_of, read_lut
from lsdflow_contract.manifest import Manifest, Writer, remove_manifest, work_key
from lsdflow_contract.sealing import write_sealed
from lsdflow_evaluate import passes
from lsdflow_evaluate.config import OUTPUTS, STAGE, EvaluateConfig
from lsdflow_evaluate.errors.ranking import SplitOrMerge, worst_errors, write_worst
from lsdflow_evaluate.errors.split_merge_sites import listed, sites_of
from lsdflow_evaluate.inputs import NO_TRUTH, SCORED_STAGES, Counting, Segmented, open_segmented, require_counting
from lsdflow_evaluate.pass_files import drop_pass_files, write_pass_files
from lsdflow_evaluate.report.collect import Collector, collect
from lsdflow_evaluate.report.page import write_page
from lsdflow_evaluate.report.stage_records import Source, finished_stages
from lsdflow_evaluate.scores.counting import BORDER, BORDERS_VOX, ROI, THRESHOLD_ROI, counted
from lsdflow_evaluate.scores.error_budget import error_budget
from lsdflow_evaluate.scores.run_length import Skeletons
from lsdflow_evaluate.scores.scores_file import (
    kept_scores,
    present_result,
    scores_with_truth,
    scores_without,
)
from lsdflow_evaluate.scores.trained import trained_part
from lsdflow_evaluate.scores.truth_scores import Nodes, TruthScores, score_against_truth
from lsdflow_evaluate.self_consistency.lsd_error import (
    PART,
    lsd_error_facts,
    mean_errors,
    most_likely_wrong,
    write_lsd_error,
)
from lsdflow_evaluate.self_consistency.seams import Seams, seams_of
from lsdflow_evaluate.skeletons.nodes import looked_up
from lsdflow_runtime.blocks import BlockPlan, read_grid
from lsdflow_runtime.engine.block_task import outputs_of
from lsdflow_runtime.engine.blockwise import run_blocks
from lsdflow_runtime.io.target import open_truth, target_grid
from lsdflow_runtime.io.volumes import open_volume
from lsdflow_runtime.store.stores import open_store

LOG = logging.getLogger("lsdflow.evaluate")
NOT_YET = "no scores of this segmentation yet: evaluate run makes them"


@dataclass(frozen=True)
class Scored:
    """What scores.json will hold; the grid and the segmentation, if they could be opened; keys of the later passes."""

    scores: dict[str, Any]
    grid: Geometry | None = None
    segmented: Segmented | None = None
    passes: tuple[str, ...] = ()


@dataclass(frozen=True)
class LsdErrorMap:
    """What scores.json says of the map, segments by falling error (see `most_likely_wrong`), the key of the pass and
    the output for the manifest."""

    facts: dict[str, Any]
    ranked: list[tuple[int, float, int]] = field(default_factory=list)
    passes: tuple[str, ...] = ()
    outputs: dict[str, str] = field(default_factory=dict)


def evaluate(experiment: Experiment) -> Manifest:
    """Score, write the report, then the manifest; raises the first problem of evaluate after that, if there is one."""
    started = time.time()
    config, layout = experiment.table(STAGE, EvaluateConfig), experiment.layout
    collector = Collector()
    scored = score(experiment, config, collector)
    scores, grid, segmented = scored.scores, scored.grid, scored.segmented
    errors_map = None
    if grid and segmented:
        seams = collector.collect("segment", partial(_seams, layout, grid, segmented), None)
        scores |= {"seams": seams.as_dict()} if seams else {}
        scores |= {"advice": _advice(segmented)}
        errors_map = collector.collect(STAGE, lambda: lsd_error_map(experiment, config), None)
        scores |= {"lsd_error": errors_map.facts} if errors_map else {}
    scores |= fact_of(failed_blocks_of_results(layout, SCORED_STAGES))
    keys = (*scored.passes, *(errors_map.passes if errors_map else ()))
    manifest = _manifest(experiment, config, scores, keys, errors_map.outputs if errors_map else {})
    result = None if collector.errors else manifest
    data = collect(report_source(experiment), config, grid, segmented, scores, result, collector)
    write_sealed(layout.report / "scores.json", scores)
    write_worst(layout.report / "worst.csv", scores)
    if errors_map and errors_map.passes:
        write_lsd_error(layout.report / "lsd_error.csv", errors_map.ranked)
    elif errors_map:
        (layout.report / "lsd_error.csv").unlink(missing_ok=True)
    write_page(layout.report, data)
    if collector.errors:
        layout.manifest(STAGE).unlink(missing_ok=True)
        remove_manifest(layout, STAGE, [manifest.key])
        raise collector.errors[0]
    drop_pass_files(passes.pass_files_root(experiment.layout), keys)
    write_sealed(kept_scores(layout, manifest.key), scores)
    facts = {**manifest.facts, "seconds": time.time() - started}
    return manifest.model_copy(update={"facts": facts}).finish(layout)


def write_report(experiment: Experiment, refresh_s: int | None = None) -> list[StageError]:
    """The report of what there is now; nothing is counted. Returns what could not be read: the page shows it, too.

    What a stage has still to make is no error. `refresh_s`: browsers load the page again after so long.
    """
    config, layout = experiment.table(STAGE, EvaluateConfig), experiment.layout
    collector = Collector()
    result, scored = None, Scored(scores_without(False, "prepare has not finished", config.voi_limit))
    if layout.manifest("prepare").exists() or layout.target_volume.exists():
        result, scored = _present(experiment, config, collector)
    data = collect(report_source(experiment), config, scored.grid, scored.segmented, scored.scores, result, collector)
    write_page(layout.report, replace(data, refresh_s=refresh_s))
    return collector.errors


def _present(experiment: Experiment, config: EvaluateConfig, collector: Collector) -> tuple[Manifest | None, Scored]:
    """The scores of now and their manifest, if there are any; what can be opened."""
    grid = collector.collect("prepare", lambda: target_grid(experiment.layout), None)
    if grid is None:
        return None, Scored(scores_without(False, "the target volume is missing", config.voi_limit))
    truth = collector.collect("prepare", lambda: open_truth(experiment.layout, config.truth_dataset, grid), None)
    segmented: Segmented | None = None
    if all(experiment.layout.manifest(stage).exists() for stage in ("watershed", "segment")):
        segmented = collector.collect("segment", lambda: open_segmented(experiment.layout, grid), None)
    result, scores = present_result(experiment.layout, config)
    if not scores:
        reason = NO_TRUTH if truth is None else NOT_YET if segmented else "nothing is segmented yet"
        scores = scores_without(truth is not None, reason, config.voi_limit)
    return result, Scored(scores, grid, segmented)


def score(experiment: Experiment, config: EvaluateConfig, collector: Collector) -> Scored:
    """Open what there is and compare it with the truth; a part that fails is left out and becomes a problem."""
    grid = collector.collect("prepare", lambda: target_grid(experiment.layout), None)
    if grid is None:
        return Scored(scores_without(False, "the target volume is missing", config.voi_limit))
    truth = collector.collect("prepare", lambda: open_truth(experiment.layout, config.truth_dataset, grid), None)
    segmented = collector.collect("segment", lambda: open_segmented(experiment.layout, grid), None)
    if truth is None:
        return Scored(scores_without(False, NO_TRUTH, config.voi_limit), grid, segmented)
    if segmented is not None:
        found = collector.collect(STAGE, lambda: compare(experiment, config, segmented), None)
        if found is not None:
            scores, keys = found
            return Scored(scores, grid, segmented, keys)
    reason = "nothing to compare: see the problems in the report"
    return Scored(scores_without(True, reason, config.voi_limit), grid, segmented)


def compare(
    experiment: Experiment, config: EvaluateConfig, segmented: Segmented
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Count, look up and score: what scores.json holds of the truth, and the keys of the later passes.

    Raises MissingInput if the chosen threshold has no table.
    """
    counting = require_counting(experiment)
    regions = counting.volumes.regions
    run_blocks(counting.task)
    traced = passes.trace(experiment, config, counting.volumes)
    nodes, node_keys = _look_up(counting, traced.skeletons)
    rows = passes.rows_of(counting.task)
    tables = {name: counted(rows, len(counting.task.plan), name) for name in regions}
    found = score_against_truth(
        config, segmented.luts, segmented.chosen, regions, tables, nodes, traced.merge_min_nodes, traced.kind
    )
    if found.chosen_score is None:
        raise MissingInput(
            "no table of the chosen threshold",
            where=luts_of(experiment.layout, segmented.manifest),
            wanted=f"{found.chosen[0]} at {found.chosen[1]:.4f}",
            fix="run segment again",
        )
    part = found.chosen_score.partition
    voi = f"VOI {part.voi:.3f} = {part.voi_split:.3f} split + {part.voi_merge:.3f} merge"
    LOG.info("%s at %.4f: %s, adapted Rand error %.3f", *found.chosen, voi, part.adapted_rand_error)
    known = next(lut for lut in segmented.luts if (lut.merge_function, lut.threshold) == found.chosen)
    lut = read_lut(known.path)
    worst, site_keys = _worst(config, counting, found, lut)
    borders = {n: counted(rows, len(counting.task.plan), f"{BORDER}{n}") for n in BORDERS_VOX}
    budget = error_budget(found, tables[ROI], borders, lut, config.zeros)
    scores = {**scores_with_truth(found, worst, config.voi_limit), "error_budget": budget}
    if trained := trained_part(experiment.layout, counting.volumes.regions[ROI].box):
        scores["trained_on"] = trained
    return scores, (*node_keys, *site_keys)


def _look_up(counting: Counting, skeletons: Skeletons | None) -> tuple[dict[str, Nodes], tuple[str, ...]]:
    """The skeletons of each region with their fragments, and the key of the look-up."""
    if skeletons is None:
        return {}, ()
    task, files = passes.nodes_task(counting, skeletons)
    run_blocks(task)
    rows, starts = passes.rows_of(task), files.array("starts")
    found = {name: looked_up(rows, starts, skeletons, name) for name in counting.volumes.regions}
    return {name: nodes for name, nodes in found.items() if nodes is not None}, (task.key,)


def _worst(
    config: EvaluateConfig, counting: Counting, found: TruthScores, lut: Lut
) -> tuple[dict[str, list[dict[str, Any]]], tuple[str, ...]]:
    """The worst splits and merges of the chosen threshold with their sites, by region; the key of the search."""
    errors: list[tuple[str, SplitOrMerge]] = []
    for name, region in found.regions.items():
        if name != THRESHOLD_ROI:
            table = region.table.relabel(lut.fragments, lut.segments)
            errors += [(name, error) for error in worst_errors(table, config.worst, config.zeros)]
    if not errors:
        return {}, ()
    task, files = passes.sites_task(counting, errors, lut)
    run_blocks(task)
    records, reach_nm = task.marks.records().values(), float(files.parameters["reach_nm"])
    sites = sites_of(passes.parts_of(counting.volumes, files), records, reach_nm)
    worst: dict[str, list[dict[str, Any]]] = {}
    for (name, error), site in zip(errors, sites, strict=True):
        worst.setdefault(name, []).append(listed(error, site, counting.volumes.grid))
    return worst, (task.key,)


def _seams(layout: ExperimentLayout, grid: Geometry, segmented: Segmented) -> Seams | None:
    fragments = segmented.fragments
    holes = tuple(block.box for block in failed_blocks_of_results(layout, SCORED_STAGES))
    volume = open_volume(*segmented.manifest.output_array(layout, "segmentation"), grid)
    return seams_of(replace(volume, holes=holes), BlockPlan(fragments.box, fragments.chunk_shape_vox))


def _advice(segmented: Segmented) -> dict[str, Any]:
    """The threshold that segment advises (by truth, or without it), by which method and why; and the one it took."""
    advice = segmented.manifest.facts.get("advice")
    merge_function, threshold = segmented.chosen
    taken = {"merge_function": merge_function, "taken": threshold}
    return {**advice, **taken} if isinstance(advice, Mapping) else taken


def lsd_error_map(experiment: Experiment, config: EvaluateConfig) -> LsdErrorMap:
    """Make the map of LSD errors. With "auto", what keeps it from being made is reported and no error."""
    if config.lsd_error == "off":
        return _no_map('evaluate.lsd_error = "off"')
    try:
        task = passes.lsd_error_task(experiment)
    except StageError as error:
        if config.lsd_error == "on":
            raise
        return _no_map(error.what, error.fix)
    write_pass_files(passes.pass_files_root(experiment.layout), task.key, task.config, {})
    run_blocks(task)
    found = mean_errors(passes.rows_of(task), len(task.plan))
    ranked, output = most_likely_wrong(found), task.outputs[PART]
    # Not the whole path: it names the key, and scores do not depend on the blocks.
    facts = lsd_error_facts(found, ranked, f"{output.path.name}/{output.spec.dataset}", task.config)
    made = outputs_of([task])
    LOG.info(
        "the LSDs of the segmentation differ by %.3f (of 1) from those predicted; map in %s", facts["mean"], made[PART]
    )
    return LsdErrorMap(facts, ranked, (task.key,), made)


def _no_map(reason: str, fix: str = "") -> LsdErrorMap:
    """No map. The fix is for the report only: whoever does not miss the map has nothing to do."""
    LOG.info("no map of LSD errors: %s", reason)
    return LsdErrorMap({"made": False, "reason": f"{reason}: {fix}" if fix else reason})


def _manifest(
    experiment: Experiment,
    config: EvaluateConfig,
    scores: dict[str, Any],
    keys: tuple[str, ...],
    arrays: Mapping[str, str],
) -> Manifest:
    """The manifest of these scores, which is not written yet; `keys` of the later passes."""
    finished = finished_stages(experiment.layout).items()
    inputs = {stage: made.identity for stage, made in finished if stage in ("watershed", "segment")}
    table = config.model_dump(mode="json")
    key = work_key(STAGE, table, inputs)
    facts = {k: v for k, v in scores.items() if k not in ("thresholds", "worst", "regions", "lsd_error")}
    if "voi" in scores:
        facts["blocks"] = len(require_counting(experiment).task.plan)
    return Manifest(
        writer=Writer.of(STAGE),
        key=key,
        config=table,
        inputs=inputs,
        outputs={**OUTPUTS, **arrays},
        facts={**facts, "works": list(keys)},
        identity=hash_of([key, scores]),
    )


def report_source(experiment: Experiment) -> Source:
    """Where the report of an experiment is read from."""
    common = experiment.common
    grid_of = partial(read_grid, experiment.layout)
    return Source(common.name, experiment.stages, experiment.layout, open_store(experiment), grid_of)
