"""One JSON schema of the whole experiment file, for editors: the tables of all stages, with what each key means.

It is written for tools that read TOML (draft 7, no references), and without null, which TOML does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from lsdflow_command.machine import available_cores
from lsdflow_contract.errors import ConfigError
from lsdflow_contract.experiment import (
    STAGES,
    ComputeTable,
    Experiment,
    ExperimentTable,
    StoreTable,
    did_you_mean,
)
from lsdflow_contract.model import StrictModel
from lsdflow_launch.commands import ask_stage
from lsdflow_launch.descriptions import Ask
from lsdflow_launch.slurm.table import ClusterTable

DIALECT = "http://json-schema.org/draft-07/schema#"
# Keys that pydantic adds for programs, and that an editor would show twice.
_LEFT_OUT = ("$defs", "title", "prefixItems", "$ref", "anyOf", "default")


def table_schemas() -> dict[str, dict[str, Any]]:
    """Return the schema of every table by name, in the order of the file; each stage reports its own."""
    with ThreadPoolExecutor(available_cores()) as pool:
        of_stages = dict(zip(STAGES, pool.map(lambda stage: ask_stage(stage, ["schema"]), STAGES), strict=True))
    first: dict[str, type[StrictModel]] = {"experiment": ExperimentTable, "store": StoreTable, "compute": ComputeTable}
    schemas = {name: model.model_json_schema() for name, model in first.items()}
    return {**schemas, **of_stages, "cluster": ClusterTable.model_json_schema(by_alias=True)}


def experiment_schema(tables: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the schemas of the tables as one."""
    return {
        "$schema": DIALECT,
        "title": "lsdflow experiment",
        "type": "object",
        "additionalProperties": False,
        "properties": {name: _plain(table, table.get("$defs", {})) for name, table in tables.items()},
    }


def require_known_keys(experiment: Experiment, ask: Ask = ask_stage) -> None:
    """Raise ConfigError (78) for an override of an unknown key of a stage, also if the stage is not to run."""
    for override in experiment.overrides:
        table, _, rest = override.partition("=")[0].strip().partition(".")
        known = list(ask(table, ["schema"]).get("properties", {})) if table in STAGES else []
        key = rest.partition(".")[0]
        if known and key not in known:
            raise ConfigError(f"no key {table}.{key}", where="--set", found=override, fix=did_you_mean(key, known))


def _plain(node: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with its references resolved; keys beside a reference (a description) override it."""
    if "$ref" in node:
        name = str(node["$ref"]).rpartition("/")[2]
        return _plain({**known[name], **{key: value for key, value in node.items() if key != "$ref"}}, known)
    found = {key: _inside(key, value, known) for key, value in node.items() if key not in _LEFT_OUT}
    if "prefixItems" in node:
        found |= {"items": [_plain(item, known) for item in node["prefixItems"]], "additionalItems": False}
    if node.get("default") is not None:
        found["default"] = node["default"]
    choices = [_plain(part, known) for part in node.get("anyOf", ()) if part.get("type") != "null"]
    if len(choices) == 1:  # an optional value: in Python a value or None
        return {**choices[0], **found}
    return {**found, "anyOf": choices} if choices else found


def _inside(key: str, value: Any, known: Mapping[str, Any]) -> Any:
    if key in ("properties", "patternProperties"):
        return {name: _plain(about, known) for name, about in value.items()}
    if key in ("items", "additionalProperties") and isinstance(value, Mapping):
        return _plain(value, known)
    return value
