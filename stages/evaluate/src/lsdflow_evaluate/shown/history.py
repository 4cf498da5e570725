"""What earlier stages left about themselves: errors, losses, block times, versions. Nothing here has to exist."""

from __future__ import annotations

import csv
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from lsdflow_contract.errors import StageError, fix_of
from lsdflow_contract.experiment import STAGES, Experiment
from lsdflow_contract.failed_blocks import FailedBlock, failed_blocks_of_results
from lsdflow_contract.files import read_json
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_evaluate.report.data import (
    BlockTimes,
    FragmentsBy,
    LossCurve,
    Problem,
    SegmentCount,
    SizeHistogram,
    StageVersion,
)
from lsdflow_evaluate.shown.block_maps import shown_work
from lsdflow_runtime.store.done_marks import BlockStore
from lsdflow_runtime.store.stores import open_store

TRAINING = ("train-lsd", "train-acrlsd")
MOST_BLOCK_RECORDS = 2000
MOST_FAILED_BLOCKS = 20

Value = TypeVar("Value")


class Collector:
    """Runs the parts of a report; a part that fails becomes a problem of the page instead of the end of it."""

    def __init__(self) -> None:
        self.errors: list[StageError] = []
        self.problems: list[Problem] = []

    def collect(self, stage: str, part: Callable[[], Value], otherwise: Value) -> Value:
        """The part, or `otherwise` if it raises a StageError."""
        try:
            return part()
        except StageError as error:
            self.errors.append(error)
            self.problems.append(problem_of(stage, error.as_dict()))
            return otherwise


def problem_of(stage: str, error: dict[str, Any]) -> Problem:
    """The problem that a recorded error (StageError.as_dict) is."""
    named = {name: str(error.get(name, "")) for name in ("what", "where", "wanted", "found")} | {"fix": fix_of(error)}
    return Problem(stage=stage, **{**named, "what": named["what"] or str(error.get("error", "unknown error"))})


def manifests(experiment: Experiment) -> dict[str, Manifest]:
    """Manifests of the stages that have finished and can be read."""
    found = {}
    for stage in STAGES:
        if experiment.layout.manifest(stage).exists():
            try:
                found[stage] = read_manifest(experiment.layout, stage)
            except StageError:
                continue
    return found


def fragments_by(experiment: Experiment) -> FragmentsBy:
    """How the fragments were made and named: the methods of the report tell it."""
    finished = manifests(experiment).get("watershed")
    if finished is None or finished.config.get("id_mode", "seamless") == "seamless":
        return "seamless"
    return "mutex" if finished.config.get("method") == "mutex" else "blocks"


def run_problems(experiment: Experiment) -> list[Problem]:
    """The error of each earlier stage's last run, if it ended in one, and its failed blocks, accepted or not."""
    accepted = failed_blocks_of_results(experiment.layout)
    problems = [accepted_problem(failed) for failed in accepted]
    for stage in STAGES[:-1]:
        outcome = _last_outcome(experiment, stage)
        if outcome.get("error"):
            problems.append(problem_of(stage, outcome["error"]))
        marks = _marks(experiment, stage)
        known = {failed.block for failed in accepted if failed.stage == stage}
        for number in sorted(marks.failed() - known)[:MOST_FAILED_BLOCKS] if marks else ():
            record = problem_of(stage, marks.failure(number)) if marks else None
            if record:
                problems.append(Problem(stage, f"block {number}: {record.what}", record.where, fix=record.fix))
    return problems


def accepted_problem(failed: FailedBlock) -> Problem:
    """A hole in the result of a finished stage."""
    return Problem(
        failed.stage,
        f"finished without block {failed.block}, as compute.failed_blocks allows: {failed.why}",
        where=str(failed.box),
        fix="the scores leave it out; lsdflow run tries it again",
    )


def loss_curves(experiment: Experiment) -> tuple[LossCurve, ...]:
    """loss.csv of each training stage that has one: loss and validation loss; rows that cannot be read are left out."""
    curves = []
    for stage in TRAINING:
        path = experiment.layout.train_dir(stage) / "loss.csv"
        if not path.exists():
            continue
        with path.open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if (row.get("iteration") or "").isdigit()]
        names = [n for n in (rows[0] if rows else {}) if n and "loss" in n]
        series = {name: np.array([_number(row.get(name)) for row in rows], np.float64) for name in names}
        iterations = np.array([int(row["iteration"]) for row in rows], np.int64)
        curves.append(LossCurve(stage, iterations, {n: v for n, v in series.items() if np.isfinite(v).any()}))
    return tuple(curves)


def block_times(experiment: Experiment) -> tuple[BlockTimes, ...]:
    """Seconds per block of each blockwise stage; of very many blocks an even sample."""
    times = []
    for stage in STAGES:
        marks = _marks(experiment, stage)
        if marks is None:
            continue
        done, failed = sorted(marks.done()), len(marks.failed())
        sample = done[:: max(1, len(done) // MOST_BLOCK_RECORDS)]
        seconds = np.array([float(marks.record(number).get("seconds", np.nan)) for number in sample], np.float64)
        total = max(len(done) + failed, _blocks_planned(experiment, stage))
        times.append(BlockTimes(stage, seconds[np.isfinite(seconds)], len(done), failed, total))
    return tuple(times)


def versions(experiment: Experiment) -> tuple[StageVersion, ...]:
    """Who wrote each finished artefact."""
    return tuple(
        StageVersion(
            stage=stage,
            version=found.writer.version,
            image_digest=found.writer.image_digest,
            revision=found.writer.revision,
            contract=found.contract,
            identity=found.identity,
            wall_s=found.facts.get("seconds"),
        )
        for stage, found in manifests(experiment).items()
    )


def segment_counts(luts: tuple[dict[str, Any], ...], chosen: tuple[str, float] | None) -> tuple[SegmentCount, ...]:
    """Segments per threshold from the side-cars of the lookup tables."""
    return tuple(
        SegmentCount(
            merge_function=str(facts["merge_function"]),
            threshold=float(facts["threshold"]),
            segments=int(facts["segments"]),
            largest_segment_vox=facts.get("largest_segment_vox"),
            change_to_next=facts.get("change_to_next_bits"),
            chosen=chosen == (facts["merge_function"], facts["threshold"]),
        )
        for facts in luts
    )


def segment_sizes(segment: Manifest) -> SizeHistogram | None:
    """The size histogram that segment counted."""
    facts = segment.facts
    if "size_edges_vox" not in facts:
        return None
    return SizeHistogram(np.array(facts["size_edges_vox"], np.int64), np.array(facts["size_segments"], np.int64))


def _last_outcome(experiment: Experiment, stage: str) -> dict[str, Any]:
    folder = experiment.layout.stage_runs(stage)
    runs = sorted(folder.glob("*/outcome.json")) if folder.is_dir() else []
    if not runs:
        return {}
    try:
        found = read_json(runs[-1])
    except StageError:
        return {}
    return found if isinstance(found, dict) else {}


def _marks(experiment: Experiment, stage: str) -> BlockStore | None:
    """Marks of the finished work, or else of the newest; none if the stage has no blocks."""
    store = open_store(experiment)
    keys = store.keys(stage)
    finished = manifests(experiment).get(stage)
    if not keys:
        return None
    return store.blocks(stage, shown_work(experiment, stage, finished, keys))


def _blocks_planned(experiment: Experiment, stage: str) -> int:
    finished = manifests(experiment).get(stage)
    return int(finished.facts.get("blocks", 0)) if finished else 0


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")
