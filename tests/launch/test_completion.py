"""TAB after the verbs of `lsdflow`: the folder of an experiment, and the keys of the one that is named already."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lsdflow_launch.cli import app

SCHEMA = {"properties": {"watershed": {"properties": {"method": {"enum": ["seeded", "mutex"]}}}}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An experiment with the schema that init writes beside it."""
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "experiment.toml").touch()
    (tmp_path / "exp" / "experiment.schema.json").write_text(json.dumps(SCHEMA))
    return tmp_path / "exp"


def offered(shell: str, typed: str) -> str:
    words = f"lsdflow {typed}"
    asking = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1), "_TYPER_COMPLETE_ARGS": words}
    asking |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_LSDFLOW_COMPLETE": f"complete_{shell}"}
    return CliRunner().invoke(app, env=asking, prog_name="lsdflow").stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_set_is_offered_the_keys_of_the_experiment_that_the_line_names(folder: Path, shell: str) -> None:
    for verb in ("run", "validate", "plan"):
        assert "watershed.method=" in offered(shell, f"{verb} {folder} --set wa"), verb
    assert "watershed.method=" in offered(shell, f"run {folder} --set segment.threshold=0.2 --set wa")
    assert "watershed.method=mutex" in offered(shell, f"run {folder} --to watershed --set watershed.method=m")


def test_set_is_offered_the_keys_of_the_working_folder_where_the_line_names_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert "watershed.method=" in offered("zsh", "run --set wa")


@pytest.mark.parametrize("verb", ["validate", "doctor", "status"])
def test_a_verb_on_an_experiment_is_offered_folders_of_experiments(folder: Path, verb: str) -> None:
    assert offered("bash", f"{verb} {folder.parent}/e").split() == [str(folder)]
