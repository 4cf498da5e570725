"""`lsdflow sweep run --backend container`: a stage runs in the image that its run pins, and sees what it links to."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import UsageError
from lsdflow_launch.commands import run_stage
from lsdflow_launch.images.container import ContainerOptions
from lsdflow_launch.sweep.file import load_sweep
from lsdflow_launch.sweep.folder import SweepFolder, write_folders
from lsdflow_launch.sweep.run import caller_at

LABELS = {
    "lsdflow.stage": "segment",
    "lsdflow.contract": CONTRACT_VERSION,
    "org.opencontainers.image.version": "0.1.0",
    "lsdflow.image.digest": "sha256:" + "ab" * 32,
}
# `inspect` prints the labels of the SIF; `exec` logs its arguments, and ends with 3.
APPTAINER = """#!{bash}
if [[ $1 == inspect ]]; then echo '{labels}'; exit; fi
printf '%s\\n' "$@" >>"$0.called"
exit 3
"""


@pytest.fixture
def sweep(sweep_file: Callable[[str], Path], base: Path) -> SweepFolder:
    """Two runs; the base pins images, and names the folder of their SIFs relative to itself."""
    with (base / "experiment.toml").open("a") as file:
        file.write('[cluster]\nimages = "../sifs"\n')
    (base / "images.env").write_text("SEGMENT_IMAGE=lsdflow/segment:0.1.0\n")
    (base.parent / "sifs").mkdir()
    (base.parent / "sifs" / "segment_0.1.0.sif").touch()
    found = load_sweep(sweep_file("[axes]\n'segment.threshold' = [0.2, 0.4]\n"))
    return write_folders(found, found.default_folder)


def test_a_stage_of_a_run_is_executed_in_the_pinned_image_and_sees_the_base_and_the_sweep(
    sweep: SweepFolder, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    answer = json.dumps({"data": {"attributes": {"labels": LABELS}}})
    program.write_text(APPTAINER.format(bash=shutil.which("bash"), labels=answer))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    run = sweep.run_folder(sweep.plan.runs[0])
    call = caller_at("container", sweep, ContainerOptions("singularity"))
    assert call("segment", ["run", "--experiment", str(run / "experiment.toml")]) == 3
    words = program.with_name("apptainer.called").read_text().splitlines()
    sif = str(base.parent / "sifs" / "segment_0.1.0.sif")
    assert words[words.index(sif) :] == [sif, "segment", "run", "--experiment", str(run / "experiment.toml")]
    mounts = [value for option, value in itertools.pairwise(words) if option == "--mount"]
    for folder in (base, sweep.root, run):
        assert f"type=bind,source={folder},target={folder}" in mounts


def test_local_is_the_installed_command_and_an_unknown_place_is_refused(sweep: SweepFolder) -> None:
    assert caller_at("local", sweep, ContainerOptions()) is run_stage
    with pytest.raises(UsageError, match="containr"):
        caller_at("containr", sweep, ContainerOptions())
