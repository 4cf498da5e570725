"""The commands to suggest next: after a run has ended, and in a folder without an experiment."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from lsdflow_contract.errors import BlocksFailed, ConfigError, Interrupted, StorageFailure
from lsdflow_contract.experiment import STAGES, Experiment
from lsdflow_launch.place import Containing

HERE = Containing()

FIRST_STEPS = (
    "First time here: lsdflow demo demo && lsdflow run demo",
    "Your own volume: lsdflow init exp --volume raw.zarr && lsdflow run exp",
    "What is done, and what failed: lsdflow status exp",
    "TAB completes stages, folders and keys: lsdflow --install-completion",
)


@dataclass(frozen=True)
class Asked:
    """The options of `lsdflow run`, except --set."""

    place: str = "local"
    first: str = STAGES[0]
    last: str = STAGES[-1]
    containing: Containing = HERE

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


def after_run(experiment: Experiment, code: int, asked: Asked | None = None) -> list[str]:
    """Return useful commands after a run that ended with `code`, the most likely first, each with its reason.

    asked: the options of the run, which are repeated.
    """
    asked, folder = asked or Asked(), shlex.quote(_shown(experiment.path.parent))
    settings = "".join(f" --set {shlex.quote(o)}" for o in experiment.overrides)
    again = f"lsdflow run {folder}{asked.words()}{settings}"
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


def _shown(path: Path) -> str:
    """Return the path relative to the working folder if it is inside it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else str(path)
