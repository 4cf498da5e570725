"""The experiment file: one JSON schema of all its tables, and its commented text.

The schema is written for tools that read TOML (draft 7, no references), and without null, which TOML does not have.

In the text every key is written with its description; a key at its default is commented out. A proposed value has its
reason. For a list of volumes, the unset keys are written in the first table; tables of [cluster] for single stages are
left out.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
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
from lsdflow_launch.commands import Ask, ask_stage
from lsdflow_launch.slurm.table import ClusterTable

HEADER = """\
#:schema ./experiment.schema.json
# An lsdflow experiment. Lengths carry their unit: "64 vox", "2048 nm", "40, 8, 8 nm" (z, y, x). Paths are absolute or
# relative to this file. A line that begins with "# key = " shows a default; remove the "# " to change it.
# All keys of a stage: `<stage> schema`. Check: `lsdflow validate .`   Run: `lsdflow run .`
"""
WIDTH = 110
_BARE_KEY = re.compile(r"^[A-Za-z0-9_-]+$")
DIALECT = "http://json-schema.org/draft-07/schema#"
# Keys that pydantic adds for programs, and that an editor would show twice.
_LEFT_OUT = ("$defs", "title", "prefixItems", "$ref", "anyOf", "default")


def experiment_text(
    schemas: Mapping[str, dict[str, Any]], chosen: Mapping[str, Any], why: Mapping[str, str] | None = None
) -> str:
    """Return the file's text: `schemas` are JSON schemas by table name, in order; `chosen` are the values that are set.

    why: reasons of chosen values, by their dotted keys.
    """
    parts = [HEADER]
    for table, schema in schemas.items():
        parts.append("\n".join(_table(table, schema, chosen.get(table, {}), why or {})))
    return "\n".join(parts) + "\n"


def toml_value(value: Any) -> str:
    """Return a plain value (str, bool, number, list, dict) as inline TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items()) + " }"
    return "[" + ", ".join(toml_value(v) for v in value) + "]"


def toml_key(name: str) -> str:
    """Return a key of a TOML table, quoted if necessary."""
    return name if _BARE_KEY.match(name) else toml_value(name)


def _table(name: str, schema: dict[str, Any], chosen: Mapping[str, Any], why: Mapping[str, str]) -> Iterator[str]:
    yield f"[{name}]"
    nested = {key: value for key, value in chosen.items() if _is_table(value)}
    for key, about in schema.get("properties", {}).items():
        # A nested table is written only if one of its keys is chosen.
        if key not in nested and "$ref" not in about:
            yield from _key(key, about, chosen, why.get(f"{name}.{key}", ""))
    for key, value in nested.items():
        tables = value if isinstance(value, list) else [value]
        heading = f"[[{name}.{key}]]" if isinstance(value, list) else f"[{name}.{key}]"
        for number, table in enumerate(tables):
            yield ""
            yield heading
            for inner, given in table.items():
                yield from _reason(why.get(f"{name}.{key}.{inner}", ""))
                yield f"{inner} = {toml_value(given)}"
            if number == 0:
                yield from _not_given(table, schema["properties"].get(key, {}), schema.get("$defs", {}))
    yield ""


def _not_given(table: Mapping[str, Any], about: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    """Yield the remaining keys of a nested table with their descriptions."""
    choices = [about, about.get("items", {}), *about.get("anyOf", ())]
    name = next((str(choice["$ref"]).rpartition("/")[2] for choice in choices if "$ref" in choice), "")
    for key, of_key in known.get(name, {}).get("properties", {}).items():
        if key not in table:
            yield from _key(key, of_key, {}, "")


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list) and bool(value) and isinstance(value[0], Mapping))


def _reason(why: str) -> Iterator[str]:
    yield from textwrap.wrap(f"why: {why}" if why else "", WIDTH, initial_indent="# ", subsequent_indent="#   ")


def _key(key: str, about: dict[str, Any], chosen: Mapping[str, Any], why: str) -> Iterator[str]:
    words = about.get("description", "")
    if allowed := about.get("enum"):
        words = f"{words} ({' | '.join(map(str, allowed))})"
    yield from textwrap.wrap(words, WIDTH, initial_indent="# ", subsequent_indent="#   ")
    if key in chosen:
        yield from _reason(why)
        yield f"{key} = {toml_value(chosen[key])}"
    elif about.get("default") is not None:
        yield f"# {key} = {toml_value(about['default'])}"
    else:
        yield f"# {key} ="


def merged(values: Mapping[str, Any], overrides: Sequence[tuple[list[str], Any]]) -> dict[str, Any]:
    """Return `values` with dotted keys set; in a list of tables, a key is set in each table."""
    result: dict[str, Any] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}
    for parts, value in overrides:
        _set_key(result, parts, value)
    return result


def _set_key(node: dict[str, Any], parts: list[str], value: Any) -> None:
    first, *rest = parts
    if not rest:
        node[first] = value
    elif isinstance(tables := node.get(first), list):
        node[first] = [dict(table) for table in tables]
        for table in node[first]:
            _set_key(table, rest, value)
    else:
        node[first] = dict(node.get(first, {}))
        _set_key(node[first], rest, value)


def table_schemas(stages: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the schema of every table by name, in the order of the file; each of these stages reports its own."""
    with ThreadPoolExecutor(available_cores()) as pool:
        of_stages = dict(zip(stages, pool.map(lambda stage: ask_stage(stage, ["schema"]), stages), strict=True))
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
