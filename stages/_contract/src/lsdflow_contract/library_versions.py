"""Which versions of the libraries that a result depends on are installed where a stage runs."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

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
