"""What to type next: after a run has ended, and in a folder that is no experiment."""

from __future__ import annotations

import shlex
from pathlib import Path

from lsdflow_contract.errors import BlocksFailed, ConfigError, Interrupted, NotOurs, StorageFailure
from lsdflow_contract.experiment import Experiment

FIRST_STEPS = (
    "First time here: lsdflow demo demo && lsdflow run demo",
    "Your own volume: lsdflow init exp --volume raw.zarr && lsdflow run exp",
    "How far it is, and what failed: lsdflow status exp",
    "TAB completes stages, folders and keys: lsdflow --install-completion",
)


def after_run(experiment: Experiment, code: int) -> list[str]:
    """Commands that make sense after a run that ended with `code`, the most likely first, each with its reason."""
    folder = shlex.quote(_shown(experiment.path.parent))
    again = f"lsdflow run {folder}{''.join(f' --set {shlex.quote(o)}' for o in experiment.overrides)}"
    look, again_after = (
        f"lsdflow status {folder}    # what failed, and why",
        f"{again}    # goes on when that is mended",
    )
    steps = {
        0: [f"lsdflow view {folder}    # look at it", f"lsdflow status {folder}"],
        Interrupted.exit_code: [f"{again}    # goes on where it stopped"],
        BlocksFailed.exit_code: [look, f"{again}    # tries only those blocks again"],
        NotOurs.exit_code: [look, f"{again} --replace    # only if what was made before may be thrown away"],
        StorageFailure.exit_code: [f"df -h {folder}    # make room", again_after],
        ConfigError.exit_code: [f"lsdflow validate {folder}    # all problems at once", again_after],
    }
    return steps.get(Interrupted.exit_code if code > 128 else code, [look, again_after])


def _shown(path: Path) -> str:
    """Relative where it lies below the working folder, as people type it."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) and path != here else str(path)
