"""Which revision of the source code runs: an image says it, a clone is asked."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

# Set in every image, when it is built.
REVISION_VARIABLE = "LSDFLOW_REVISION"
_SECONDS = 10


def source_revision() -> str:
    """The commit of the running code, with "-dirty" where files differ from it; empty if nobody knows."""
    told = os.environ.get(REVISION_VARIABLE, "")
    if told:
        return told
    package = Path(__file__).resolve().parent
    # In a clone this package is stages/_contract/src/lsdflow_contract; anywhere else a .git above is somebody else's.
    if package.parts[-4:] != ("stages", "_contract", "src", package.name):
        return ""
    return revision_of_clone(package.parents[3])


@cache
def revision_of_clone(clone: Path) -> str:
    """The same of a clone, as it was when first asked; empty without .git there, or where git is missing or refuses."""
    if not (clone / ".git").exists():
        return ""
    command = ["git", "-C", str(clone), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True, env=quiet)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
