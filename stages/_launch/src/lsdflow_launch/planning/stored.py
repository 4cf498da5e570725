"""DIR/plan.json: the prediction, kept for the comparison with the finished run.

A finished stage keeps the prediction that was made before it finished; a later estimate is not a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import MissingInput, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import read_json, write_json
from lsdflow_launch.planning.evidence import Quantity, StageRecord, mean_use_of_blocks, passes_of
from lsdflow_launch.planning.plan import Plan

COMPARED = ("walltime_s", "seconds", "rss_per_worker_bytes", "bytes_written", "files")
MIB = 2**20


def store_plan(experiment: Experiment, plan: Plan) -> Path:
    """Write the plan and return its path. Raises PermissionDenied (77) or StorageFailure (74)."""
    facts, before = plan.as_dict(), predicted_stages(experiment)
    for stage, estimate in facts["stages"].items():
        earlier = before.get(stage)
        if plan.estimates[stage].share_left == 0:
            kept = earlier if earlier and earlier["share_left"] > 0 else {**estimate, "share_left": 0.0}
            facts["stages"][stage] = kept
    write_json(experiment.layout.plan, facts)
    return experiment.layout.plan


def predicted_stages(experiment: Experiment) -> dict[str, Any]:
    """Return the estimates of the stages in plan.json; empty if it does not exist or cannot be read."""
    try:
        found = read_json(experiment.layout.plan)
    except StageError:
        return {}
    stages = found.get("stages", {}) if isinstance(found, dict) else {}
    return {name: stage for name, stage in stages.items() if isinstance(stage, dict) and "share_left" in stage}


def predicted(stage: Mapping[str, Any], name: str) -> float | None:
    """Return a predicted number of a stage; None if there is none, or if it was made after the stage had finished."""
    number = stage.get(name)
    if stage.get("share_left", 0.0) == 0 or not isinstance(number, dict):
        return None
    return Quantity.of_dict(number).value


@dataclass(frozen=True)
class Comparison:
    """One number of a stage, predicted and actual."""

    stage: str
    name: str
    predicted: float | None
    actual: float | None

    @property
    def ratio(self) -> float | None:
        """Return actual / predicted; None if one of them is not known."""
        return self.actual / self.predicted if self.actual is not None and self.predicted else None

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers for --json."""
        return {"predicted": self.predicted, "actual": self.actual, "ratio": self.ratio}


def compare(experiment: Experiment, records: Mapping[str, StageRecord]) -> list[Comparison]:
    """Return predicted and actual numbers of every stage that has finished.

    Raises MissingInput (66) without a plan.
    """
    before = predicted_stages(experiment)
    if not before:
        fix = "make one before the run: lsdflow plan DIR --measure"
        raise MissingInput("there is no plan to compare with", where=experiment.layout.plan, fix=fix)
    found = []
    for stage, what in records.items():
        actual = _actual(what) if what.finished else {}
        for name in COMPARED:
            expected, actual_value = predicted(before.get(stage, {}), name), actual.get(name)
            if what.finished and (expected is not None or actual_value is not None):
                found.append(Comparison(stage, name, expected, actual_value))
    return found


def planned_seconds(experiment: Experiment, stage: str) -> float | None:
    """Return the predicted walltime of a stage; None if there is no prediction."""
    return predicted(predicted_stages(experiment).get(stage, {}), "walltime_s")


def _actual(record: StageRecord) -> dict[str, float | None]:
    passes = [*passes_of(record.facts).values()]
    if not any(p.get("taken") for p in passes):
        passes = [{"taken": mean_use_of_blocks(record), "blocks": record.manifest.get("blocks", 0)}]
    seconds = [p["taken"]["seconds_per_block"] * p["blocks"] for p in passes if p.get("taken")]
    peaks = [p["taken"]["peak_rss_mib"] for p in passes if p.get("taken")]
    return {
        "walltime_s": record.seconds,
        "seconds": sum(seconds) if seconds else None,
        "rss_per_worker_bytes": max(peaks) * MIB if peaks else None,
        "bytes_written": record.disk.size_bytes if record.disk.complete else None,
        "files": record.disk.files if record.disk.complete else None,
    }
