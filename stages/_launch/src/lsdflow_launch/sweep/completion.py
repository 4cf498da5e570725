"""What a shell offers after TAB where `lsdflow sweep` wants a folder, a file, or `axis=value`.

Only names and sweep.json are looked at, without checks: a shell gets nothing rather than an error.
"""

from __future__ import annotations

import json
from pathlib import Path

import typer

from lsdflow_command.completion import experiment_folders
from lsdflow_launch.options import named_folder
from lsdflow_launch.sweep.folder import PLAN_NAME


def sweep_folders(incomplete: str) -> list[str]:
    """Folders of prepared sweeps; after them the others, as the way to one."""
    folders = [name.removesuffix("/") for name in experiment_folders(incomplete)]
    sweeps = [name for name in folders if Path(name, PLAN_NAME).is_file()]
    return sweeps + [f"{name}/" for name in folders if name not in sweeps]


def sweep_files(incomplete: str) -> list[str]:
    """TOML files, any of which may be one of a sweep; after them the folders, as the way to one."""
    begin = "" if incomplete.endswith("/") else Path(incomplete).name
    folder = Path(incomplete) if incomplete.endswith("/") else Path(incomplete).parent
    try:
        found = sorted(p for p in folder.glob("*.toml") if p.name.startswith(begin) and p.is_file())
    except OSError:
        found = []
    return [*map(str, found), *(f"{name.removesuffix('/')}/" for name in experiment_folders(incomplete))]


def axis_values(context: typer.Context, incomplete: str) -> list[str]:
    """`axis=` of every axis of the sweep that the command line names, and `axis=value` of its values."""
    axes = _axes(named_folder(context))
    name, equals, begin = incomplete.partition("=")
    if not equals:
        return [f"{axis}=" for axis in axes if axis.startswith(name)]
    return [f"{name}={value}" for value in axes.get(name, ()) if value.startswith(begin)]


def _axes(root: Path) -> dict[str, list[str]]:
    """Labels of each axis; {} where no sweep is."""
    try:
        axes = json.loads((root / PLAN_NAME).read_text(encoding="utf-8"))["axes"]
        return {str(name): [str(label) for label in labels] for name, labels in axes.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
