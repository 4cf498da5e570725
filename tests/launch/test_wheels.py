"""`make wheels`, and the lines of docs/quick_start.md that install them where there is no clone."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
UV = REPOSITORY / ".venv" / "tools" / "bin" / "uv"
PAGE = (REPOSITORY / "docs" / "quick_start.md").read_text(encoding="utf-8").partition("## Without a clone")[2]
# A small part of the volume of the trial, up to the network; the later stages would compile for minutes.
SMALL = """--to predict --set 'prepare.target.roi={offset="0, 0, 0 vox", shape="40, 64, 64 vox"}'"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels") / "dist"
    subprocess.run(["make", "--silent", "-C", REPOSITORY, "wheels", f"DIST={folder}"], check=True)
    return folder


def _type(lines: str, folder: Path, dist: Path) -> str:
    """Type lines of the page, with uv in the place of pip, which takes minutes; return the output."""
    # The clone's wheels of torch for CPUs, if it has them, as in the Makefile.
    wheels = os.environ.get("PIP_FIND_LINKS", "")
    torch = (
        f"--find-links {wheels}" if list(Path(wheels or "/nowhere").glob("torch-*cpu*.whl")) else "--torch-backend cpu"
    )
    for of_page, command in (("training/bin/pip", "training"), ("pip", "lsdflow")):
        lines = lines.replace(
            f"\n{of_page} install", f"\n{UV} pip install --quiet {torch} --python {command}/bin/python"
        )
    assert lines.count(str(UV)) == 1
    environment = {k: v for k, v in os.environ.items() if k not in ("LSDFLOW_BIN", "PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"DIST": str(dist), "PATH": "/usr/local/bin:/usr/bin:/bin:" + _folder_of("python3.11")}
    done = subprocess.run(
        ["bash", "-ec", lines], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _folder_of(program: str) -> str:
    found = subprocess.run(["bash", "-c", f"type -p {program}"], capture_output=True, text=True, check=True)
    return str(Path(found.stdout.strip()).parent)


def test_the_lines_of_the_page_install_lsdflow_and_segment_without_a_clone(tmp_path: Path, dist: Path) -> None:
    blocks, training = re.findall(r"^```\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    output = _type(
        "\n" + blocks.replace("run trial", f"validate trial; lsdflow run trial {SMALL} --json"), tmp_path, dist
    )
    assert "no problems found" in output
    assert (tmp_path / "trial" / "manifests" / "predict.json").is_file()
    commands = {path.name for path in (tmp_path / "lsdflow" / "bin").iterdir()}
    assert {"prepare", "segment"} <= commands
    assert "train-lsd" not in commands
    first = ". lsdflow/bin/activate\n"
    done = subprocess.run(
        ["bash", "-c", f"{first}lsdflow init own --volume trial/input/volume.hdf"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 66
    assert "pip install lsdflow-train-lsd" in done.stderr
    output = _type(first + training + "train-acrlsd --version\n", tmp_path, dist)
    assert (tmp_path / "trained" / "experiment.toml").is_file()
    assert output.rstrip().splitlines()[-1].startswith("train-acrlsd ")
