"""TAB after `lsdflow sweep`: folders of sweeps, files that may be one, axes and their values."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from lsdflow_launch.sweep.cli import axis_values, sweep_files, sweep_folders
from lsdflow_launch.sweep.file import load_sweep
from lsdflow_launch.sweep.folder import write_folders

Write = Callable[[str], Path]
AXES = "[axes]\n'segment.threshold' = [0.2, 0.4]\n'segment.merge_function' = ['mean', 'hist_quant_75']\n"


@pytest.fixture
def prepared(sweep_file: Write) -> Path:
    """Folder of a prepared sweep; beside it are its base and its file."""
    sweep = load_sweep(sweep_file(AXES))
    return write_folders(sweep, sweep.default_folder).root


def offered(shell: str, typed: str) -> list[str]:
    """What `lsdflow` hands to a shell that asks after these words; the last one is not ended."""
    from lsdflow_launch.cli import app

    words = f"lsdflow {typed}"
    asking = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1), "_TYPER_COMPLETE_ARGS": words}
    asking |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args", "_LSDFLOW_COMPLETE": f"complete_{shell}"}
    return CliRunner().invoke(app, env=asking, prog_name="lsdflow").stdout.split()


def test_folders_of_sweeps_come_first_and_others_as_the_way_to_one(prepared: Path) -> None:
    around = prepared.parent
    assert sweep_folders(f"{around}/") == [str(prepared), f"{around}/base/"]
    assert sweep_folders(f"{prepared}/ru") == [f"{prepared}/runs/"]
    assert sweep_folders(f"{around}/none/x") == []


def test_files_of_sweeps_are_offered_and_folders_as_the_way_to_one(prepared: Path) -> None:
    around = prepared.parent
    (around / "notes.txt").touch()
    assert sweep_files(f"{around}/") == [f"{around}/grid.toml", f"{around}/base/", f"{prepared}/"]
    assert sweep_files(f"{around}/gr") == [f"{around}/grid.toml", f"{prepared}/"]
    assert sweep_files(f"{around}/none/x") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_that_asks_gets_what_each_verb_of_sweep_takes(prepared: Path, shell: str) -> None:
    start = f"{prepared.parent}/g"
    for verb in ("run", "status", "merge", "status elsewhere"):
        found = "\n".join(offered(shell, f"sweep {verb} {start}"))
        assert str(prepared) in found, (verb, found)
        assert "grid.toml" not in found, (verb, found)
    for verb in ("plan", "prepare"):
        assert f"{start}rid.toml" in "\n".join(offered(shell, f"sweep {verb} {start}")), verb
        assert str(prepared) in "\n".join(offered(shell, f"sweep {verb} {start}rid.toml {start}")), verb


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("segment", ["segment.threshold=", "segment.merge_function="]),
        ("segment.threshold=", ["segment.threshold=0.2", "segment.threshold=0.4"]),
        ("segment.merge_function=h", ["segment.merge_function=hist_quant_75"]),
        ("nothing=", []),
    ],
)
def test_where_is_offered_the_axes_of_the_sweep_and_their_values(
    prepared: Path, typed: str, expected: list[str]
) -> None:
    assert asked_where(prepared, typed) == expected
    assert offered("bash", f"sweep run {prepared} --where {typed}") == expected


@pytest.mark.parametrize("damaged", ["", "[]", '{"axes": 3}', '{"axes": {"a": 3}}'])
def test_a_shell_gets_nothing_rather_than_an_error_where_no_sweep_is(tmp_path: Path, damaged: str) -> None:
    assert asked_where(tmp_path, "se") == []
    (tmp_path / "sweep.json").write_text(damaged)
    assert asked_where(tmp_path, "a") == []


def asked_where(folder: Path, typed: str) -> list[str]:
    context = typer.Context(typer.main.get_command(typer.Typer(callback=lambda: None)))
    context.params["folder"] = str(folder)
    return axis_values(context, typed)
