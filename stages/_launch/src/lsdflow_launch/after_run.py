"""How a run of the chain ended: the stage that stopped it and why, whether scores are current; the next commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import BlocksFailed, ConfigError, Interrupted, StageError, StorageFailure
from lsdflow_contract.experiment import STAGES, Experiment
from lsdflow_contract.files import read_json
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_launch.images.container import ContainerOptions

Runs = frozenset[Path]
# The manifest of predict names the identity of the checkpoint it used, not of the training.
SCORED = STAGES[STAGES.index("predict") :]
DEFAULT_CONTAINERS = ContainerOptions()
FIRST_STEPS = (
    "First time here: lsdflow demo demo && lsdflow run demo",
    "Your own volume: lsdflow init exp --volume raw.zarr && lsdflow run exp",
    "What is done, and what failed: lsdflow status exp",
    "TAB completes stages, folders and keys: lsdflow --install-completion",
)


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


def scores_are_current(layout: ExperimentLayout) -> bool:
    """Return False if a result from the prediction on was made after its scores, according to the manifests' inputs."""
    made = {stage: found for stage in SCORED if (found := _manifest(layout, stage)) is not None}
    named = ((made.get(stage), identity) for found in made.values() for stage, identity in found.inputs.items())
    return SCORED[-1] in made and all(source is None or source.identity == identity for source, identity in named)


def _manifest(layout: ExperimentLayout, stage: str) -> Manifest | None:
    try:
        return read_manifest(layout, stage)
    except StageError:
        return None


@dataclass(frozen=True)
class RunOptions:
    """The options of `lsdflow run`, except --set."""

    place: str = "local"
    first: str = STAGES[0]
    last: str = STAGES[-1]
    containing: ContainerOptions = DEFAULT_CONTAINERS

    def words(self) -> str:
        """Return the options as typed on the command line, without defaults."""
        here = self.containing
        given = {
            "--on": self.place if self.place != "local" else None,
            "--from": self.first if self.first != STAGES[0] else None,
            "--to": self.last if self.last != STAGES[-1] else None,
            "--engine": here.engine,
            "--images": here.sifs,
            "--network": here.network,
        }
        return "".join(f" {option} {shlex.quote(str(v))}" for option, v in given.items() if v is not None)


def next_steps(experiment: Experiment, code: int, options: RunOptions | None = None) -> list[str]:
    """Return useful commands after a run that ended with `code`, the most likely first, each with its reason.

    options: the options of the run, which are repeated.
    """
    options, folder = options or RunOptions(), shlex.quote(_display_path(experiment.path.parent))
    settings = "".join(f" --set {shlex.quote(o)}" for o in experiment.overrides)
    again = f"lsdflow run {folder}{options.words()}{settings}"
    look, again_after = (
        f"lsdflow status {folder}    # what failed, and why",
        f"{again}    # resumes, once that is fixed",
    )
    steps = {
        0: [f"lsdflow view {folder}    # view the result", f"lsdflow status {folder}"],
        Interrupted.exit_code: [f"{again}    # resumes"],
        BlocksFailed.exit_code: [look, f"{again}    # retries only those blocks"],
        StorageFailure.exit_code: [f"df -h {folder}    # free some space", again_after],
        ConfigError.exit_code: [f"lsdflow validate {folder}{settings}    # all problems at once", again_after],
    }
    return steps.get(Interrupted.exit_code if code > 128 else code, [look, again_after])


def _display_path(path: Path) -> str:
    """Return the path relative to the working folder if it is inside it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else str(path)
