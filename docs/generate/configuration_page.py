"""Every key of experiment.toml, from the JSON schemas of its tables: key, type, default, unit, limits, meaning."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tables import code, plain, table

from lsdflow_contract.experiment import STAGES

ORDER = ("experiment", "store", "compute", *STAGES, "cluster")
LENGTH = "64 vox"
UNITS = {"_vox": "voxels", "_nm": "nm", "_s": "s", "_mb": "MB", "_minutes": "min", "_um": "µm", "_edge_vox": "voxels"}
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
HEAD = ("key", "what", "default", "type and limits", "unit")
INTRODUCTION = """\
# Configuration reference

Every table and key of `experiment.toml`, made from the models that read it
(`docs/generate/configuration_page.py`): nothing here is typed by hand. `lsdflow init` writes the same into the file
itself, as comments. A key that is not known is refused (78) with "did you mean"; any key can be set for one run with
`--set table.key=value`. Lengths carry their unit: `"64 vox"`, `"2048 nm"`, `"40, 8, 8 nm"` (z, y, x). Paths are
absolute or relative to the file. `<stage> schema` prints a table as JSON schema, for editors.

A default of — is none: what then holds is said in the description, or comes [from the profile](#profiles).
"""
PROFILES = """
## Profiles {#profiles}

What `experiment.profile` gives to the keys of [train-lsd](#train-lsd) and [train-acrlsd](#train-acrlsd) that the file
leaves out, by mode where a value has several. Stages of blocks have no values by profile but the resources of
`[cluster]`.
"""


def text(tables: Mapping[str, dict[str, Any]], profiles: Mapping[str, dict[str, Any]]) -> str:
    """The page."""
    names = [name for name in ORDER if name in tables] + sorted(set(tables) - set(ORDER))
    parts = [INTRODUCTION]
    for name in names:
        parts.extend(_section(name, name, tables[name], tables[name].get("$defs", {})))
    return "\n".join(parts) + PROFILES + "\n" + _profile_table(profiles)


def _section(heading: str, anchor: str, schema: dict[str, Any], known: Mapping[str, Any]) -> Iterator[str]:
    """The keys of a table, then the tables in it."""
    yield f"\n## [{heading}] {{#{anchor}}}\n".replace("[", "\\[").replace("]", "\\]")
    if words := schema.get("description"):
        yield plain(re.sub(r"^\[[^\]]*\](, \[[^\]]*\])*[:.] *", "", words)) + "\n"
    required = schema.get("required", [])
    keys = schema.get("properties", {})
    yield table(HEAD, [_row(anchor, key, about, key in required, known) for key, about in keys.items()])
    for key, about in keys.items():
        if (name := _table_of(about)) is not None:
            inner = f"{anchor}.{key}"
            heading = f"{inner}.NAME" if "patternProperties" in about else inner
            yield from _section(f"[{inner}]" if about.get("type") == "array" else heading, inner, known[name], known)


def _row(anchor: str, key: str, about: dict[str, Any], required: bool, known: Mapping[str, Any]) -> tuple[str, ...]:
    # the anchor is in the cell: a message, or another page, can point to a key
    name = f'<span id="{anchor}.{key}"></span>{code(key)}'
    inner = _table_of(about)
    what = plain(about.get("description", "") or (known[inner].get("description", "") if inner else ""))
    kind = plain(_kind(about))
    if inner:
        kind = f"[table](#{anchor}.{key})"
        name = code(key)
    return name, what, "needed" if required else _default(about), kind, _unit(key, about)


def _table_of(about: dict[str, Any]) -> str | None:
    """The name of the model, if the key is a table, or a list or names of tables, of a model of its own."""
    choices = [about, *about.get("anyOf", []), *about.get("patternProperties", {}).values()]
    if about.get("type") == "array":
        choices.append(about.get("items", {}))
    return next((c["$ref"].rsplit("/", 1)[1] for c in choices if "$ref" in c), None)


def _default(about: dict[str, Any]) -> str:
    value = about.get("default")
    return "—" if value is None or value == {} else code(json.dumps(value, ensure_ascii=False))


def _kind(about: dict[str, Any]) -> str:
    """`whole number ≥ 2`, `files | mongo`, `list of number`."""
    if choices := about.get("anyOf"):
        return " or ".join(_kind(c) for c in choices if c.get("type") != "null")
    if "enum" in about:
        return " | ".join(json.dumps(v) for v in about["enum"])
    if "const" in about:
        return json.dumps(about["const"])
    return " ".join([_type(about), *_limits(about)])


def _type(about: dict[str, Any]) -> str:
    kind: str = about.get("type", "any")
    if kind == "array":
        members = about.get("prefixItems") or [about.get("items", {})]
        many = f"{len(members)} of " if about.get("prefixItems") else "list of "
        return many + _kind(members[0])
    if kind == "string" and LENGTH in about.get("examples", []):
        return "length"
    names = {"integer": "whole number", "boolean": "true | false", "string": "text", "object": "table"}
    return names.get(kind, kind)


def _limits(about: dict[str, Any]) -> Iterator[str]:
    for key, sign in LIMITS.items():
        if key in about:
            yield f"{sign} {about[key]:g}"
    if "pattern" in about:
        yield f"of the form {about['pattern']}"
    if about.get("minLength"):
        yield "not empty"


def _unit(key: str, about: dict[str, Any]) -> str:
    if LENGTH in json.dumps(about):
        return "as written"
    return next((unit for ending, unit in UNITS.items() if key.endswith(ending)), "")


def _profile_table(profiles: Mapping[str, dict[str, Any]]) -> str:
    names = list(profiles)
    flat = {name: _flat(profile) for name, profile in profiles.items()}
    keys = list(dict.fromkeys(key for name in names for key in flat[name]))
    return table(("key", *names), [(code(key), *(flat[name].get(key, "") for name in names)) for key in keys])


def _flat(profile: Mapping[str, Any]) -> dict[str, str]:
    """Augmentations of a profile are keys as others are."""
    augmentation = profile.get("augmentation") or {}
    values = {**{k: v for k, v in profile.items() if k != "augmentation"}, **augmentation}
    return {key: "" if value is None else _value(value) for key, value in values.items()}


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "<br>".join(f"{plain(str(k))}: {code(json.dumps(v))}" for k, v in value.items())
    return code(json.dumps(value))
