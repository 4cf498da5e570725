"""The software that computes a result: the revision of lsdflow's source, and the versions of its libraries.

The revision of an image is set at its build; that of a clone is read from git.
"""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# Set in every image, when it is built.
REVISION_VARIABLE = "LSDFLOW_REVISION"
_SECONDS = 10
# Libraries that compute, read, write or schedule voxels; those of the user interface are left out.
LIBRARIES = (
    "connected-components-3d",
    "daisy",
    "gunpowder",
    "h5py",
    "lsds",
    "numba",
    "numcodecs",
    "numpy",
    "pymongo",
    "scikit-image",
    "scipy",
    "tensorflow-cpu",
    "tensorstore",
    "torch",
    "waterz",
    "zarr",
)


def source_revision() -> str:
    """The commit of the running code, with "-dirty" if files differ from it; empty if unknown."""
    revision = os.environ.get(REVISION_VARIABLE, "")
    if revision:
        return revision
    package = Path(__file__).resolve().parent
    # In a clone this package is stages/_contract/src/lsdflow_contract; elsewhere a .git above is another repository.
    if package.parts[-4:] != ("stages", "_contract", "src", package.name):
        return ""
    return revision_of_clone(package.parents[3])


@cache
def revision_of_clone(clone: Path) -> str:
    """The commit of a clone at the first call; empty without .git, or if git is missing or fails."""
    if not (clone / ".git").exists():
        return ""
    command = ["git", "-C", str(clone), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True, env=quiet)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def library_versions() -> dict[str, str]:
    """Version by name, of Python and of the installed LIBRARIES; nothing is imported."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
