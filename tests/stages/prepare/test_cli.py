"""The command: exit codes, JSON, and no bytes written by validate."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lsdflow_contract.experiment import Experiment
from lsdflow_prepare.cli import app

Make = Callable[..., Experiment]


def call(verb: str, experiment: Experiment, *more: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [verb, "--experiment", str(experiment.path), *more])
    return result.exit_code, result.output


@pytest.mark.proves("CON-03")
def test_run_then_status(container: Path, experiment: Make) -> None:
    loaded = experiment()
    assert call("run", loaded)[0] == 0
    code, output = call("status", loaded, "--json")
    assert code == 0
    assert json.loads(output.splitlines()[-1])["finished"] is True


def test_validate_exits_with_the_code_of_the_first_problem_and_writes_nothing(
    container: Path, put: Callable[..., Path], experiment: Make, ids: np.ndarray
) -> None:
    put("volumes/labels/neuron_ids", ids.astype(np.float32))
    loaded = experiment()
    code, output = call("validate", loaded, "--json")
    assert code == 65
    assert json.loads(output.splitlines()[-1])[0]["exit_code"] == 65
    assert [path.name for path in loaded.path.parent.iterdir()] == ["experiment.toml"]


def test_unknown_key_gets_a_suggestion(container: Path, experiment: Make) -> None:
    code, output = call("validate", experiment(), "--set", "prepare.traget=1")
    assert code == 78
    assert "target" in output


def test_schema_describes_every_key() -> None:
    result = CliRunner().invoke(app, ["schema"])
    schema = json.loads(result.output)
    tables = [schema, *schema["$defs"].values()]
    keys = [(name, key) for table in tables for name, key in table["properties"].items()]
    assert [name for name, key in keys if not key.get("description")] == []
