"""Which software makes a result: the revision of lsdflow's source, and the versions of the libraries it depends on.

An image knows its revision from its build; of a clone git reports it.
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


def source_revision() -> str:
    """The commit of the running code, with "-dirty" where files differ from it; empty if nobody knows."""
    revision = os.environ.get(REVISION_VARIABLE, "")
    if revision:
        return revision
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


# What computes, reads, writes or schedules voxels; what only talks to people is left out.
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


def library_versions() -> dict[str, str]:
    """Version by name, of Python and of those LIBRARIES that are installed; nothing is imported."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
