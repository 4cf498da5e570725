"""Every command of the documentation is executed, or is one that our programs take, or there is a reason why not.

1. a few are executed in-process, in a small experiment of which watershed has finished
   and those that begin with volumes of one's own are typed in an empty folder (test_own_data.py)
2. all lsdflow commands are parsed as the applications would: verb, options, number of arguments, keys of --set
3. all others are in not_run.py, with a reason
Blocks that are no commands are marked as text, toml or python.
"""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands_of_pages import Command, commands, pages, shell_lines
from not_run import NOT_RUN
from predicted_experiment import TARGET, make_predicted
from typer.testing import CliRunner

from lsdflow_contract.experiment import ComputeTable, StoreTable
from lsdflow_contract.model import StrictModel
from lsdflow_launch.planning.plan import Prices
from lsdflow_launch.slurm.table import ClusterTable
from lsdflow_watershed.stage import Watershed

REPOSITORY = Path(__file__).resolve().parents[2]
FACTS = REPOSITORY / ".cache" / "docs"
BLOCK_SIDE = ("prepare", "predict", "watershed", "agglomerate", "segment", "evaluate")
CLUSTER_KEYS = ClusterTable.model_json_schema(by_alias=True)["properties"]
OTHER_ENVIRONMENTS = {"lsdflow-view": "of an environment of its own: tests/view/test_commands_of_pages.py"}
# As written in README.md and docs/; `demo`, `own` and `exp` are the same experiment.
EXECUTED = (
    "bin/lsdflow --version",
    "bin/lsdflow status demo",
    "bin/lsdflow status own",
    "bin/lsdflow validate exp",
    "bin/watershed plan --experiment demo",
    "bin/watershed verify --experiment demo",
    "bin/watershed schema",
    "bin/lsdflow cite",
)


@pytest.fixture(scope="module")
def facts() -> dict[str, dict[str, Any]]:
    """What the commands of both environments say about themselves; `make docs` asked them."""
    found = [json.loads((FACTS / f"{name}.json").read_text(encoding="utf-8")) for name in ("blocks", "training")]
    return {kind: {k: v for one in found for k, v in one[kind].items()} for kind in ("commands", "tables")}


@pytest.fixture(scope="module")
def targets() -> set[str]:
    database = subprocess.run(["make", "-pn", "help"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return set(re.findall(r"^([a-z][a-z0-9-]+):", database.stdout, re.MULTILINE))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    Watershed().run(make_predicted(tmp_path / "exp"))
    with (tmp_path / "exp" / "experiment.toml").open("a") as file:
        file.write(f'[prepare.target]\nraw = "{TARGET}"\n')
    for name in ("demo", "own"):
        shutil.copytree(tmp_path / "exp", tmp_path / name)
    shutil.rmtree(tmp_path / "exp" / "manifests")  # nothing has run there: the volume is described
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_are_commands_and_each_is_an_lsdflow_command_or_has_a_reason_not_to_be_run(facts: dict[str, Any]) -> None:
    found = commands()
    assert len(found) > 200
    known = {*facts["commands"], "make", *NOT_RUN, *OTHER_ENVIRONMENTS}
    assert [str(c) for c in found if c.program not in known and not _is_script(c)] == []


def test_every_reason_is_needed() -> None:
    used = {c.program for c in commands()}
    groups: dict[str, set[str]] = {}
    for program, reason in NOT_RUN.items():
        groups.setdefault(reason, set()).add(program)
    assert [reason for reason, programs in groups.items() if not programs & used] == []


def test_every_lsdflow_command_is_one_that_its_program_takes(facts: dict[str, Any]) -> None:
    wrong = {}
    for command in commands():
        if command.program in facts["commands"]:
            problem = _problem(command, facts["commands"][command.program], facts["tables"])
            if problem:
                wrong[str(command)] = problem
    assert wrong == {}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("lsdflow statsu exp", "no such verb"),
        ("lsdflow run exp --form segment", "no option --form"),
        ("lsdflow run exp other", "more arguments than it takes"),
        ("lsdflow run exp --set segment.treshold=0.4", "segment.treshold"),
        ("watershed run -e exp --set prepare.target.rwa=a", "prepare.target.rwa"),
    ],
)
def test_what_a_program_does_not_take_is_found(words: str, problem: str, facts: dict[str, Any]) -> None:
    command = Command("a page", words, tuple(words.split()))
    assert _problem(command, facts["commands"][command.program], facts["tables"]) == problem


def test_every_target_of_make_is_there(targets: set[str]) -> None:
    asked = [c for c in commands() if c.program == "make"]
    words = {word for c in asked for word in c.words[1:] if "=" not in word and not word.startswith("-")}
    assert len(words) > 10
    assert words <= targets


def test_every_line_is_one_that_bash_can_read() -> None:
    lines = [line for page in pages() for line in shell_lines(page.read_text(encoding="utf-8"))]
    script = "\n".join(re.sub(r"<[\w ]+>", "X", line) for line in lines)
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_setting_that_the_page_for_users_of_the_lsd_scripts_names_exists(facts: dict[str, Any]) -> None:
    text = (REPOSITORY / "docs" / "coming_from_the_lsd_scripts.md").read_text(encoding="utf-8")
    named = re.findall(r"`([a-z-]+)\.([a-z_]+)(?: = [^`]*)?`", text)
    tables = {**{name: schema["properties"] for name, schema in facts["tables"].items()}, "cluster": CLUSTER_KEYS}
    found = [f"{table}.{key}" for table, key in named if table in tables and key not in ("toml", "py")]
    assert len(found) > 30
    assert [name for name in found if name.partition(".")[2] not in tables[name.partition(".")[0]]] == []


