"""`lsdflow view` and `export` call the command of the viewers' environment with the options, and say how to get it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lsdflow_launch import commands
from lsdflow_launch.cli import app


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    folder = tmp_path / "my exp"
    folder.mkdir()
    (folder / "experiment.toml").write_text("")
    return folder


@pytest.fixture
def received(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The arguments that a stand-in for lsdflow-view got."""
    fake = tmp_path / "lsdflow-view"
    fake.write_text(f'#!/bin/sh\nfor word; do echo "$word"; done > {tmp_path}/received\nexit 2\n')
    fake.chmod(0o755)
    monkeypatch.setenv(commands.BIN_VARIABLE, str(tmp_path))
    return tmp_path / "received"


def test_options_and_exit_code_go_through(experiment: Path, received: Path) -> None:
    options = ["--at", "-1, 2, 3 vox", "--port", "9000", "--no-browser", "--host", "node1"]
    assert CliRunner().invoke(app, ["view", str(experiment), *options]).exit_code == 2
    wanted = ["show", str(experiment), "--port=9000", "--at=-1, 2, 3 vox", "--host=node1", "--no-browser"]
    assert received.read_text().splitlines() == wanted


def test_without_options_the_viewer_chooses(experiment: Path, received: Path) -> None:
    assert CliRunner().invoke(app, ["view", str(experiment)]).exit_code == 2
    assert received.read_text().splitlines() == ["show", str(experiment), "--port=0"]


def test_a_folder_that_is_no_experiment_is_reported_before_any_viewer_starts(tmp_path: Path, received: Path) -> None:
    done = CliRunner().invoke(app, ["view", str(tmp_path)])
    assert done.exit_code == 66
    assert "no experiment file and no export" in done.output
    (tmp_path / ".export").mkdir()
    done = CliRunner().invoke(app, ["view", str(tmp_path)])
    assert done.exit_code == 66
    assert "the export is not finished" in done.output
    assert not received.exists()


@pytest.mark.parametrize("record", ["lsdflow_export.json", "zarr.json"])
def test_what_may_be_an_export_is_given_to_the_viewer_and_a_layer_of_one_is_told_its_folder(
    tmp_path: Path, received: Path, record: str
) -> None:
    (tmp_path / "out" / "raw").mkdir(parents=True)
    (tmp_path / "out" / record).write_text("{}")
    assert CliRunner().invoke(app, ["view", str(tmp_path / "out")]).exit_code == 2
    assert received.read_text().splitlines()[:2] == ["show", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["view", str(tmp_path / "out" / "raw")])
    assert done.exit_code == 66
    if record == "lsdflow_export.json":
        assert f"lsdflow view {tmp_path / 'out'}" in done.output.replace("\n", "")


def test_without_that_environment_it_says_how_to_make_it(experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(commands.BIN_VARIABLE, raising=False)
    real = Path.is_file
    monkeypatch.setattr(commands.Path, "is_file", lambda self: self.name != "lsdflow-view" and real(self))
    monkeypatch.setattr(commands.shutil, "which", lambda name: None)
    done = CliRunner().invoke(app, ["view", str(experiment)])
    assert done.exit_code == 66
    assert "make setup-view" in done.output


def test_export_passes_arguments_options_and_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "lsdflow-view"
    fake.write_text(f'#!/bin/sh\nfor word; do echo "$word"; done > {tmp_path}/received\nexit 73\n')
    fake.chmod(0o755)
    monkeypatch.setenv(commands.BIN_VARIABLE, str(tmp_path))
    arguments = ["precomputed", "exp", "a folder", "--meshes", "10", "--layer=raw", "--help"]
    assert CliRunner().invoke(app, ["export", *arguments]).exit_code == 73
    assert (tmp_path / "received").read_text().splitlines() == ["export", *arguments]


def test_without_that_environment_export_says_how_to_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands.os, "access", lambda path, mode: False)
    monkeypatch.setattr(commands.shutil, "which", lambda name: None)
    done = CliRunner().invoke(app, ["export", "ome", "exp", "out"])
    assert done.exit_code == 66
    assert "make setup-view" in done.output
