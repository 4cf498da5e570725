"""`lsdflow migrate` moves an experiment of contract 1 into the layout of contract 2, without copying a voxel.

    data/target.zarr, data/training/NAME.zarr          -> results/prepare/<key of the volume>/
    predictions/<setup>/<iteration>/predictions.zarr   -> results/predict/<key>/
    fragments.zarr, segmentation.zarr                  -> results/watershed/<key>/, results/segment/<key>/
    train/train-lsd, train/train-acrlsd                -> results/<stage>/<key>/, and a link in the old place

For each finished stage its containers are renamed, then its manifest is rewritten with the new paths. After an
interruption between the two, the same command finds the container at its new path and only writes the manifest. Keys,
identities, done marks and rows of the graph do not change, so no block is recomputed. Results of an unfinished stage
with blocks are not moved.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.experiment_lock import experiment_lock
from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import STAGES, load_experiment
from lsdflow_contract.files import storage_errors
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_contract.trainings import TRAININGS, current_training, move_to_results
from lsdflow_launch.options import Debug, Folder, Json
from lsdflow_launch.output import print_answer


def migrate(layout: ExperimentLayout) -> dict[str, str]:
    """Move the results of finished stages of contract 1; return new path by old path, relative to the experiment.

    Raises OutputConflict (73), before anything is moved, if a stage runs; MissingInput (66) if a container is missing.
    """
    with experiment_lock(layout):
        return _migrated(layout)


def _migrated(layout: ExperimentLayout) -> dict[str, str]:
    moved: dict[str, str] = {}
    for stage in TRAININGS:
        before = current_training(layout, stage)
        move_to_results(layout, stage)
        if not before and (key := current_training(layout, stage)):
            moved[f"train/{stage}"] = f"results/{stage}/{key}"
    for stage in (s for s in STAGES if s not in TRAININGS):
        manifest = None
        with suppress(MissingInput):
            manifest = read_manifest(layout, stage)
        if manifest is not None and manifest.contract.partition(".")[0] == "1":
            moved |= _move(layout, manifest)
    return moved


def _move(layout: ExperimentLayout, manifest: Manifest) -> dict[str, str]:
    """Move the containers of one stage, and rewrite its manifest. Returns new path by old path."""
    stage, moved, outputs = manifest.writer.stage, {}, dict(manifest.outputs)
    for name, path in manifest.outputs.items():
        container, dataset = manifest.output_array(layout, name)
        if container.suffix != ".zarr" or container.is_relative_to(layout.results):
            continue
        # The inputs of prepare are the keys of its volumes, by their labels.
        key = manifest.inputs.get(name, manifest.key) if stage == "prepare" else manifest.key
        place = layout.result(stage, key) / container.name
        _rename(container, place, layout.root)
        outputs[name] = (place / dataset).relative_to(layout.root).as_posix()
        moved[path] = outputs[name]
    with storage_errors(layout.results):
        layout.result(stage, manifest.key).mkdir(parents=True, exist_ok=True)
    manifest.model_copy(update={"outputs": outputs, "contract": CONTRACT_VERSION}).write(layout)
    return moved


def _rename(container: Path, place: Path, root: Path) -> None:
    """Rename a container, unless an interrupted call already has; then remove empty folders."""
    if place.exists():
        return
    if not container.exists():
        raise MissingInput("a container that the manifest names is not there", where=container)
    with storage_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        if container.is_symlink():
            place.symlink_to(container.resolve())
            container.unlink()
        else:
            container.rename(place)
        for folder in container.parents:
            if folder == root or any(folder.iterdir()):
                break
            folder.rmdir()


def add_migrate_verb(app: typer.Typer) -> None:
    """Register `migrate`."""

    @app.command(name="migrate")
    def migrate_(folder: Folder, as_json: Json = False, debug: Debug = False) -> None:
        """Move an experiment of contract 1 into the layout of contract 2; no voxel is copied, no block is redone."""
        with exit_codes(debug, as_json):
            moved = migrate(load_experiment(folder, []).layout)
            lines = [f"{old} -> {new}" for old, new in moved.items()] or ["nothing to move"]
            print_answer({"moved": moved}, "\n".join(lines), as_json)
