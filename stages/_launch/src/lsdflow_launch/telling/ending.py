"""How a run of the chain ended: which stage stopped it and why, and whether the scores are those of what lies there."""

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
# A network's identity in the manifest of predict is that of the checkpoint that was taken, not of the training.
SCORED = STAGES[STAGES.index("predict") :]


@dataclass(frozen=True)
class Ending:
    """The stage that ended a chain ("" if none did, or nobody knows), and the error as it told it itself."""

    stage: str = ""
    error: dict[str, Any] | None = None


def runs_of(experiment: Experiment, stages: Sequence[str]) -> Runs:
    """Folders of all runs of `stages` that have begun."""
    found = (path for stage in stages for path in experiment.layout.stage_runs(stage).glob("*/config.resolved.json"))
    return frozenset(path.parent for path in found)


def ending_of(experiment: Experiment, stages: Sequence[str], code: int, before: Runs | None = None) -> Ending:
    """Who ended a chain of `stages` with `code`: the first whose run did not end well, or that left none.

    before: runs that there were when the chain began. None where that is not known, as of jobs that were followed: then
    only a stage that ended with `code` is believed.
    """
    for stage in stages if code else ():
        new = runs_of(experiment, [stage]) - (before or frozenset())
        outcome = outcome_of(max(new, key=lambda folder: folder.name)) if new else {}
        if outcome.get("exit_code") != 0:
            known = before is not None or outcome.get("exit_code") == code
            return Ending(stage, outcome.get("error")) if known else Ending()
    return Ending()


def outcome_of(run: Path) -> dict[str, Any]:
    """How a run ended; {} if it has not, was killed, or if that cannot be read."""
    path = run / "outcome.json"
    try:
        found = read_json(path) if path.exists() else {}
    except StageError:
        return {}
    return found if isinstance(found, dict) else {}


def scores_stand(layout: ExperimentLayout) -> bool:
    """False if anything from the prediction on was made anew since it was scored: manifests name their inputs."""
    made = {stage: found for stage in SCORED if (found := _manifest(layout, stage)) is not None}
    named = ((made.get(stage), identity) for found in made.values() for stage, identity in found.inputs.items())
    return SCORED[-1] in made and all(source is None or source.identity == identity for source, identity in named)


def _manifest(layout: ExperimentLayout, stage: str) -> Manifest | None:
    try:
        return read_manifest(layout, stage)
    except StageError:
        return None
