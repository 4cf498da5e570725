"""validate of the trainings reports what is wrong; it loads torch, which takes seconds, only to ask a CPU for bf16."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lsdflow_contract.errors import ConfigError
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
    output = subprocess.run(command, capture_output=True, text=True, check=False)
    assert output.stdout.split("\n")[:2] == [f"{stage}: no problems found", "False"], output.stderr


def test_bf16_is_refused_by_validate_and_by_run_where_the_cpu_cannot_compute_in_it(tmp_path: Path) -> None:
    toml = micro_experiment(tmp_path / "experiment", "mtlsd")
    code = "import sys; from lsdflow_train_acrlsd.cli import app; app(sys.argv[1:])"
    settings = ["--experiment", str(toml), "--set", "train-acrlsd.precision=bf16", "--set", "compute.device=cpu"]
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    for verb in ("validate", "run"):
        command = [sys.executable, "-c", code, verb, *settings]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        output = done.stdout + done.stderr
        assert done.returncode == ConfigError.exit_code, output
        assert "this CPU cannot compute in bf16" in output
    assert not (toml.parent / "train").exists()
