"""The front command answers at once: it does not load what only a few of its verbs need."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"scipy", "h5py", "zarr", "numba", "torch", "daisy", "pymongo", "pyarrow"}


@pytest.mark.parametrize(
    "module",
    ["lsdflow_launch.cli", *(f"lsdflow_{s}.cli" for s in ("prepare", "predict", "watershed", "segment", "evaluate"))],
)
def test_a_command_starts_without_the_heavy_libraries(module: str) -> None:
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(done.stdout.split()) == set()
