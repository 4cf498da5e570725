"""Checkpoints of a training: write bundles, resume from the newest valid one, choose the best, delete old ones.

A checkpoint is valid if its weights match the sha256 in bundle.json, resume.pt matches its checksums and the hash of
the rest of bundle.json that it stores, and the name of the folder is its iteration.

resume.pt holds everything apart from the weights that is needed to resume a training without a difference. It is a zip
file, as torch writes it. torch does not compare its checksums, so a flipped bit would give a slightly different
optimizer state. They are compared here before anything is read.

best.json names the checkpoint that the next stage uses; a damaged one is never chosen. A training chooses by validation
loss. A choice by VOI (`lsdflow select-checkpoint`) takes precedence as long as its checkpoint exists, also when the
training is resumed: newer checkpoints compete only once they have been checked too.
"""

from __future__ import annotations

import io
import json
import logging
import shutil
import uuid
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lsdflow_contract.checkpoint import (
    BUNDLE_JSON,
    DESCRIPTION_HASH,
    RESUME,
    WEIGHTS,
    BestCheckpoint,
    Bundle,
    bundle_folder,
    bundle_iterations,
    hash_of_description,
    read_best,
    read_bundle,
    write_best,
)
from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput, OutputConflict
from lsdflow_contract.files import TEMPORARY_SUFFIX, read_json, storage_errors
from lsdflow_contract.hashing import hash_of_file
from lsdflow_network.bundle import load_bundle, save_bundle
from lsdflow_training.processes.sharding import shares_of, shares_of_optimizer
from lsdflow_training.step import AveragedWeights

LOG = logging.getLogger("lsdflow.training")


@dataclass(frozen=True)
class TrainingState:
    """Optimizer state, torch's random state, minutes trained so far; the hash of bundle.json.

    scaler: state of the loss scaling of fp16. weights: those of the last step, if the bundle has their average.
    Both are otherwise empty.
    """

    optimizer: dict[str, Any]
    torch_rng: Tensor
    minutes: float
    description_sha256: str = ""
    scaler: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)


def state_to_bytes(state: TrainingState) -> bytes:
    """Content of resume.pt: only tensors and plain values, so that it can be read with weights_only."""
    buffer = io.BytesIO()
    torch.save(vars(state), buffer)
    return buffer.getvalue()


