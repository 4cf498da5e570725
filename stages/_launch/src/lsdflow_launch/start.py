"""`lsdflow init`: an experiment folder with its commented file and its image pins."""

from __future__ import annotations

import os
import subprocess
import tomllib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import ConfigError, MissingInput, NotOurs
from lsdflow_contract.experiment import STAGES, ComputeTable, ExperimentTable, StoreTable, did_you_mean
from lsdflow_contract.files import write_atomically
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.model import StrictModel
from lsdflow_launch.cluster import ClusterTable
from lsdflow_launch.commands import ask_stage, stage_command
from lsdflow_launch.template import experiment_text, merged


@dataclass(frozen=True)
class Start:
    """What `init` was told."""

    root: Path
    train: tuple[Path, ...]
    volume: Path
    labels: Path | None = None
    truth: Path | None = None
    profile: str = "standard"
    mode: str = "acrlsd"
    overrides: tuple[str, ...] = ()


def init_experiment(start: Start) -> ExperimentLayout:
    """Write experiment.toml and images.env.

    Raises NotOurs (73) if there is an experiment already, MissingInput (66) for a volume that does not exist,
    ConfigError (78) for a malformed override, or one of a table or key that there is not.
    """
    layout = ExperimentLayout(start.root)
    if layout.experiment_toml.exists():
        raise NotOurs("there is an experiment already", where=layout.experiment_toml, hint="choose another folder")
    for path in filter(None, (*start.train, start.volume, start.labels, start.truth)):
        if not path.exists():
            raise MissingInput("no such volume", where=path)
    overrides = [_parsed(o) for o in start.overrides]
    schemas = _schemas()
    for parts, _ in overrides:
        _refuse_unknown(parts[0], parts[1], schemas)
    text = experiment_text(schemas, merged(_chosen(start), overrides))
    images = images_text()
    write_atomically(layout.experiment_toml, lambda file: file.write(text.encode()))
    write_atomically(layout.images_env, lambda file: file.write(images.encode()))
    return layout


def images_text() -> str:
    """The pins of this installation: one line a stage, never `latest`."""
    lines = [
        "# Images of this experiment, read by compose and by the cluster wrappers. Add @sha256:... of published images."
    ]
    with ThreadPoolExecutor() as pool:
        versions = pool.map(_version, STAGES)
    for stage, version in zip(STAGES, versions, strict=True):
        lines.append(f"{stage.upper().replace('-', '_')}_IMAGE=lsdflow/{stage}:{version}")
    return "\n".join(lines) + "\n"


def _version(stage: str) -> str:
    done = subprocess.run([stage_command(stage), "--version"], capture_output=True, text=True, check=True)
    return done.stdout.split()[1]


def _schemas() -> dict[str, dict[str, Any]]:
    with ThreadPoolExecutor() as pool:
        of_stages = dict(zip(STAGES, pool.map(lambda stage: ask_stage(stage, ["schema"]), STAGES), strict=True))
    first: dict[str, type[StrictModel]] = {"experiment": ExperimentTable, "store": StoreTable, "compute": ComputeTable}
    schemas = {name: model.model_json_schema() for name, model in first.items()}
    return {**schemas, **of_stages, "cluster": ClusterTable.model_json_schema(by_alias=True)}


def _refuse_unknown(table: str, key: str, schemas: Mapping[str, dict[str, Any]]) -> None:
    if table not in schemas:
        raise ConfigError(f"no table {table!r}", where="--set", hint=did_you_mean(table, list(schemas)))
    known = list(schemas[table].get("properties", {}))
    if key not in known:
        raise ConfigError(f"no key {table}.{key}", where="--set", hint=did_you_mean(key, known))


def _chosen(start: Start) -> dict[str, Any]:
    def relative(path: Path) -> str:
        return os.path.relpath(path.resolve(), start.root.resolve())

    training = []
    for number, path in enumerate(start.train):
        labels = {"labels": relative(start.labels)} if start.labels else {}
        training.append({"name": f"{path.stem}-{number}", "raw": relative(path), **labels})
    truth = {"truth": relative(start.truth)} if start.truth else {}
    return {
        "experiment": {"name": start.root.resolve().name, "mode": start.mode, "profile": start.profile},
        "prepare": {"training": training, "target": {"raw": relative(start.volume), **truth}},
    }


def _parsed(override: str) -> tuple[list[str], Any]:
    dotted, equals, text = override.partition("=")
    parts = dotted.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        raise ConfigError("an override is table.key=value", where="--set", found=override)
    try:
        return parts, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return parts, text.strip()
