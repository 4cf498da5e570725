"""evaluate: gather what the experiment has, score it where there is truth, write the report; also after a failure.

truth + fragments, in blocks, + tables --> scores.json    every part that is missing or broken becomes a problem
volumes, losses, block times --> index.html               on the page; the page is written first, then the first
places of all volumes --> neuroglancer.json               problem that concerns evaluate ends the command

Workers count how fragments and truth overlap; what is counted stays, so another threshold costs no second reading.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from lsdflow_command.app import RunOptions
from lsdflow_contract.arrays import SEGMENTATION
from lsdflow_contract.errors import BadData, MissingInput, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import Manifest, Writer, read_manifest, work_key
from lsdflow_contract.region import region_box
from lsdflow_contract.sealing import read_sealed, write_sealed
from lsdflow_evaluate.artefacts import Segmented, open_segmented
from lsdflow_evaluate.config import STAGE, EvaluateConfig
from lsdflow_evaluate.pages import write_pages
from lsdflow_evaluate.problems import validate  # noqa: F401 - a verb like the others
from lsdflow_evaluate.scores.comparing import Compared, compare, require_counting, work_of, works_there
from lsdflow_evaluate.scores.counting import counting_task
from lsdflow_evaluate.scores.later_works import drop_works, find_work
from lsdflow_evaluate.scores.region_scores import advice_of, regions_and_worst, write_worst
from lsdflow_evaluate.scores.scores_file import NO_TRUTH, scores_with_truth, scores_without
from lsdflow_evaluate.shown import history
from lsdflow_evaluate.shown.gather import Gathered, report_data
from lsdflow_evaluate.without_truth.disagreement import disagreement, write_lsd_error
from lsdflow_evaluate.without_truth.seams import Seams, seams_of
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.blockwise import plan_task, status_task, worker_task
from lsdflow_runtime.daisy_runner import current_work
from lsdflow_runtime.joining import join_coordinator
from lsdflow_runtime.measured_block import measure_block
from lsdflow_runtime.rendezvous import coordinating
from lsdflow_runtime.repair import take_back_broken
from lsdflow_runtime.target import open_truth, target_grid
from lsdflow_runtime.verify import verify_blocks
from lsdflow_runtime.volumes import open_volume

LOG = logging.getLogger("lsdflow.evaluate")

OUTPUTS = {"report": "report/index.html", "scores": "report/scores.json", "viewer": "report/neuroglancer.json"}


def run(experiment: Experiment, options: RunOptions) -> None:
    """Write scores.json, index.html and neuroglancer.json; raise the first error after that, if there was one."""
    with coordinating(STAGE, experiment):
        # The report is always made anew, so that countings of other results need not be kept.
        _run(experiment, replace(options, replace=True))


def join(experiment: Experiment) -> None:
    """Take blocks from a coordinator that runs in another job."""
    join_coordinator(STAGE, experiment)


def repair(experiment: Experiment) -> dict[str, Any]:
    """Count again what is lost or damaged, and write the report."""
    with coordinating(STAGE, experiment):
        found: dict[str, Any] = {}
        for task in works_there(experiment):
            name = f"{task.config['part']}_" if "part" in task.config else ""
            found |= {f"{name}{fact}".replace(" ", "_"): value for fact, value in take_back_broken(task).items()}
        # Their files are left anew, with the same keys: what is done stays done.
        drop_works(experiment, ())
        _run(experiment, RunOptions(replace=True))
    return found


def worker(experiment: Experiment) -> None:
    """Take blocks from a running coordinator, of the work that it names."""
    worker_task(work_of(experiment, current_work()))


def _run(experiment: Experiment, options: RunOptions) -> None:
    started = time.time()
    config = experiment.table(STAGE, EvaluateConfig)
    collector = history.Collector()
    collector.problems.extend(collector.collect(STAGE, lambda: history.run_problems(experiment), []))
    gathered, scores = _scored(experiment, config, options, collector)
    seams = _seams(experiment, gathered, collector)
    scores |= {"seams": seams.as_dict()} if seams else {}
    scores |= {"advice": advice_of(gathered.segmented)} if gathered.segmented else {}
    disagree = collector.collect(STAGE, lambda: disagreement(experiment, config), None) if gathered.segmented else None
    scores |= {"lsd_error": disagree.told} if disagree else {}
    data = report_data(experiment, config, gathered, scores, collector)
    folder = experiment.layout.report
    write_sealed(folder / "scores.json", scores)
    write_worst(folder / "worst.csv", scores)
    if disagree:
        write_lsd_error(folder / "lsd_error.csv", disagree)
    write_pages(experiment, data)
    if collector.errors:
        experiment.layout.manifest(STAGE).unlink(missing_ok=True)
        raise collector.errors[0]
    works = (*(gathered.compared.works if gathered.compared else ()), *(disagree.works if disagree else ()))
    drop_works(experiment, works)
    _write_manifest(experiment, config, scores, works, time.time() - started)


def plan(experiment: Experiment) -> dict[str, Any]:
    """What a run would compare and show."""
    config = experiment.table(STAGE, EvaluateConfig)
    grid = target_grid(experiment)
    truth = open_truth(experiment, config.truth_dataset, grid)
    voxels = region_box(config.roi, grid.voxel_size_nm, truth.labels.box, "evaluate.roi").size if truth else 0
    facts = {"truth": truth is not None, "voxels_compared": voxels, "bytes_read": 16 * voxels, "outputs": OUTPUTS}
    try:
        counting = counting_task(experiment)
    except StageError:
        return facts  # the fragments are not there yet
    return {**(plan_task(counting) if counting else {}), **facts}


def measure(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """What one block of the counting takes; done into a throw-away folder. MissingInput (66) without truth."""
    return measure_block(require_counting(experiment), folder)


def status(experiment: Experiment) -> dict[str, Any]:
    """Whether the report is there, and whether everything in it was complete."""
    written = {"report": (experiment.layout.root / OUTPUTS["report"]).exists()}
    finished = {"finished": experiment.layout.manifest(STAGE).exists()}
    try:
        counting = counting_task(experiment)
    except StageError as error:
        return {**written, **finished, "waiting_for": error.what}
    return {**(status_task(counting) if counting else {}), **written, **finished}


def verify(experiment: Experiment) -> dict[str, Any]:
    """The report's files are there, the scores are those of the manifest, and what was counted is undamaged."""
    manifest = read_manifest(experiment.layout, STAGE)
    missing = [path for path in OUTPUTS.values() if not (experiment.layout.root / path).is_file()]
    if missing:
        raise MissingInput("parts of the report are missing", where=", ".join(missing), hint="run: evaluate run")
    identity = hash_of([manifest.key, read_sealed(experiment.layout.root / OUTPUTS["scores"], "run: evaluate run")])
    if identity != manifest.identity:
        raise BadData(
            "the scores are not those of the manifest",
            where=experiment.layout.root / OUTPUTS["scores"],
            wanted=manifest.identity[:12],
            found=identity[:12],
            hint="run: evaluate run",
        )
    blocks = verify_blocks(require_counting(experiment)) if "blocks" in manifest.facts else 0
    for key in manifest.facts.get("works", ()):
        verify_blocks(work_of(experiment, key))
        find_work(experiment, key).require_whole()
    return {"identity": manifest.identity, "blocks_read_back": blocks, "verified": True}