def read_state(path: Path) -> TrainingState:
    """Read resume.pt (weights_only: no code in it is executed). Raises BadData if it is absent or damaged."""
    try:
        file = io.BytesIO(path.read_bytes())
        damaged = zipfile.ZipFile(file).testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"{damaged} does not have its checksum")
        file.seek(0)
        return TrainingState(**torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:  # torch.load fails with many types on damaged files
        raise BadData("the training state is missing or damaged", where=path, found=error) from error


def choose_best(folder: Path, training_key: str) -> BestCheckpoint:
    """Write best.json: the checkpoint with the lowest validation loss, or the newest if none was validated.

    A choice by VOI is kept. Raises MissingInput (66) if this training has no undamaged checkpoint.
    """
    return _choose(folder, _readable(folder / "checkpoints", training_key))


def _choose(folder: Path, bundles: list[Bundle]) -> BestCheckpoint:
    checkpoints = folder / "checkpoints"
    chosen = next((b for b in sorted(bundles, key=_rank) if _has_its_weights(checkpoints, b)), None)
    if chosen is None:
        raise MissingInput("training has left no checkpoint", where=checkpoints)
    best = BestCheckpoint(
        iteration=chosen.iteration, weights_sha256=chosen.weights_sha256, validation_loss=chosen.validation_loss
    )
    # Read after hashing the weights, during which select-checkpoint may write best.json.
    by_voi = _chosen_by_voi(folder, bundles)
    if by_voi is not None:
        return by_voi
    write_best(folder / "best.json", best)
    return best


def _chosen_by_voi(folder: Path, bundles: list[Bundle]) -> BestCheckpoint | None:
    """The choice by VOI, if there is one and its checkpoint is undamaged and of this training."""
    try:
        best = read_best(folder / "best.json")
    except MissingInput:
        return None
    except BadData as error:
        LOG.warning("best.json cannot be used, chosen by loss again: %s", error.what)
        return None
    if best.chosen_by != "voi":
        return None
    own = [b for b in bundles if (b.iteration, b.weights_sha256) == (best.iteration, best.weights_sha256)]
    if not own or not _has_its_weights(folder / "checkpoints", own[0]):
        LOG.warning(
            "the checkpoint that was chosen by VOI (iteration %d) is gone: chosen by loss again", best.iteration
        )
        return None
    if max(b.iteration for b in bundles) > best.iteration:
        LOG.info("best.json stays at iteration %d, chosen by VOI (lsdflow select-checkpoint)", best.iteration)
    return best


def _readable(checkpoints: Path, training_key: str) -> list[Bundle]:
    bundles = []
    for iteration in bundle_iterations(checkpoints):
        try:
            bundles.append(read_bundle(bundle_folder(checkpoints, iteration)))
        except (BadData, ContractMismatch) as error:
            LOG.warning("checkpoint %s is left out of the choice of the best: %s", error.where, error.what)
    return [bundle for bundle in bundles if bundle.training_key == training_key]


def _has_its_weights(checkpoints: Path, bundle: Bundle) -> bool:
    weights = bundle_folder(checkpoints, bundle.iteration) / WEIGHTS
    if weights.exists() and hash_of_file(weights) == bundle.weights_sha256:
        return True
    LOG.warning("checkpoint %s is left out of the choice of the best: its weights are damaged", weights)
    return False


def _rank(bundle: Bundle) -> tuple[float, int]:
    loss = bundle.validation_loss
    return (float("inf") if loss is None else loss, -bundle.iteration)


@dataclass(frozen=True)
class Resumed:
    """A checkpoint that was read back."""

    bundle: Bundle
    weights: dict[str, Tensor]
    state: TrainingState


def save_checkpoint(checkpoints: Path, bundle: Bundle, weights: Mapping[str, Tensor], state: TrainingState) -> Bundle:
    """Write the bundle of an iteration with its resume.pt; returns the bundle with the sha256 of its weights."""
    sha256 = hash_of_description(json.loads(bundle.model_dump_json()))
    files = {
        RESUME: state_to_bytes(replace(state, description_sha256=sha256)),
        DESCRIPTION_HASH: f"{sha256}\n".encode(),
    }
    return save_bundle(checkpoints, bundle, weights, files)


def read_checkpoint(checkpoints: Path, iteration: int) -> Resumed:
    """The checkpoint of an iteration. Raises BadData or MissingInput if it is damaged or absent."""
    folder = bundle_folder(checkpoints, iteration)
    state = read_state(folder / RESUME)
    description = read_json(folder / BUNDLE_JSON)
    if state.description_sha256 != hash_of_description(description):
        raise BadData("the description of the checkpoint is damaged or was changed", where=folder / BUNDLE_JSON)
    bundle, weights = load_bundle(folder)
    if bundle.iteration != iteration:
        raise BadData("the checkpoint is of another iteration", where=folder / BUNDLE_JSON, found=bundle.iteration)
    return Resumed(bundle, weights, state)


def newest_valid(checkpoints: Path, training_key: str) -> Resumed | None:
    """The newest checkpoint that can be read; damaged ones are skipped with a warning. None if there are none.

    Raises OutputConflict if it was trained with other parameters or volumes, BadData if all are damaged.
    """
    damaged: list[str] = []
    for iteration in reversed(_iterations(checkpoints)):
        try:
            resumed = read_checkpoint(checkpoints, iteration)
        except (BadData, MissingInput) as error:
            LOG.warning("checkpoint %s cannot be used, going back to an older one: %s", error.where, error.what)
            damaged.append(f"{error.where}: {error.what}")
            continue
        if resumed.bundle.training_key != training_key:
            raise OutputConflict(
                "the checkpoints here were trained with other parameters or volumes",
                where=bundle_folder(checkpoints, iteration),
                wanted=f"training key {training_key[:12]}",
                found=f"training key {resumed.bundle.training_key[:12]}",
                fix=f"move {checkpoints.parent} away: each training has a folder of its own",
            )
        return resumed
    if damaged:
        raise BadData(
            "all checkpoints are damaged",
            where=checkpoints,
            found="; ".join(damaged),
            fix=f"put a copy of one of them back, or delete {checkpoints.parent} to train from the start",
        )
    return None


def keep_best(folder: Path, training_key: str, keep: int, best_too: int) -> BestCheckpoint:
    """Write best.json, and delete all checkpoints but the best, the newest `keep` (keep = 0 keeps all), and the
    `best_too` of the lowest validation loss."""
    bundles = _readable(folder / "checkpoints", training_key)
    best = _choose(folder, bundles)
    lowest = sorted((bundle for bundle in bundles if bundle.validation_loss is not None), key=_rank)[:best_too]
    remove_old(folder / "checkpoints", keep, {best.iteration, *(bundle.iteration for bundle in lowest)})
    return best


def remove_old(checkpoints: Path, keep: int, protected: set[int]) -> None:
    """Delete all but the newest `keep` checkpoints; `protected` iterations (the best) stay. keep = 0 keeps all."""
    if keep <= 0:
        return
    for iteration in _iterations(checkpoints)[:-keep]:
        if iteration not in protected:
            folder = bundle_folder(checkpoints, iteration)
            # renamed first, so that an interruption leaves the checkpoint complete or absent
            leaving = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
            with storage_errors(folder):
                folder.rename(leaving)
            shutil.rmtree(leaving, ignore_errors=True)


def remove_partial(folder: Path) -> None:
    """Delete the remains of interrupted writes in a training's folder, its checkpoints and its snapshots."""
    for leftover in [*folder.glob(f".*{TEMPORARY_SUFFIX}"), *folder.glob(f"*/.*{TEMPORARY_SUFFIX}")]:
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def restore(
    resumed: Resumed, network: nn.Module, optimizer: torch.optim.Optimizer, average: AveragedWeights | None = None
) -> None:
    """Restore weights (and their average), optimizer and random state. Raises BadData if they do not match."""
    try:
        network.load_state_dict(shares_of(resumed.weights, network))
        if average is not None:
            average.begin()
            network.load_state_dict(shares_of(resumed.state.weights, network))
        optimizer.load_state_dict(shares_of_optimizer(resumed.state.optimizer, optimizer))
        torch.set_rng_state(resumed.state.torch_rng)
    except (RuntimeError, ValueError, LookupError) as error:
        raise BadData("the checkpoint does not fit the network", found=error) from error


def _iterations(checkpoints: Path) -> list[int]:
    """Iterations that have a folder, ascending; also if its bundle.json is missing."""
    if not checkpoints.is_dir():
        return []
    return sorted(int(path.name) for path in checkpoints.iterdir() if path.name.isdigit())
