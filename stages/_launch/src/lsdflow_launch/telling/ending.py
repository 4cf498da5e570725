"""How a run of the chain ended: which stage stopped it and why, and whether the scores match the present results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import STAGES, Experiment
from lsdflow_contract.files import read_json
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, read_manifest

Runs = frozenset[Path]
# The manifest of predict names the identity of the checkpoint it used, not of the training.
SCORED = STAGES[STAGES.index("predict") :]


@dataclass(frozen=True)
class Ending:
    """The stage that ended a chain ("" if none did, or if it is not known), and the error that it reported."""

    stage: str = ""
    error: dict[str, Any] | None = None


def runs_of(experiment: Experiment, stages: Sequence[str]) -> Runs:
    """Return the folders of all runs of `stages` that have begun."""
    found = (path for stage in stages for path in experiment.layout.stage_runs(stage).glob("*/config.resolved.json"))
    return frozenset(path.parent for path in found)


def ending_of(experiment: Experiment, stages: Sequence[str], code: int, before: Runs | None = None) -> Ending:
    """Return the stage that ended a chain of `stages` with `code`: the first that failed or left no outcome.

    before: the runs that existed when the chain began. None if not known, as for jobs that were followed; then only a
    stage that ended with `code` counts.
    """
    for stage in stages if code else ():
        new = runs_of(experiment, [stage]) - (before or frozenset())
        outcome = outcome_of(max(new, key=lambda folder: folder.name)) if new else {}
        if outcome.get("exit_code") != 0:
            known = before is not None or outcome.get("exit_code") == code
            return Ending(stage, outcome.get("error")) if known else Ending()
    return Ending()


def outcome_of(run: Path) -> dict[str, Any]:
    """Return the outcome of a run; {} if it has not ended, was killed, or if the file cannot be read."""
    path = run / "outcome.json"
    try:
        found = read_json(path) if path.exists() else {}
    except StageError:
        return {}
    return found if isinstance(found, dict) else {}


def scores_stand(layout: ExperimentLayout) -> bool:
    """Return False if a result from the prediction on was made after its scores, according to the manifests' inputs."""
    made = {stage: found for stage in SCORED if (found := _manifest(layout, stage)) is not None}
    named = ((made.get(stage), identity) for found in made.values() for stage, identity in found.inputs.items())
    return SCORED[-1] in made and all(source is None or source.identity == identity for source, identity in named)


def _manifest(layout: ExperimentLayout, stage: str) -> Manifest | None:
    try:
        return read_manifest(layout, stage)
    except StageError:
        return None
