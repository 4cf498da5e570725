"""What every command has: --quiet and --verbose, colour on a terminal alone, completion of stages, folders and keys."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from lsdflow_command import completion, console
from lsdflow_command.cli import Verbs
from lsdflow_command.progress import Progress

LOG = logging.getLogger("lsdflow.comfort")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def bare_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Logging as in a command that has just started; put back after."""
    root, logger = logging.getLogger(), logging.getLogger("lsdflow")
    before = (root.handlers[:], root.level, logger.level)
    root.handlers.clear()
    monkeypatch.delenv(console.LOUDNESS_VARIABLE, raising=False)
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    logger.setLevel(before[2])
    os.environ.pop(console.LOUDNESS_VARIABLE, None)


def speaking() -> Verbs:
    app = Verbs(name="speaking")

    @app.callback()
    def start() -> None:
        logging.getLogger().handlers.clear()  # those of pytest
        console.start_logging()

    @app.command()
    def speak(word: str, often: int = 1) -> None:
        LOG.debug("found it at once")
        LOG.info("continues")
        LOG.error("went wrong")
        typer.echo(word * often)

    return app


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ([], ["continues", "went wrong"]),
        (["--quiet"], ["went wrong"]),
        (["-q"], ["went wrong"]),
        (["--verbose"], ["found it at once", "continues", "went wrong"]),
    ],
)
def test_quiet_leaves_errors_and_the_result_verbose_adds_what_helps_to_find_a_fault(
    bare_logging: None, options: list[str], lines: list[str]
) -> None:
    done = CliRunner().invoke(speaking(), ["speak", "ha", "--often", "2", *options])
    assert (done.exit_code, done.stdout) == (0, "haha\n")
    assert [line.split(" ", 1)[1] for line in done.stderr.splitlines()] == lines


def test_what_a_command_starts_is_as_loud_as_the_command(bare_logging: None) -> None:
    CliRunner().invoke(speaking(), ["speak", "ha", "--quiet"])
    assert os.environ[console.LOUDNESS_VARIABLE] == "quiet"
    assert CliRunner().invoke(speaking(), ["speak", "ha"]).stderr.count("\n") == 1


def test_a_log_file_keeps_what_quiet_hides(bare_logging: None, tmp_path: Path) -> None:
    logging.getLogger().handlers.clear()
    console.start_logging()
    file = logging.FileHandler(tmp_path / "log.txt")
    logging.getLogger().addHandler(file)
    console.set_loudness("quiet")
    LOG.info("continues")
    file.close()
    assert (tmp_path / "log.txt").read_text() == "continues\n"


def test_quiet_and_verbose_together_are_refused(bare_logging: None) -> None:
    done = CliRunner().invoke(speaking(), ["speak", "ha", "-q", "-v"])
    assert (done.exit_code, done.stdout) == (2, "")


def test_no_bar_is_drawn_where_only_errors_are_wanted(bare_logging: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert Progress("a", 10, "block")._bar is not None
    console.set_loudness("quiet")
    assert Progress("a", 10, "block")._bar is None


@pytest.mark.parametrize(
    ("stream", "settings", "wanted"),
    [
        (Terminal(), {}, True),
        (io.StringIO(), {}, False),
        (Terminal(), {"NO_COLOR": "1"}, False),
        (Terminal(), {"NO_COLOR": ""}, True),
        (io.StringIO(), {"FORCE_COLOR": "1"}, True),
        (Terminal(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (Terminal(), {"TERM": "dumb"}, False),
    ],
)
def test_colour_is_for_terminals_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, settings: dict[str, str], wanted: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b[" in console.error_text("it broke\n   fix: repair it", stream)) is wanted


def test_folders_of_experiments_come_first_and_others_as_the_way_to_one(tmp_path: Path) -> None:
    for name in ("exp-a", "exp-b", "other", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "exp-b" / "experiment.toml").touch()
    assert completion.experiment_folders(f"{tmp_path}/ex") == [f"{tmp_path}/exp-b", f"{tmp_path}/exp-a/"]
    assert completion.experiment_folders(f"{tmp_path}/") == [
        f"{tmp_path}/exp-b",
        f"{tmp_path}/exp-a/",
        f"{tmp_path}/other/",
    ]
    assert completion.experiment_folders(f"{tmp_path}/none/x") == []


SCHEMA = {
    "properties": {
        "watershed": {"properties": {"method": {"enum": ["seeded", "mutex"]}, "fragments_in_xy": {"type": "boolean"}}},
        "agglomerate": {
            "properties": {"merge_functions": {"type": "array", "items": {"enum": ["mean", "hist_quant_75"]}}}
        },
        "segment": {"properties": {"threshold": {"anyOf": [{"const": "auto"}, {"type": "number"}]}}},
    }
}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("wa", ["watershed.method=", "watershed.fragments_in_xy="]),
        ("watershed.method=", ["watershed.method=seeded", "watershed.method=mutex"]),
        ("watershed.fragments_in_xy=f", ["watershed.fragments_in_xy=false"]),
        ("agglomerate.merge_functions=", [f'agglomerate.merge_functions=["{n}"]' for n in ("mean", "hist_quant_75")]),
        ("segment.threshold=a", ["segment.threshold=auto"]),
        ("nothing.of", []),
    ],
)  # fmt: skip
def test_keys_of_set_come_from_the_schema_beside_the_experiment(tmp_path: Path, typed: str, offered: list[str]) -> None:
    (tmp_path / "experiment.schema.json").write_text(json.dumps(SCHEMA))
    app, found = Verbs(name="a"), []

    @app.command()
    def verb(context: typer.Context, folder: Path) -> None:
        found.extend(completion.settings(context, typed))

    assert CliRunner().invoke(app, [str(tmp_path)]).exit_code == 0
    assert found == offered


def test_a_shell_gets_nothing_rather_than_an_error_where_there_is_no_schema(tmp_path: Path) -> None:
    app, found = Verbs(name="a"), ["not asked"]

    @app.command()
    def verb(context: typer.Context, folder: Path) -> None:
        found[:] = completion.settings(context, "wa")

    assert CliRunner().invoke(app, [str(tmp_path)]).exit_code == 0
    assert found == []


@pytest.mark.parametrize("command", ["lsdflow", "watershed"])
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_that_asks_gets_the_stages_and_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, shell: str
) -> None:
    (tmp_path / "exp").mkdir()
    (tmp_path / "exp" / "experiment.toml").touch()
    if command == "lsdflow":
        from lsdflow_launch.cli import app
    else:
        from lsdflow_watershed.cli import app
    asked = [("run --to predi", "predict")] if command == "lsdflow" else []
    asked += [(f"run {'' if command == 'lsdflow' else '-e '}{tmp_path}/e", f"{tmp_path}/exp")]
    for typed, offered in asked:
        words = f"{command} {typed}"
        asking = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1), "_TYPER_COMPLETE_ARGS": words}
        asking |= {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
        done = CliRunner().invoke(
            app, env={**asking, f"_{command.upper()}_COMPLETE": f"complete_{shell}"}, prog_name=command
        )
        assert offered in done.stdout, (typed, done.output)