def test_every_toml_of_the_pages_has_tables_and_keys_that_there_are(facts: dict[str, Any]) -> None:
    wrong = [f"{page.name}: {p}" for page, values in _experiments() for p in _unknown(values, facts["tables"])]
    assert wrong == []


def test_every_toml_of_the_pages_has_values_that_the_models_take(facts: dict[str, Any]) -> None:
    models: dict[str, type[StrictModel]] = {"store": StoreTable, "compute": ComputeTable, "cluster": ClusterTable}
    for stage in BLOCK_SIDE:
        module = importlib.import_module(f"lsdflow_{stage}.config")
        models[stage] = getattr(module, facts["tables"][stage]["title"])
    checked = [
        models[name].model_validate(table)
        for _, values in _experiments()
        for name, table in values.items()
        if name in models
    ]
    assert len(checked) > 10


def test_every_prices_of_the_pages_are_prices() -> None:
    found = [values for _, values in _toml_blocks() if "offers" in values]
    assert [Prices.model_validate(values).currency for values in found] == ["EUR"]


@pytest.mark.parametrize("line", EXECUTED)
def test_it_runs(line: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert any(line in page.read_text(encoding="utf-8") for page in pages()), "no page has it any more"
    monkeypatch.setenv("LSDFLOW_BIN", str(REPOSITORY / "bin"))
    program, *arguments = line.removeprefix("bin/").split()
    module = "lsdflow_launch.cli" if program == "lsdflow" else f"lsdflow_{program}.cli"
    done = CliRunner().invoke(importlib.import_module(module).app, arguments)
    assert done.exit_code == 0, done.output
    assert done.output.strip()


def _toml_blocks() -> Iterator[tuple[Path, dict[str, Any]]]:
    for page in pages():
        for block in re.findall(r"^```toml\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            yield page, tomllib.loads(block)


def _experiments() -> Iterator[tuple[Path, dict[str, Any]]]:
    """Those of experiment files: not prices, nor sweeps, whose keys are checked by tests/sweep."""
    return ((page, values) for page, values in _toml_blocks() if not {"offers", "base"} & set(values))


def _is_script(command: Command) -> bool:
    """A script of the repository, and every option it is given occurs in it."""
    words = command.words[1:] if command.words[0] == "bash" else command.words
    path = REPOSITORY / words[0]
    options = [word for word in words[1:] if word.startswith("--")]
    return path.is_file() and all(option in path.read_text(encoding="utf-8") for option in options)


def _problem(command: Command, about: dict[str, Any], tables: dict[str, Any]) -> str:
    """Why the program would not take these words; "" if it would."""
    words = list(command.words[1:])
    options = {name: option for option in about["options"] for name in option["names"]}
    given = 0
    while words:
        word = words.pop(0)
        name, equals, value = word.partition("=")
        if word in about["commands"] and not given:
            about = about["commands"][word]
            options = {n: option for option in about["options"] for n in option["names"]}
        elif about["passes_on"]:
            return ""  # what it passes on is checked in tests/view/test_commands_of_pages.py
        elif word.startswith("-") and not re.match(r"-\d", word):
            if name not in options and name != "--help":
                return f"no option {name}"
            if name in options and not options[name]["flag"] and not equals:
                value = words.pop(0) if words else ""
            if name == "--set" and (unknown := _unknown_override(value, tables)):
                return unknown
        else:
            given += 1
    many = any(argument["nargs"] == -1 for argument in about["arguments"])
    if about["commands"] and given:
        return "no such verb"
    return "" if many or given <= len(about["arguments"]) else "more arguments than it takes"


def _unknown_override(override: str, tables: dict[str, Any]) -> str:
    """What is wrong with table.key=value; "" for nothing, and for the words table.key=value themselves."""
    key, equals, _ = override.partition("=")
    if not equals:
        return "--set without a value"
    parts = key.split(".")
    values: Any = 0
    for part in reversed(parts):
        values = {part: values}
    return "" if override == "table.key=value" else "; ".join(_unknown(values, tables))


def _unknown(values: dict[str, Any], tables: dict[str, Any]) -> list[str]:
    """Tables and keys that no model has, by their full names."""
    found = []
    for name, table in values.items():
        if name not in tables:
            found.append(f"[{name}]")
        elif isinstance(table, dict):
            found += [f"{name}.{p}" for p in _unknown_keys(table, tables[name], tables[name].get("$defs", {}))]
    return found


def _unknown_keys(table: dict[str, Any], schema: dict[str, Any], known: dict[str, Any]) -> list[str]:
    found = []
    for key, value in table.items():
        about = schema.get("properties", {}).get(key)
        if about is None:
            found.append(key)
            continue
        reference = re.search(r'"#/\$defs/(\w+)"', json.dumps(about))
        inners = value if isinstance(value, list) else [value]
        if "patternProperties" in about:  # tables by names that the user chooses
            inners = list(value.values())
        for inner in inners:
            if reference and isinstance(inner, dict):
                found += [f"{key}.{p}" for p in _unknown_keys(inner, known[reference[1]], known)]
    return found
