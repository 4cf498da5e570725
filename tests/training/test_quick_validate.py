"""validate of the trainings tells what is wrong without loading torch, which takes seconds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lsdflow_train_lsd.cli import app as train_lsd
from lsdflow_training.testing import micro_experiment

CODE = """
import sys
from importlib import import_module
from pathlib import Path
from lsdflow_network import devices

devices.gpu_count.__defaults__ = (Path("/nowhere"),)  # where there is a driver of GPUs, torch has to be asked
app = import_module(f"lsdflow_{sys.argv[1]}.cli").app
app(["validate", "--experiment", sys.argv[2], "--set", "compute.device=auto"], standalone_mode=False)
print("torch" in sys.modules)
"""


@pytest.mark.parametrize(
    ("stage", "mode"), [("train-lsd", "acrlsd"), ("train-acrlsd", "acrlsd"), ("train-acrlsd", "mtlsd")]
)
def test_validate_does_not_load_torch(stage: str, mode: str, tmp_path: Path) -> None:
    toml = micro_experiment(tmp_path / "experiment", mode)
    if (stage, mode) == ("train-acrlsd", "acrlsd"):
        done = CliRunner().invoke(train_lsd, ["run", "--experiment", str(toml), "--set", "train-lsd.max_iteration=1"])
        assert done.exit_code == 0, done.output
    command = [sys.executable, "-c", CODE, stage.replace("-", "_"), str(toml)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.stdout.split("\n")[:2] == [f"{stage}: no problems found", "False"], told.stderr
