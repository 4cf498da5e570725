"""`lsdflow export` hands everything on to the command of the viewers' environment, and says how to get it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lsdflow_launch import commands
from lsdflow_launch.cli import app


def test_export_passes_arguments_options_and_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "lsdflow-view"
    fake.write_text(f'#!/bin/sh\nfor word; do echo "$word"; done > {tmp_path}/received\nexit 73\n')
    fake.chmod(0o755)
    monkeypatch.setenv(commands.BIN_VARIABLE, str(tmp_path))
    arguments = ["precomputed", "exp", "a folder", "--meshes", "10", "--layer=raw", "--help"]
    assert CliRunner().invoke(app, ["export", *arguments]).exit_code == 73
    assert (tmp_path / "received").read_text().splitlines() == ["export", *arguments]


def test_without_that_environment_it_says_how_to_make_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands.os, "access", lambda path, mode: False)
    monkeypatch.setattr(commands.shutil, "which", lambda name: None)
    done = CliRunner().invoke(app, ["export", "ome", "exp", "out"])
    assert done.exit_code == 66
    assert "make setup-view" in done.output
