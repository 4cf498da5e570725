"""The front command answers at once: it does not load what only a few of its verbs need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lsdflow_contract.experiment import STAGES

REPOSITORY = Path(__file__).resolve().parents[2]
HEAVY = {"scipy", "h5py", "zarr", "numba", "torch", "daisy", "pymongo", "pyarrow"}


@pytest.mark.parametrize(
    "module",
    ["lsdflow_launch.cli", *(f"lsdflow_{s}.cli" for s in ("prepare", "predict", "watershed", "segment", "evaluate"))],
)
def test_a_command_starts_without_the_heavy_libraries(module: str) -> None:
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert HEAVY & set(done.stdout.split()) == set()


@pytest.mark.parametrize("environment", ["blocks", "training"])
def test_an_activated_environment_of_the_clone_has_the_commands_of_all_stages(environment: str) -> None:
    """`make setup` links the commands of each environment into the other one."""
    folder = REPOSITORY / ".venv" / environment / "bin"
    found = {stage: shutil.which(stage, path=str(folder)) for stage in ("lsdflow", *STAGES)}
    assert [stage for stage, path in found.items() if path is None] == []
    output = subprocess.run([str(found["train-lsd"]), "--version"], capture_output=True, text=True, check=True).stdout
    assert output.startswith("train-lsd ")


def test_a_reader_that_leaves_does_not_end_a_command() -> None:
    """`lsdflow init DIR | head` ended with an internal error (70), and removed the folder."""
    code = "from lsdflow_predict.cli import app; app(['networks'])"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
