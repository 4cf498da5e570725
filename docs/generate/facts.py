"""What the installed commands say about themselves, as JSON: verbs, options, tables of the experiment file, profiles.

Run by the Python of an environment; it reports the commands installed there. Nothing of it is typed by hand.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import logging
import re
import sys
from importlib.metadata import EntryPoint, distributions
from typing import Any

import typer
from typer.testing import CliRunner

from lsdflow_contract.experiment import STAGES
from lsdflow_contract.model import StrictModel

COMMON_TABLES = ("experiment", "store", "compute")
_TYPE_WORDS = {"Path": "path", "int": "whole number", "float": "number", "bool": "switch", "str": "text"}


def main() -> None:
    """Print the facts of this environment."""
    sys.stdout.write(json.dumps(environment_facts()))


def environment_facts() -> dict[str, Any]:
    """Commands by name, JSON schemas by table, profiles by name."""
    logging.disable(logging.INFO)
    apps = {point.name: point for point in _our_commands()}
    return {
        "commands": {name: _command(typer.main.get_command(_app(point))) for name, point in apps.items()},
        "tables": {**_common_tables(), **{name: _schema(_app(p)) for name, p in apps.items() if name in STAGES}},
        "profiles": _profiles(),
    }


def _our_commands() -> list[EntryPoint]:
    own = [d for d in distributions() if d.metadata["Name"].startswith("lsdflow")]
    points = {p.name: p for d in own for p in d.entry_points if p.group == "console_scripts"}
    return [points[name] for name in sorted(points)]


def _app(point: EntryPoint) -> typer.Typer:
    module = importlib.import_module(point.module)
    app: typer.Typer = module.app
    return app


def _schema(app: typer.Typer) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(CliRunner().invoke(app, ["schema"]).stdout)
    return schema


def _command(command: Any) -> dict[str, Any]:
    """A command and its verbs: help, arguments, options; passes_on: it takes those of another program, too."""
    return {
        "passes_on": bool(command.context_settings.get("ignore_unknown_options")),
        "help": (command.help or "").strip(),
        "arguments": [_argument(p) for p in command.params if not _is_option(p)],
        "options": [_option(p) for p in command.params if _is_option(p)],
        "commands": {name: _command(verb) for name, verb in getattr(command, "commands", {}).items()},
    }


def _is_option(parameter: Any) -> bool:
    return any(name.startswith("-") for name in parameter.opts)


def _argument(parameter: Any) -> dict[str, Any]:
    return {"name": parameter.name, "required": parameter.required, "nargs": parameter.nargs, "help": parameter.help}


def _option(parameter: Any) -> dict[str, Any]:
    default = parameter.default if isinstance(parameter.default, str | int | float | bool) else None
    return {
        "names": [*parameter.opts, *parameter.secondary_opts],
        "required": parameter.required,
        "repeated": bool(parameter.multiple),
        "flag": bool(parameter.is_flag),
        "type": _type_name(parameter.type_descriptor.annotation),
        "default": default,
        "help": getattr(parameter, "help", "") or "",
    }


def _type_name(kind: Any) -> str:
    """`Path | None` and `list[str]` as a reader of a command line wants them: path, text."""
    words = str(getattr(kind, "__name__", kind)) if isinstance(kind, type) else str(kind)
    for word, name in _TYPE_WORDS.items():
        if re.search(rf"\b{word}\b", words):
            return name
    return words


def _common_tables() -> dict[str, Any]:
    """The tables that belong to no stage; where `lsdflow` is installed, which writes them."""
    if importlib.util.find_spec("lsdflow_launch") is None:
        return {}
    from lsdflow_contract.experiment import ComputeTable, ExperimentTable, StoreTable
    from lsdflow_launch.slurm.table import ClusterTable

    models: tuple[type[StrictModel], ...] = (ExperimentTable, StoreTable, ComputeTable)
    common = dict(zip(COMMON_TABLES, models, strict=True))
    tables = {name: model.model_json_schema() for name, model in common.items()}
    return {**tables, "cluster": ClusterTable.model_json_schema(by_alias=True)}


def _profiles() -> dict[str, Any]:
    """What each profile sets; where trainings are installed."""
    if importlib.util.find_spec("lsdflow_training") is None:
        return {}
    from lsdflow_training.profiles import PROFILES

    return {name: dataclasses.asdict(profile) for name, profile in PROFILES.items()}


if __name__ == "__main__":
    main()