def _scored(
    experiment: Experiment, config: EvaluateConfig, options: RunOptions, collector: history.Collector
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
        found = collector.collect(STAGE, lambda: _compare(experiment, config, options, segmented), None)
    gathered = Gathered(grid, segmented, truth, compared=found)
    if found is None:
        return gathered, scores_without(True, "nothing to compare: see the problems in the report", config.voi_limit)
    return gathered, {**scores_with_truth(found.scores, config.voi_limit), **regions_and_worst(found, grid)}


def _seams(experiment: Experiment, gathered: Gathered, collector: history.Collector) -> Seams | None:
    if gathered.grid is None or gathered.segmented is None:
        return None
    grid, fragments = gathered.grid, gathered.segmented.fragments
    blocks = BlockPlan(fragments.box, fragments.chunk_shape_vox)

    def look() -> Seams | None:
        return seams_of(open_volume(experiment.layout.segmentation, SEGMENTATION.dataset, grid), blocks)

    return collector.collect("segment", look, None)


def _compare(experiment: Experiment, config: EvaluateConfig, options: RunOptions, segmented: Segmented) -> Compared:
    found = compare(experiment, config, options, segmented)
    chosen = found.scores.chosen_score
    if chosen is not None:
        part = chosen.partition
        voi = f"VOI {part.voi:.3f} = {part.voi_split:.3f} split + {part.voi_merge:.3f} merge"
        LOG.info("%s at %.4f: %s, adapted Rand error %.3f", *found.scores.chosen, voi, part.adapted_rand_error)
    return found


def _write_manifest(
    experiment: Experiment,
    config: EvaluateConfig,
    scores: dict[str, Any],
    works: tuple[str, ...],
    seconds: float,
) -> None:
    inputs = {s: m.identity for s, m in history.manifests(experiment).items() if s in ("watershed", "segment")}
    table = config.model_dump(mode="json")
    key = work_key(STAGE, table, inputs)
    facts = {k: v for k, v in scores.items() if k not in ("thresholds", "worst", "regions", "lsd_error")}
    if "voi" in scores:
        facts["blocks"] = len(require_counting(experiment).plan)
    facts["works"] = list(works)
    Manifest(
        writer=Writer.of(STAGE),
        key=key,
        config=table,
        inputs=inputs,
        outputs=OUTPUTS,
        facts={**facts, "seconds": seconds},
        identity=hash_of([key, scores]),
    ).finish(experiment.layout)
