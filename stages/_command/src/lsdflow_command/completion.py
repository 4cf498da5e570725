"""Shell completion: stages, folders of experiments, keys and words of `--set`.

Keys are read from the schema that `lsdflow init` writes next to the experiment file, because starting eight stages is
too slow for completion. On an error the shell gets no suggestions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from lsdflow_contract.experiment import STAGES
from lsdflow_contract.layout import ExperimentLayout


def stages(incomplete: str) -> list[str]:
    """Names of stages, in their order."""
    return one_of(STAGES)(incomplete)


def one_of(words: Sequence[str]) -> Callable[[str], list[str]]:
    """A completion that offers `words`."""

    def offered(incomplete: str) -> list[str]:
        """Return the words that begin with `incomplete`."""
        return [word for word in words if word.startswith(incomplete)]

    return offered


def experiment_folders(incomplete: str) -> list[str]:
    """Folders that hold an experiment, then other folders, which may contain one."""
    typed = Path(incomplete)
    parent, begin = (typed, "") if incomplete.endswith("/") else (typed.parent, typed.name)
    try:
        found = sorted(p for p in parent.iterdir() if p.is_dir() and p.name.startswith(begin))
    except OSError:
        return []
    offered = [p for p in found if begin.startswith(".") or not p.name.startswith(".")]
    experiments = [str(p) for p in offered if ExperimentLayout(p).experiment_toml.is_file()]
    return experiments + [f"{p}/" for p in offered if str(p) not in experiments]


def settings(context: typer.Context, incomplete: str) -> list[str]:
    """`table.key=` for every key of the experiment, and `table.key=word` if its words are known."""
    key, equals, begin = incomplete.partition("=")
    keys = dict(_keys(_schema(context.params)))
    if not equals:
        return [f"{name}=" for name in keys if name.startswith(key)]
    return [f"{key}={word}" for word in keys.get(key, ()) if word.startswith(begin)]


def _schema(values: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of the experiment on the command line, or in the working folder; {} if there is none."""
    named = Path(values.get("folder") or values.get("experiment") or ".")
    folder = named if named.is_dir() else named.parent
    try:
        found = json.loads(ExperimentLayout(folder).schema_json.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _keys(schema: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for table, about in schema.get("properties", {}).items():
        for key, of_key in about.get("properties", {}).items():
            yield f"{table}.{key}", words_of(of_key)


def words_of(schema: Mapping[str, Any]) -> list[str]:
    """The allowed words of a key, as `--set` accepts them; [] if any value is allowed."""
    if schema.get("type") == "boolean":
        return ["true", "false"]
    if "items" in schema and isinstance(schema["items"], dict):
        return [f'["{word}"]' for word in words_of(schema["items"])]
    words = [str(word) for word in schema.get("enum", ()) if isinstance(word, str)]
    words += [schema["const"]] if isinstance(schema.get("const"), str) else []
    return words + [word for part in schema.get("anyOf", ()) for word in words_of(part)]
