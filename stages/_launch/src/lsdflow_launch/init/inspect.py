"""Inspection of the volumes for `lsdflow init`: prepare reads them, and its answer is turned into proposals."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lsdflow_command.machine import available_cores, free_memory_bytes
from lsdflow_contract.errors import InternalError, NoVoxelSize, StageError, UsageError, together
from lsdflow_contract.experiment import STAGES
from lsdflow_launch.commands import ask_stage
from lsdflow_launch.init.propose import Choice, Machine, Volume, proposals
from lsdflow_launch.init.template import toml_value

LOG = logging.getLogger("lsdflow.init")
OF_TRAINING = ("experiment.profile", "prepare.training.", "train-lsd.", "train-acrlsd.")


@dataclass(frozen=True)
class Start:
    """The options of `init`. None = proposed; without `train` and `checkpoint`, `volume` is searched for labels.

    checkpoint: the folder of a trained network, which predicts; then `train` is empty and nothing is trained.
    """

    root: Path
    train: tuple[Path, ...]
    volume: Path
    labels: Path | None = None
    truth: Path | None = None
    profile: str | None = None
    mode: str = "acrlsd"
    voxel_size: str | None = None
    expansion_factor: float | None = None
    overrides: tuple[str, ...] = ()
    checkpoint: Path | None = None

    @property
    def training_volumes(self) -> tuple[Path, ...]:
        """The volumes to train on; none if a checkpoint is given and no volume is named."""
        return self.train or (() if self.checkpoint else (self.volume,))


def container_and_dataset(path: Path) -> tuple[Path, str]:
    """The file and the dataset of `file.h5/dataset`; the path itself and "" for anything else."""
    file = next((parent for parent in path.parents if parent.is_file()), path)
    return file, "" if file == path else path.relative_to(file).as_posix()


@dataclass(frozen=True)
class Inspection:
    """The result of an inspection: the options completed with what was found, choices, facts of the volumes."""

    start: Start
    choices: tuple[Choice, ...] = ()
    volumes: Mapping[str, Any] | None = None


def this_machine() -> Machine:
    """Return the cores and free memory for blocks on this machine, and whether it has a GPU."""
    gpu = shutil.which("nvidia-smi") is not None
    return Machine(available_cores(), free_memory_bytes(), gpu)


def inspect_volumes(tables: Mapping[str, Any], start: Start) -> Inspection:
    """Let prepare inspect the volumes of an experiment that is not written yet.

    Raises NoVoxelSize (65) with the option that sets it, UsageError (2) if there are no labels to train on and no
    --train, and all problems of volumes that cannot be used unchanged.
    """
    try:
        answer = _ask(tables)
    except InternalError as error:
        LOG.warning("the volumes could not be read, so no settings are proposed: %s", error.what)
        return Inspection(start)
    if "volumes" not in answer:
        return Inspection(start)
    volumes = answer["volumes"]
    trained = [facts for label, facts in volumes.items() if label.startswith("training/")]
    sized = all(problem["error"] != NoVoxelSize.__name__ for problem in answer["problems"])
    if sized and start.training_volumes and not start.train and not trained and "target" in volumes:
        raise _without_labels(start, answer)
    if answer["problems"]:
        raise together([_unusable(problem) for problem in answer["problems"]])
    found = _with_labels_found(start, volumes)
    if "target" not in volumes:
        return Inspection(found, _truth_choice(start, found), volumes)
    training, target = [Volume.of(facts) for facts in trained], Volume.of(volumes["target"])
    choices = proposals(training, target, this_machine(), start.profile)
    if not trained:
        choices = tuple(choice for choice in choices if not choice.key.startswith(OF_TRAINING))
    return Inspection(found, (*_truth_choice(start, found), *choices), volumes)


def _ask(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of prepare. Only its table is written, into a temporary folder."""
    table = tables["prepare"]
    lines = [f"{key} = {toml_value(value)}" for key, value in table.items()]
    with tempfile.TemporaryDirectory(prefix="lsdflow-init-") as folder:
        path = Path(folder) / "experiment.toml"
        path.write_text("\n".join([f"[{STAGES[0]}]", *lines]) + "\n", encoding="utf-8")
        answer = ask_stage(STAGES[0], ["look", "--experiment", str(path), "--json"])
    return answer if isinstance(answer, dict) else {}


def _with_labels_found(start: Start, volumes: Mapping[str, Any]) -> Start:
    """Add labels that the options do not name: those of the volume for training, those of the target as its truth."""
    found = replace(start, train=start.training_volumes)
    if start.truth is not None:
        return found
    if volumes.get("target", {}).get("labels_beside"):
        return replace(found, truth=container_and_dataset(start.volume)[0])
    if not start.train and start.labels is not None:
        return replace(found, truth=start.labels)
    return found


def _truth_choice(start: Start, found: Start) -> tuple[Choice, ...]:
    """Return the reason for a truth that the options do not name; it is written to the file like an option."""
    if found.truth is None or start.truth is not None:
        return ()
    trained = found.volume.resolve() in {path.resolve() for path in found.train}
    why = "labels in the same container" if start.labels is None else "the labels given"
    why += "; they are trained on, so the scores flatter: hold out what should be judged" if trained else ""
    path = os.path.relpath(container_and_dataset(found.truth.resolve())[0], start.root.resolve())
    return (Choice("prepare.target.truth", path, why),)


def _without_voxel_size(problem: Mapping[str, Any]) -> NoVoxelSize:
    return NoVoxelSize(
        problem["what"],
        where=problem["where"],
        wanted=problem["wanted"],
        found=problem["found"],
        fix='give it, z, y, x: lsdflow init ... --voxel-size "40, 8, 8 nm"',
    )


def _unusable(problem: Mapping[str, Any]) -> StageError:
    """Return the problem as an error of `init`, with a fix that uses the options of `init`."""
    if problem["error"] == NoVoxelSize.__name__:
        return _without_voxel_size(problem)
    parts = {name: problem[name] for name in ("where", "wanted", "found")}
    setting = (
        "for `init`, settings of the volumes are: --set prepare.training.KEY=VALUE, --set prepare.target.KEY=VALUE"
    )
    error = StageError(problem["what"], **parts, fix="; ".join(filter(None, (problem.get("fix"), setting))))
    error.exit_code = problem["exit_code"]
    return error


def _without_labels(start: Start, answer: Mapping[str, Any]) -> UsageError:
    found = "; ".join(problem["what"] for problem in answer["problems"])
    fix = "lsdflow init ... --train LABELLED.zarr, or --labels LABELS.zarr (zarr, N5, HDF5, TIFF, precomputed)"
    fix += "; or --checkpoint FOLDER: a trained network"
    return UsageError("there are no labels to train on", where=start.volume, found=found, fix=fix)
