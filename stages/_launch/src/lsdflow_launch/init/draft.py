"""`lsdflow init`: an experiment folder with a commented experiment file, its schema for editors and the image pins.

The folder is never inside a volume, and is removed if `init` fails or is interrupted.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lsdflow_command.interruption import tidied_at_signals
from lsdflow_command.machine import available_cores
from lsdflow_contract.errors import (
    ConfigError,
    MissingInput,
    OutputConflict,
    StageError,
    UsageError,
    problems_of,
    together,
)
from lsdflow_contract.experiment import GPU_STAGES, STAGES, did_you_mean, override_value, with_its_table
from lsdflow_contract.files import write_atomically
from lsdflow_contract.geometry import Lengths
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_launch.commands import answer_of, stage_command, stages_here
from lsdflow_launch.images.engines import engine_named
from lsdflow_launch.images.pins import Pin, key_of
from lsdflow_launch.init.inspect import Inspection, Start, container_and_dataset, inspect_volumes
from lsdflow_launch.init.networks import NETWORKS, PICTURE, Network, copy_network
from lsdflow_launch.init.propose import Choice
from lsdflow_launch.init.template import experiment_schema, experiment_text, merged, table_schemas

DEFAULT_PROFILE, DEFAULT_MODE = "standard", "acrlsd"
# Settings of [experiment] that are also options of `init`.
OWN_OPTIONS = ("profile", "mode")
LONGEST_NAME = 60
# Files that mark a folder as part of a zarr or N5 container, or of a precomputed volume.
ZARR = (".zarray", ".zgroup", "zarr.json")
KEYS = {"attributes.json": ("n5", "dimensions"), "info": ("scales",)}


@dataclass(frozen=True)
class Draft:
    """An experiment that is not written yet."""

    layout: ExperimentLayout
    text: str
    schema: dict[str, Any]
    images: str
    choices: tuple[Choice, ...] = ()
    network: Network | None = None
    picture: bytes = b""

    def write(self) -> ExperimentLayout:
        """Write experiment.toml, experiment.schema.json, images.env, and a copy of a network in the box."""
        if self.network is not None and self.network.comes_with_predict:
            copy_network(self.network, self.layout.root / NETWORKS / self.network.place)
        if self.picture:
            write_atomically(self.layout.root / PICTURE, lambda file: file.write(self.picture))
        schema = json.dumps(self.schema, indent=1, ensure_ascii=False) + "\n"
        texts = {self.layout.schema_json: schema, self.layout.images_env: self.images}
        for path, text in {**texts, self.layout.experiment_toml: self.text}.items():
            _write(path, text)
        return self.layout


def init_experiment(start: Start) -> ExperimentLayout:
    """Write an experiment without inspecting the volumes. Raises the errors of `draft_experiment`."""
    draft = draft_experiment(start, lambda _tables, _start: Inspection(start))
    with removed_on_failure(draft.layout):
        return draft.write()


def draft_experiment(
    start: Start, inspecting: Callable[[Mapping[str, Any], Start], Inspection] = inspect_volumes
) -> Draft:
    """Return the experiment that `init` would write, with the settings proposed from the volumes.

    Raises OutputConflict (73) if the folder already has an experiment, MissingInput (66) for a missing volume,
    UsageError (2) for a folder in a volume,
    ConfigError (78) for a malformed override or an unknown table, key or word; and the errors of `inspect_volumes`.
    """
    layout = ExperimentLayout(start.root)
    _refuse_experiment(layout)
    named = [path for path in (*start.train, start.volume, start.labels, start.truth) if path is not None]
    sources = [container_and_dataset(path)[0] for path in named]
    stages = STAGES if start.training_volumes else stages_here()
    schemas = table_schemas(stages)
    schema = experiment_schema(schemas)
    overrides: list[tuple[list[str], Any]] = []
    checks: list[Callable[[], object]] = [
        *(partial(_refuse_absent, path) for path in dict.fromkeys(sources)),
        partial(refuse_folder_in_volume, start.root, sources),
        partial(_refuse_wrong_numbers, start),
        *(partial(_refuse_unknown_word, schema, option, getattr(start, option)) for option in OWN_OPTIONS),
        *(partial(read_override, override, schemas, overrides) for override in start.overrides),
    ]
    if problems := problems_of(checks):
        raise together(problems)
    inspection = inspecting(merged(_chosen(start, None), overrides), start)
    already_set = {".".join(parts) for parts, _ in overrides}
    choices = tuple(choice for choice in inspection.choices if choice.key not in already_set)
    values = _proposed(_chosen(inspection.start, start.root), choices)
    tables = merged(values, overrides)
    text = experiment_text(schemas, tables, {c.key: c.why for c in choices})
    sifs = layout.root / str(tables.get("cluster", {}).get("images", "images"))
    return Draft(layout, text, schema, images_text(stages, sifs), choices, inspection.start.network, inspection.picture)


def images_text(stages: Sequence[str], sifs: Path | None = None) -> str:
    """Return the pins of these stages as installed, a line for each, never `latest`; `sifs`: the folder of the SIFs.

    Stages with torch are pinned to the variant of their SIFs, or without SIFs to the one that `make` would build here.
    A stage of which there is one SIF is pinned by its digest.
    """
    lines = [
        "# Images of this experiment, read by compose and by the cluster wrappers. Add @sha256:... of published ones.",
        "# -cuda needs a GPU, -cpu does not; `make pins` pins the images that were built.",
    ]
    found = [torch for torch in ("cuda", "cuda12", "cpu") if sifs and any(sifs.glob(f"*-{torch}_*.sif"))]
    torch = found[0] if found else "cuda" if shutil.which("nvidia-smi") else "cpu"
    with ThreadPoolExecutor(available_cores()) as pool:
        return "\n".join([*lines, *pool.map(lambda stage: _pin_line(stage, torch, sifs), stages)]) + "\n"


def _pin_line(stage: str, torch: str, sifs: Path | None) -> str:
    pin = Pin(key_of(stage), f"lsdflow/{stage}", _version(stage) + (f"-{torch}" if stage in GPU_STAGES else ""))
    if sifs and any(sifs.glob(f"{stage}_*.sif")):
        with contextlib.suppress(StageError):  # several SIFs of this version, none, or no Apptainer
            pin = replace(pin, digest=engine_named("singularity", sifs).find(stage, pin).digest)
    return f"{pin.key}={pin}"


def _version(stage: str) -> str:
    done = answer_of([stage_command(stage), "--version"])
    done.check_returncode()
    return done.stdout.split()[1]


def _write(path: Path, text: str) -> None:
    write_atomically(path, lambda file: file.write(text.encode()))


def _refuse_experiment(layout: ExperimentLayout) -> None:
    if layout.experiment_toml.exists():
        fix = f"choose another folder, or continue with this one: lsdflow status {layout.root}"
        raise OutputConflict("the folder already holds an experiment", where=layout.experiment_toml, fix=fix)


def _refuse_absent(path: Path) -> None:
    """Raise ConfigError (78) for an address, MissingInput (66) for a path that does not exist."""
    if ":/" in str(path) and not path.exists():
        address = str(path).replace(":/", "://", 1)  # a path has no double slash
        fix = "copy or mount the volume, then name the local path"
        raise ConfigError("only local paths are read, no address", where=address, fix=fix)
    if not path.exists():
        raise MissingInput("no such volume", where=path)


def _refuse_wrong_numbers(start: Start) -> None:
    try:
        Lengths.parse(start.voxel_size or "1 nm")
    except ValueError as error:
        raise UsageError(str(error), where="--voxel-size", wanted='"40, 8, 8 nm" (z, y, x)') from error
    if start.expansion_factor is not None and not 0 < start.expansion_factor < math.inf:
        raise UsageError("no expansion", where="--expansion-factor", wanted="above 0", found=start.expansion_factor)


def _refuse_unknown_word(schema: Mapping[str, Any], option: str, word: str | None) -> None:
    """Raise ConfigError (78) for an unknown profile or mode."""
    words = schema["properties"]["experiment"]["properties"][option].get("enum", [])
    if word is not None and word not in words:
        raise ConfigError(f"no {option} {word!r}", where=f"--{option}", fix=did_you_mean(word, words))


def read_override(override: str, schemas: Mapping[str, dict[str, Any]], found: list[tuple[list[str], Any]]) -> None:
    """Append the keys and the value of an override to `found`; raise ConfigError (78) for an unknown table or key."""
    parts, value = _parsed(override, schemas)
    found.append((parts, value))
    table, key = parts[:2]
    if table not in schemas:
        raise ConfigError(f"no table {table!r}", where="--set", fix=did_you_mean(table, list(schemas)))
    known = list(schemas[table].get("properties", {}))
    if key not in known:
        raise ConfigError(f"no key {table}.{key}", where="--set", fix=did_you_mean(key, known))


def _chosen(start: Start, root: Path | None) -> dict[str, Any]:
    """Return the tables of the options; paths are relative to `root`, or absolute if it is None."""

    def path_of(path: Path) -> str:
        """Return the path as it is written into the experiment file."""
        return str(path.resolve()) if root is None else os.path.relpath(path.resolve(), root.resolve())

    def named(key: str, path: Path | None) -> dict[str, str]:
        """Return the keys of a volume, and of its dataset if the path names one in a file."""
        if path is None:
            return {}
        container, dataset = container_and_dataset(path)
        return {key: path_of(container), **({f"{key}_dataset": dataset} if dataset else {})}

    size: dict[str, Any] = {"voxel_size": start.voxel_size} if start.voxel_size else {}
    size |= {"expansion_factor": start.expansion_factor} if start.expansion_factor else {}
    training = []
    for number, path in enumerate(start.training_volumes):
        name = f"{valid_name(container_and_dataset(path)[0].stem) or 'volume'}-{number}"
        training.append({"name": name, **named("raw", path), **named("labels", start.labels), **size})
    profile = start.profile or (start.network.profile if start.network and start.train else DEFAULT_PROFILE)
    network = _network_tables(start, path_of(start.network_folder)) if start.network_folder else {}
    return {
        "experiment": {
            "name": valid_name(start.root.resolve().name) or "experiment",
            "mode": start.mode or DEFAULT_MODE,
            "profile": profile,
        },
        "prepare": {
            **({"training": training} if training else {}),
            "target": {**named("raw", start.volume), **named("truth", start.truth), **size},
        },
        **network,
    }


def _network_tables(start: Start, folder: str) -> dict[str, Any]:
    """The settings that use a trained network: to predict, or as the weights that a training begins with."""
    if start.network is None or not start.train:
        return {"predict": {"checkpoint": folder}}
    return {"train-acrlsd": {"initial_weights": folder, **network_shape(start.network.unet)}}


def network_shape(unet: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a training that give a network this form."""
    # Flat kernels come from the profile, which has them only with factors of its own.
    factors = () if unet.get("kernels_down") else ("downsample_factors",)
    return {name: unet[name] for name in ("num_fmaps", "fmap_inc_factor", *factors)}


