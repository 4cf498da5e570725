"""The experiment file of a run: the tables of the base with the keys of the run, and adjusted relative paths."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.hashing import hash_of
from lsdflow_launch.init.template import toml_value

# Keys that hold a path in any table. Some may hold a word like "truth" or "best", which is no file.
PATH_KEYS = {
    *("raw", "labels", "truth", "mask", "mask_file", "skeletons", "checkpoint", "lsd_checkpoint"),
    *("uri_file", "images", "binds"),
}
WORDS = {"", "auto", "truth", "none", "best", "trained_with"}
LONGEST_DATABASE = 50
_BARE_KEY = re.compile(r"^[A-Za-z0-9_-]+$")


def experiment_text_of(base: Experiment, settings: Mapping[str, Any], name: str, folder: Path) -> str:
    """Return the text of the file in `folder`. Raises ConfigError (78) for a key below a value that is not a table."""
    tables: dict[str, Any] = copy.deepcopy(base.tables)
    for key, value in settings.items():
        _lay(tables, key, value)
    named = re.sub(r"[^A-Za-z0-9_.-]", "-", name)
    tables.setdefault("experiment", {})["name"] = named
    if tables.get("store", {}).get("engine") == "mongo":
        # A database holds the graph of one experiment, so every run needs its own.
        owner = base.database[:LONGEST_DATABASE]
        tables["store"]["database"] = f"{owner}-{hash_of([str(folder.resolve()), name])[:10]}"
    tables = _moved(tables, base.path.parent.resolve(), folder.resolve())
    lines = [f"# A run of a sweep: the tables of {base.path.name} of {base.common.name}, and the keys of this run."]
    for table, content in tables.items():
        lines += ["", f"[{table}]", *(f"{_key(key)} = {_inline(value)}" for key, value in content.items())]
    return "\n".join(lines) + "\n"


def _lay(tables: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, key = dotted.split(".")
    node: Any = tables
    for parent in parents:
        node = node.setdefault(parent, {}) if isinstance(node, dict) else None
    if not isinstance(node, dict):
        raise ConfigError(f"{dotted} names a part of a value, not of a table", where="axes", fix="set the whole value")
    node[key] = copy.deepcopy(value)


def _moved(value: Any, old: Path, new: Path, key: str = "") -> Any:
    """Rewrite relative paths from the base's folder so that they are relative to the run's folder."""
    if isinstance(value, Mapping):
        return {name: _moved(part, old, new, name) for name, part in value.items()}
    if isinstance(value, list):
        return [_moved(part, old, new, key) for part in value]
    if key not in PATH_KEYS or not isinstance(value, str) or value in WORDS or Path(value).is_absolute():
        return value
    return os.path.relpath(old / value, new) if _exists(old / value) else value


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or a NUL: the text is not a path
        return False


def _key(name: str) -> str:
    return name if _BARE_KEY.match(name) else toml_value(name)


def _inline(value: Any) -> str:
    """Return a value as TOML on one line; keys of inner tables are quoted if necessary."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {_inline(part)}" for name, part in value.items()) + " }"
    return "[" + ", ".join(_inline(part) for part in value) + "]" if isinstance(value, list) else toml_value(value)
