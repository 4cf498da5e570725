"""The stage of docs/add_a_stage.md, in a copy of the repository in which the page was followed step by step."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from lsdflow_contract.arrays import RAW
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_launch.init.demo import make_demo
from lsdflow_runtime.io.volumes import open_volume

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "add_a_stage.md").read_text(encoding="utf-8")
COPIED = ("stages", "containers", "compose", "slurm_wrappers")
CODE = re.compile(r"```python\n# (lsdflow_smooth/\w+\.py)\n(.*?)```", re.DOTALL)
# The last one is the default, so its result is the current one.
RADII = (2, 1)
BLOCKS = 2 * 3 * 4


@dataclass(frozen=True)
class Followed:
    """The copy with the stage, and an experiment in which it ran."""

    root: Path
    experiment: Path

    def run(self, *command: str | Path, code: int = 0) -> str:
        """The output of a command of the copy."""
        sources = [self.root / "installed", *sorted((self.root / "stages").glob("*/src"))]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, sources)),
            "LSDFLOW_BIN": str(self.root / "installed" / "bin"),
            "LSDFLOW_WRAPPERS": str(self.root / "slurm_wrappers"),
        }
        done = subprocess.run(command, env=environment, cwd=self.root, capture_output=True, text=True, check=False)
        assert done.returncode == code, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def lsdflow(self, verb: str, *options: str) -> str:
        """The output of a verb of `lsdflow` for the experiment."""
        return self.run(Path(sys.executable).with_name("lsdflow"), verb, self.experiment, *options)

    def ask(self, verb: str, *options: str) -> dict[str, Any]:
        """The same as JSON."""
        answer: dict[str, Any] = json.loads(self.lsdflow(verb, *options, "--json"))
        return answer


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("copy")
    for name in COPIED:
        shutil.copytree(REPOSITORY / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "docker-bake.hcl", root)
    files = CODE.findall(PAGE)
    assert [name for name, _ in files] == [f"lsdflow_smooth/{n}.py" for n in ("median", "config", "stage", "cli")]
    stage = root / "stages" / "smooth"
    (stage / "src" / "lsdflow_smooth").mkdir(parents=True)
    (stage / "src" / "lsdflow_smooth" / "__init__.py").write_text('"""lsdflow-smooth."""\n')
    for name, text in files:
        (stage / "src" / name).write_text(text)
    (project,) = re.findall(r"```text\n# pyproject.toml\n(.*?)```", PAGE, re.DOTALL)
    (stage / "pyproject.toml").write_text(project)
    (line,) = re.findall(r"^ *(smooth = \{.*\}\n)", PAGE, re.MULTILINE)
    stages = root / "stages" / "_contract" / "src" / "lsdflow_contract" / "stages.toml"
    stages.write_text(re.sub(r"(?m)^prepare = .*\n", lambda found: found[0] + line, stages.read_text()))
    subprocess.run([sys.executable, root / "containers" / "stages.py"], check=True)  # make stages
    # In place of `make lock && make setup`: what the stage needs is installed.
    uv, place = REPOSITORY / ".venv" / "tools" / "bin" / "uv", ("--target", root / "installed", "--python")
    options = ("--quiet", "--offline", "--no-deps", "--no-build-isolation", "--no-sources")
    subprocess.run([uv, "pip", "install", *options, *place, sys.executable, stage], check=True)
    return root


@pytest.fixture(scope="module")
def followed(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Followed:
    experiment = tmp_path_factory.mktemp("experiments") / "exp"
    make_demo(experiment, (60, 70, 80), seed=3, mode="acrlsd")
    with (experiment / "experiment.toml").open("a") as file:
        file.write('\n[smooth]\nblock_shape = "24 vox"\n')
    made = Followed(copy, experiment)
    made.lsdflow("validate")
    for radius in RADII:
        made.lsdflow("run", "--to", "smooth", "--set", f"smooth.radius_vox={radius}")
    return made


@pytest.mark.proves("NEW-16")
def test_its_blocks_give_what_one_shot_gives_and_two_radii_lie_side_by_side(followed: Followed) -> None:
    median = _module(followed.root / "stages" / "smooth" / "src" / "lsdflow_smooth" / "median.py").median
    raw = open_volume(ExperimentLayout(followed.experiment).target_volume, RAW.dataset)
    values = raw.read(raw.box)
    results = (followed.experiment / "results" / "smooth").glob("*/smooth.zarr")
    found = [open_volume(path, "volumes/smooth") for path in results]
    smoothed = {volume.read(volume.box).tobytes() for volume in found}
    assert smoothed == {median(values, radius).tobytes() for radius in RADII}
    assert len(smoothed | {np.asarray(values).tobytes()}) == 1 + len(RADII)


def test_it_is_planned_reported_and_verified(followed: Followed) -> None:
    assert followed.ask("plan")["smooth"]["blocks"] == BLOCKS
    assert followed.ask("status")["smooth"]["state"] == "finished"
    assert followed.ask("verify")["answers"]["smooth"]["verified"] is True
    own = json.loads(
        followed.run(followed.root / "installed/bin/smooth", "plan", "--experiment", followed.experiment, "--json")
    )
    assert own["blocks"] == BLOCKS


def test_the_cluster_runs_it_with_workers(followed: Followed) -> None:
    output = followed.lsdflow("submit", "--dry-run", "--workers", "smooth=3")
    assert re.search(r"sbatch .*--array=0-2 .*smooth\.sbatch", output), output
    assert "usage: sbatch" in followed.run("bash", followed.root / "slurm_wrappers" / "smooth.sbatch", "--help")


def test_compose_runs_it_between_its_neighbours(copy: Path) -> None:
    services = yaml.safe_load((copy / "compose" / "compose.yaml").read_text())["services"]
    assert services["smooth"]["image"].startswith("${SMOOTH_IMAGE:?")
    assert (*services["smooth"]["depends_on"], *services["train-lsd"]["depends_on"]) == ("prepare", "smooth")
    assert '"smooth"' in (copy / "docker-bake.hcl").read_text()


def test_the_page_is_well_formatted_code(copy: Path) -> None:
    ruff = [Path(sys.executable).with_name("ruff"), "check", "--config", REPOSITORY / "ruff.toml"]
    done = subprocess.run([*ruff, copy / "stages" / "smooth"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def _module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
