"""The commented experiment file, written from the schemas of the stages: one table each, with the chosen values active.

Every key is written with its description; a key at its default is commented out. A proposed value has its reason. For
a list of volumes, the unset keys are written in the first table; tables of [cluster] for single stages are left out.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

HEADER = """\
#:schema ./experiment.schema.json
# An lsdflow experiment. Lengths carry their unit: "64 vox", "2048 nm", "40, 8, 8 nm" (z, y, x). Paths are absolute or
# relative to this file. A line that begins with "# key = " shows a default; remove the "# " to change it.
# All keys of a stage: `<stage> schema`. Check: `lsdflow validate .`   Run: `lsdflow run .`
"""
WIDTH = 110


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
        return "{ " + ", ".join(f"{k} = {toml_value(v)}" for k, v in value.items()) + " }"
    return "[" + ", ".join(toml_value(v) for v in value) + "]"


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
        _lay_over(result, parts, value)
    return result


def _lay_over(node: dict[str, Any], parts: list[str], value: Any) -> None:
    first, *rest = parts
    if not rest:
        node[first] = value
    elif isinstance(tables := node.get(first), list):
        node[first] = [dict(table) for table in tables]
        for table in node[first]:
            _lay_over(table, rest, value)
    else:
        node[first] = dict(node.get(first, {}))
        _lay_over(node[first], rest, value)
