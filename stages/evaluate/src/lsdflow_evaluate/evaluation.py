"""evaluate: gather what the experiment has, score it where there is truth, write the report; also after a failure.

truth + fragments, in blocks, + tables --> scores.json    every part that is missing or broken becomes a problem
volumes, losses, block times --> index.html               on the page; the page is written first, then the first
places of all volumes --> neuroglancer.json               problem that concerns evaluate ends the command

Workers count how fragments and truth overlap; what is counted stays, so another threshold costs no second reading.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lsdflow_contract.experiment import Experiment
from lsdflow_contract.failed_blocks import fact_of, failed_blocks_of_results
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import Manifest, Writer, remove_manifest, work_key
from lsdflow_contract.sealing import write_sealed
from lsdflow_evaluate.artefacts import Segmented, open_segmented
from lsdflow_evaluate.config import OUTPUTS, STAGE, EvaluateConfig
from lsdflow_evaluate.pages import write_pages
from lsdflow_evaluate.scores.comparing import Compared, compare, require_counting
from lsdflow_evaluate.scores.counting import SCORED_STAGES
from lsdflow_evaluate.scores.later_works import drop_works
from lsdflow_evaluate.scores.region_scores import advice_of, regions_and_worst, write_worst
from lsdflow_evaluate.scores.scores_file import NO_TRUTH, kept_scores, scores_with_truth, scores_without
from lsdflow_evaluate.shown import history
from lsdflow_evaluate.shown.gather import Gathered, report_data
from lsdflow_evaluate.without_truth.disagreement import disagreement, write_lsd_error
from lsdflow_evaluate.without_truth.seams import Seams, seams_of
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.io.target import open_truth, target_grid
from lsdflow_runtime.io.volumes import open_volume

LOG = logging.getLogger("lsdflow.evaluate")


def evaluate(experiment: Experiment) -> Manifest:
    """Score, write the report, then the manifest; raises the first problem of evaluate after that, if there is one."""
    started = time.time()
    config = experiment.table(STAGE, EvaluateConfig)
    collector = history.Collector()
    collector.problems.extend(collector.collect(STAGE, lambda: history.run_problems(experiment), []))
    gathered, scores = _scored(experiment, config, collector)
    seams = _seams(experiment, gathered, collector)
    scores |= {"seams": seams.as_dict()} if seams else {}
    failed = failed_blocks_of_results(experiment.layout, SCORED_STAGES)
    scores |= fact_of(failed)
    scores |= {"advice": advice_of(gathered.segmented)} if gathered.segmented else {}
    disagree = collector.collect(STAGE, lambda: disagreement(experiment, config), None) if gathered.segmented else None
    scores |= {"lsd_error": disagree.told} if disagree else {}
    works = (*(gathered.compared.works if gathered.compared else ()), *(disagree.works if disagree else ()))
    manifest = _manifest(experiment, config, scores, works, disagree.outputs if disagree else {})
    result = None if collector.errors else manifest
    data = report_data(experiment, config, replace(gathered, result=result), scores, collector)
    folder = experiment.layout.report
    write_sealed(folder / "scores.json", scores)
    write_worst(folder / "worst.csv", scores)
    if disagree:
        write_lsd_error(folder / "lsd_error.csv", disagree)
    write_pages(experiment, data)
    if collector.errors:
        experiment.layout.manifest(STAGE).unlink(missing_ok=True)
        remove_manifest(experiment.layout, STAGE, [manifest.key])
        raise collector.errors[0]
    drop_works(experiment, works)
    write_sealed(kept_scores(experiment.layout, manifest.key), scores)
    facts = {**manifest.facts, "seconds": time.time() - started}
    return manifest.model_copy(update={"facts": facts}).finish(experiment.layout)


def _scored(
    experiment: Experiment, config: EvaluateConfig, collector: history.Collector
) -> tuple[Gathered, dict[str, Any]]:
    """Open what there is and score it; a part that fails is left out and becomes a problem."""
    grid = collector.collect("prepare", lambda: target_grid(experiment), None)
    if grid is None:
        return Gathered(None, None, None), scores_without(False, "the target volume is missing", config.voi_limit)
    truth = collector.collect("prepare", lambda: open_truth(experiment, config.truth_dataset, grid), None)
    segmented = collector.collect("segment", lambda: open_segmented(experiment, grid), None)
    if truth is None:
        return Gathered(grid, segmented, None), scores_without(False, NO_TRUTH, config.voi_limit)
    found = None
    if segmented is not None:
        found = collector.collect(STAGE, lambda: _compare(experiment, config, segmented), None)
    gathered = Gathered(grid, segmented, truth, compared=found)
    if found is None:
        return gathered, scores_without(True, "nothing to compare: see the problems in the report", config.voi_limit)
    return gathered, {**scores_with_truth(found.scores, config.voi_limit), **regions_and_worst(found, grid)}


def _seams(experiment: Experiment, gathered: Gathered, collector: history.Collector) -> Seams | None:
    if gathered.grid is None or gathered.segmented is None:
        return None
    grid, fragments = gathered.grid, gathered.segmented.fragments
    segmentation = gathered.segmented.manifest.output_array(experiment.layout, "segmentation")
    blocks = BlockPlan(fragments.box, fragments.chunk_shape_vox)

    def look() -> Seams | None:
        holes = tuple(block.box for block in failed_blocks_of_results(experiment.layout, SCORED_STAGES))
        return seams_of(replace(open_volume(*segmentation, grid), holes=holes), blocks)

    return collector.collect("segment", look, None)


def _compare(experiment: Experiment, config: EvaluateConfig, segmented: Segmented) -> Compared:
    found = compare(experiment, config, segmented)
    chosen = found.scores.chosen_score
    if chosen is not None:
        part = chosen.partition
        voi = f"VOI {part.voi:.3f} = {part.voi_split:.3f} split + {part.voi_merge:.3f} merge"
        LOG.info("%s at %.4f: %s, adapted Rand error %.3f", *found.scores.chosen, voi, part.adapted_rand_error)
    return found


def _manifest(
    experiment: Experiment,
    config: EvaluateConfig,
    scores: dict[str, Any],
    works: tuple[str, ...],
    arrays: Mapping[str, str],
) -> Manifest:
    """The manifest of these scores, which is not written yet."""
    inputs = {s: m.identity for s, m in history.manifests(experiment).items() if s in ("watershed", "segment")}
    table = config.model_dump(mode="json")
    key = work_key(STAGE, table, inputs)
    facts = {k: v for k, v in scores.items() if k not in ("thresholds", "worst", "regions", "lsd_error")}
    if "voi" in scores:
        facts["blocks"] = len(require_counting(experiment).plan)
    return Manifest(
        writer=Writer.of(STAGE),
        key=key,
        config=table,
        inputs=inputs,
        outputs={**OUTPUTS, **arrays},
        facts={**facts, "works": list(works)},
        identity=hash_of([key, scores]),
    )
