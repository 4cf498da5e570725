"""Shell completion for `lsdflow sweep`: a folder, a file, or `axis=value`.

Only file names and sweep.json are read, without checks: on an error the shell gets no suggestions.
"""

from __future__ import annotations

import json
from pathlib import Path

import typer

from lsdflow_command.completion import experiment_folders
from lsdflow_launch.options import named_folder
from lsdflow_launch.sweep.folder import PLAN_NAME


def sweep_folders(incomplete: str) -> list[str]:
    """Return the folders of prepared sweeps; after them other folders, which may contain one."""
    folders = [name.removesuffix("/") for name in experiment_folders(incomplete)]
    sweeps = [name for name in folders if Path(name, PLAN_NAME).is_file()]
    return sweeps + [f"{name}/" for name in folders if name not in sweeps]


def sweep_files(incomplete: str) -> list[str]:
    """Return the TOML files, each of which may be a sweep; after them the folders, which may contain one."""
    begin = "" if incomplete.endswith("/") else Path(incomplete).name
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    try:
        found = sorted(p for p in folder.glob("*.toml") if p.name.startswith(begin) and p.is_file())
    except OSError:
        found = []
    return [*map(str, found), *(f"{name.removesuffix('/')}/" for name in experiment_folders(incomplete))]


def axis_values(context: typer.Context, incomplete: str) -> list[str]:
    """Return `axis=` for every axis of the sweep named on the command line, and `axis=value` for its values."""
    axes = _axes(named_folder(context))
    name, equals, begin = incomplete.partition("=")
    if not equals:
        return [f"{axis}=" for axis in axes if axis.startswith(name)]
    return [f"{name}={value}" for value in axes.get(name, ()) if value.startswith(begin)]


def _axes(root: Path) -> dict[str, list[str]]:
    """Return the labels of each axis; {} if the folder has no sweep."""
    try:
        axes = json.loads((root / PLAN_NAME).read_text(encoding="utf-8"))["axes"]
        return {str(name): [str(label) for label in labels] for name, labels in axes.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