def valid_name(text: str) -> str:
    """The nearest valid name to a file name: letters, digits, _ . and -; empty if nothing of it is left."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", plain).strip("_.-")[:LONGEST_NAME]


def _proposed(values: Mapping[str, Any], choices: Sequence[Choice]) -> dict[str, Any]:
    """Return `values` with the choices applied; a choice for [[prepare.training]] applies to all volumes."""
    found = merged(values, [(c.key.split("."), c.value) for c in choices if not c.key.startswith("prepare.training.")])
    shared = {c.key.rpartition(".")[2]: c.value for c in choices if c.key.startswith("prepare.training.")}
    prepare = found["prepare"]
    if "training" not in prepare:
        return found
    return {**found, "prepare": {**prepare, "training": [{**volume, **shared} for volume in prepare["training"]]}}


def _parsed(override: str, schemas: Mapping[str, dict[str, Any]]) -> tuple[list[str], Any]:
    dotted, equals, text = override.partition("=")
    parts = dotted.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        fix = with_its_table(override, {table: schema.get("properties", {}) for table, schema in schemas.items()})
        if fix and parts[0] in OWN_OPTIONS:
            fix = f"{fix.removesuffix('?')}, or --{parts[0]} {text.strip()}?"
        raise ConfigError("an override is table.key=value", where="--set", found=override, fix=fix)
    return parts, override_value(dotted.strip(), text)


def refuse_folder_in_volume(root: Path, sources: Sequence[Path]) -> None:
    """Raise UsageError (2) if the folder is a volume, is inside one, or is one of the sources."""
    folder = root.resolve()
    used = {path.resolve() for path in sources}
    found = next((path for path in (folder, *folder.parents) if path in used or _is_volume(path)), None)
    if found is not None:
        raise UsageError(
            "an experiment cannot be in a volume",
            where=root,
            found=f"{found} is a volume",
            fix="name a folder of its own: lsdflow init DIR --volume VOLUME",
        )


@contextlib.contextmanager
def removed_on_failure(layout: ExperimentLayout) -> Iterator[None]:
    """Remove the files of a new experiment if anything is raised, or a signal ends the command."""
    new = [path for path in (layout.root, *layout.root.parents) if not path.exists()]
    networks_are_new = not (layout.root / NETWORKS).exists()

    def tidy() -> None:
        """Remove what this command has written."""
        if layout.root in new:
            shutil.rmtree(layout.root, ignore_errors=True)
        for path in (layout.experiment_toml, layout.schema_json, layout.images_env, layout.root / PICTURE):
            path.unlink(missing_ok=True)
        if networks_are_new:
            shutil.rmtree(layout.root / NETWORKS, ignore_errors=True)
        for folder in new[1:]:
            with contextlib.suppress(OSError):
                folder.rmdir()

    try:
        with tidied_at_signals(tidy):
            yield
    except BaseException:
        tidy()
        raise


def _is_volume(folder: Path) -> bool:
    if any((folder / name).is_file() for name in ZARR):
        return True
    return any(key in _json_of(folder / name) for name, keys in KEYS.items() for key in keys)


def _json_of(path: Path) -> dict[str, object]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
