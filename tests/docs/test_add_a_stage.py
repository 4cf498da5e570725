"""The stage that docs/add_a_stage.md builds: its files as written on the page, run on a small volume."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lsdflow_contract.arrays import RAW
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_runtime.io.volumes import OutputArray, open_volume

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "add_a_stage.md"
BLOCK = re.compile(r"```python\n# (lsdflow_smooth/\w+\.py)\n(.*?)```", re.DOTALL)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    files = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert [name for name, _ in files] == [f"lsdflow_smooth/{n}.py" for n in ("median", "config", "stage", "cli")]
    (tmp_path / "src" / "lsdflow_smooth").mkdir(parents=True)
    (tmp_path / "src" / "lsdflow_smooth" / "__init__.py").touch()
    for name, text in files:
        (tmp_path / "src" / name).write_text(text)
    (project,) = re.findall(r"```text\n# pyproject.toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    ((name, stage),) = tomllib.loads(project)["project"]["entry-points"]["lsdflow.stages"].items()
    installed = tmp_path / "src" / "lsdflow_smooth-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: lsdflow_smooth\nVersion: 0\n")
    (installed / "entry_points.txt").write_text(f"[lsdflow.stages]\n{name} = {stage}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    return tmp_path / "src"


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    root = tmp_path / "exp"
    root.mkdir()
    (root / "experiment.toml").write_text('[experiment]\nname = "smooth"\n[compute]\nrunner = "serial"\n')
    grid = Geometry((10.0, 5.0, 5.0), (20.0, 0.0, 0.0), (18, 16, 11))
    raw = OutputArray(root / "results" / "prepare" / "target.zarr", RAW, grid, grid.box, (8, 8, 8))
    raw.create({"key": "raw"})
    values = np.random.default_rng(0).integers(0, 256, grid.shape_vox).astype(np.uint8)
    raw.open().write(Box((0, 0, 0), grid.shape_vox), values)
    return root


def test_its_blocks_give_what_one_shot_gives(package: Path, experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = importlib.import_module("lsdflow_smooth.cli").app
    task = importlib.import_module("lsdflow_smooth.stage")
    config = importlib.import_module("lsdflow_smooth.config").SmoothConfig
    # the table [smooth] is known to the contract once the stage is in STAGES; here its options are given directly
    chosen = config(radius_vox=2, block_shape="8 vox")
    monkeypatch.setattr("lsdflow_contract.experiment.Experiment.table", lambda *_: chosen)
    done = CliRunner().invoke(app, ["run", "--experiment", str(experiment)])
    assert done.exit_code == 0, done.output
    raw = open_volume(experiment / "results" / "prepare" / "target.zarr", RAW.dataset)
    smooth = open_volume(experiment / "smooth.zarr", task.SMOOTH.dataset)
    wanted = importlib.import_module("lsdflow_smooth.median").median(raw.read(raw.box), 2)
    np.testing.assert_array_equal(smooth.read(smooth.box), wanted)
    assert not np.array_equal(wanted, raw.read(raw.box))
    verified = CliRunner().invoke(app, ["verify", "--experiment", str(experiment)])
    assert (verified.exit_code, "verified: True" in verified.output) == (0, True), verified.output
    plan = json.loads(CliRunner().invoke(app, ["plan", "--experiment", str(experiment), "--json"]).stdout)
    assert plan["blocks"] == 3 * 2 * 2


def test_the_page_is_well_formatted_and_typed_code(package: Path) -> None:
    ruff = Path(sys.executable).with_name("ruff")
    done = subprocess.run(
        [ruff, "check", "--config", REPOSITORY / "ruff.toml", package], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout
