"""The experiment folder of a run: its experiment file, and links to the results of stages that runs share.

The file has the tables of the base with the keys of the run, and adjusted relative paths. No volume is copied.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import ConfigError, OutputConflict
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import storage_errors
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.lut import luts_of
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.trainings import TRAININGS
from lsdflow_launch.init.template import toml_key, toml_value

# Keys that hold a path in any table. Some may hold a word like "truth" or "best", which is no file.
PATH_KEYS = {
    *("raw", "labels", "truth", "mask", "mask_file", "skeletons", "checkpoint", "lsd_checkpoint"),
    *("uri_file", "images", "binds"),
}
WORDS = {"", "auto", "truth", "none", "best", "trained_with"}
LONGEST_DATABASE = 50
WITH_ARRAYS = ("prepare", "predict", "watershed", "segment")


def experiment_text_of(base: Experiment, settings: Mapping[str, Any], name: str, folder: Path) -> str:
    """Return the text of the file in `folder`. Raises ConfigError (78) for a key below a value that is not a table."""
    tables: dict[str, Any] = copy.deepcopy(base.tables)
    for key, value in settings.items():
        _set_key(tables, key, value)
    named = re.sub(r"[^A-Za-z0-9_.-]", "-", name)
    tables.setdefault("experiment", {})["name"] = named
    if tables.get("store", {}).get("engine") == "mongo":
        # A database holds the graph of one experiment, so every run needs its own.
        owner = base.database[:LONGEST_DATABASE]
        tables["store"]["database"] = f"{owner}-{hash_of([str(folder.resolve()), name])[:10]}"
    tables = _moved(tables, base.path.parent.resolve(), folder.resolve())
    lines = [f"# A run of a sweep: the tables of {base.path.name} of {base.common.name}, and the keys of this run."]
    for table, content in tables.items():
        lines += ["", f"[{table}]", *(f"{toml_key(key)} = {toml_value(value)}" for key, value in content.items())]
    return "\n".join(lines) + "\n"


def _set_key(tables: dict[str, Any], dotted: str, value: Any) -> None:
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
    # A path that begins with ".." was written for this base; its file may be gone.
    return os.path.relpath(old / value, new) if value.startswith("..") or _exists(old / value) else value


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or a NUL: the text is not a path
        return False


def results_of(stage: str, layout: ExperimentLayout) -> Iterator[Path]:
    """Yield the existing files and folders of a finished stage that later stages read; its manifest last."""
    arrays: dict[str, list[Path]] = {
        "watershed": [layout.store / "nodes"],
        "agglomerate": sorted(layout.store.glob("edges_*")),
    }
    if stage == "segment" and layout.manifest(stage).exists():
        arrays[stage] = [luts_of(layout, read_manifest(layout, stage))]
    for path in (
        *arrays.get(stage, []),
        *_containers(stage, layout),
        layout.store / "blocks" / stage,
        layout.manifest(stage),
    ):
        if path.exists():
            yield path


def _link_training(stage: str, layout: ExperimentLayout, target: ExperimentLayout) -> None:
    """Link the result of a training, and make it the current one of the target."""
    folder = layout.result(stage, read_manifest(layout, stage).key)
    if not folder.is_dir():
        return
    _link(folder, target.results / stage / folder.name)
    _link(target.results / stage / folder.name, target.train_dir(stage))


def _containers(stage: str, layout: ExperimentLayout) -> list[Path]:
    """Return the containers of the arrays that a stage wrote."""
    if stage not in WITH_ARRAYS or not layout.manifest(stage).exists():
        return []
    manifest = read_manifest(layout, stage)
    return sorted({manifest.output_array(layout, name)[0] for name in manifest.outputs})


def link_stages(stages: Iterable[str], source: Path, target: Path) -> None:
    """Link the results of finished stages of the experiment folder `source` into `target`; correct links are kept.

    Raises OutputConflict (73) if another file or folder is in the place of a link.
    """
    layout = ExperimentLayout(source)
    for stage in stages:
        if layout.manifest(stage).exists():
            if stage in TRAININGS:
                _link_training(stage, layout, ExperimentLayout(target))
            for path in results_of(stage, layout):
                _link(path, target / path.relative_to(source))


def _link(path: Path, link: Path) -> None:
    with storage_errors(link):
        link.parent.mkdir(parents=True, exist_ok=True)
        leads_to = os.path.relpath(path, link.parent.resolve())
        try:
            link.symlink_to(leads_to)
        except FileExistsError as error:
            if link.exists() and link.samefile(path):
                return
            fix = "a run of a sweep is no place for other results: move it away"
            raise OutputConflict("something else is where a shared result belongs", where=link, fix=fix) from error
