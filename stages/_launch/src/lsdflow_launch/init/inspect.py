"""Inspection of the volumes for `lsdflow init`: prepare reads them, and its answer is turned into proposals."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lsdflow_command.machine import available_cores, free_memory_bytes
from lsdflow_command.scratch import scratch_folder
from lsdflow_contract.errors import InternalError, NoVoxelSize, StageError, UsageError, together
from lsdflow_contract.experiment import STAGES
from lsdflow_launch.commands import ask_stage
from lsdflow_launch.init.middle import Middle
from lsdflow_launch.init.networks import (
    NETWORKS,
    Network,
    choices_for,
    contrast_choices,
    network_that_fits,
    network_to_start_from,
)
from lsdflow_launch.init.propose import Choice, Machine, Volume, proposals, text_of
from lsdflow_launch.init.template import toml_value

LOG = logging.getLogger("lsdflow.init")
# Settings of the target by which a network sees its voxels in another way.
HOW_READ = ("resample_to", "raw_range")
RATE_OF_TRAINED = 1e-4
OF_TRAINING = ("experiment.profile", "prepare.training.", "train-lsd.", "train-acrlsd.")
# Settings of users that want another network than those that come with lsdflow.
OF_NETWORKS = (
    *("experiment.profile", "experiment.mode", "train-lsd.", "predict.checkpoint", "train-acrlsd.backend"),
    *("train-acrlsd.initial_weights", "train-acrlsd.num_fmaps", "train-acrlsd.fmap_inc_factor"),
    *("train-acrlsd.downsample_factors", "train-acrlsd.neighborhood"),
)


@dataclass(frozen=True)
class Start:
    """The options of `init`. None = proposed; without `train` and `network`, `volume` is searched for labels.

    network: a trained network, which predicts, or with `train` is trained on. One that comes with predict is copied to
    networks/ in `root`. from_nothing: trainings start from random weights, whatever network fits.
    """

    root: Path
    train: tuple[Path, ...]
    volume: Path
    labels: Path | None = None
    truth: Path | None = None
    profile: str | None = None
    mode: str | None = None
    voxel_size: str | None = None
    expansion_factor: float | None = None
    overrides: tuple[str, ...] = ()
    network: Network | None = None
    from_nothing: bool = False

    @property
    def training_volumes(self) -> tuple[Path, ...]:
        """The volumes to train on; none if a network is given and no volume is named."""
        return self.train or (() if self.network else (self.volume,))

    @property
    def network_folder(self) -> Path | None:
        """The folder of the network, for one that comes with predict that of its copy."""
        if self.network is None:
            return None
        copies = self.root / NETWORKS if self.network.comes_with_predict else Path()
        return copies / self.network.place


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
    picture: bytes = b""


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
    if training:
        found = _with_network_found(found, training, target)
    network = found.network
    choices = proposals(training, target, this_machine(), start.profile, network.profile if network else None)
    if not trained:
        choices = tuple(choice for choice in choices if not choice.key.startswith(OF_TRAINING))
    inspection = Inspection(found, (*_truth_choice(start, found), *_start_choices(start, found), *choices), volumes)
    if network is not None and network.mode != "acrlsd":
        return _seen_by(network, inspection, tables)
    return inspection


def _with_network_found(start: Start, training: Sequence[Volume], target: Volume) -> Start:
    """Add the network from which the training starts, if one fits and the options do not want another."""
    if start.network or start.from_nothing or any(word.strip().startswith(OF_NETWORKS) for word in start.overrides):
        return start
    sizes = [volume.voxel_size_nm for volume in (*training, target)]
    sections = min(volume.shape_vox[0] for volume in training)
    network = network_to_start_from(sizes, sections, start.mode, start.profile)
    return replace(start, network=network, mode=network.mode) if network else start


def _start_choices(start: Start, found: Start) -> tuple[Choice, ...]:
    """Return the reasons for the weights that a training starts from, and for a mode that the options do not name."""
    network, folder = found.network, found.network_folder
    if network is None or folder is None or not found.train:
        return ()
    if start.network:
        why = "--network: the training starts from these weights"
    else:
        why = f"the training starts from {network.place}, which comes with lsdflow and was trained on voxels of "
        why += f"{text_of(network.voxel_size_nm)} nm; from random weights: --network none"
    weights = os.path.relpath(folder.resolve(), start.root.resolve())
    rate = "a tenth to a fifth of that of random weights: the network keeps what it has learnt from more data"
    choices = (
        Choice("train-acrlsd.initial_weights", weights, why),
        Choice("train-acrlsd.learning_rate", RATE_OF_TRAINED, rate),
    )
    return choices if start.mode else (Choice("experiment.mode", network.mode, f"that of {network.place}"), *choices)


def _seen_by(network: Network, before: Inspection, tables: Mapping[str, Any]) -> Inspection:
    """The inspection with the settings with which a network sees the target; those that the options set are kept."""
    given, target = tables["prepare"]["target"], (before.volumes or {})["target"]
    fitting = {c.key: c for c in choices_for(network, target) if c.key.rpartition(".")[2] not in given}
    if before.start.train:  # the volumes to train on are read in the same way; the network learns their voxel size
        alike = [c for key, c in fitting.items() if key.startswith("prepare.target.")]
        trained = [replace(c, key=c.key.replace(".target.", ".training.")) for c in alike]
        return _with(before, {c.key: c for c in (*alike, *trained)})
    proposed = {c.key: c.value for c in (*before.choices, *fitting.values())}
    read = {key: proposed[f"prepare.target.{key}"] for key in HOW_READ if f"prepare.target.{key}" in proposed}
    seen = {**given, **read}
    middle = Middle(network.place, network.input_shape_vox, _text_of(target=seen))
    turned = contrast_choices(network, target, seen.get("raw_range"), middle.cells)
    if "raw_range" not in given:
        fitting |= {choice.key: choice for choice in turned}
    elif turned:
        LOG.warning("raw_range is kept as given, but %s", turned[0].why)
    found = _with(before, fitting)
    return found if turned or len(middle.seen) < 2 else replace(found, picture=middle.picture())


def _with(before: Inspection, fitting: Mapping[str, Choice]) -> Inspection:
    """The inspection with these choices in place of others of the same keys."""
    others = [choice for choice in before.choices if choice.key not in fitting]
    return replace(before, choices=(*fitting.values(), *others))


def _ask(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of prepare. Only its table is written, into a temporary folder."""
    with scratch_folder(Path(tempfile.gettempdir()), "lsdflow-init") as folder:
        path = folder / "experiment.toml"
        path.write_text(_text_of(**tables["prepare"]), encoding="utf-8")
        answer = ask_stage(STAGES[0], ["look", "--experiment", str(path), "--json"])
    return answer if isinstance(answer, dict) else {}


def _text_of(**table: Any) -> str:
    """An experiment file with only the table of prepare."""
    return "\n".join([f"[{STAGES[0]}]", *(f"{key} = {toml_value(value)}" for key, value in table.items())]) + "\n"


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
    fix += f"; or a trained network: {network_that_fits(answer['volumes']['target'])}"
    return UsageError("there are no labels to train on", where=start.volume, found=found, fix=fix)
