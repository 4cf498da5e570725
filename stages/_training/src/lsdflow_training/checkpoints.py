"""Checkpoints of a training: write bundles, resume from the newest valid one, and keep a limited number.

A checkpoint is valid if its weights match the sha256 in bundle.json, resume.pt matches its checksums and the hash of
the rest of bundle.json that it stores, and the name of the folder is its iteration.
"""

from __future__ import annotations

import json
import logging
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from lsdflow_contract.checkpoint import (
    BUNDLE_JSON,
    DESCRIPTION_HASH,
    RESUME,
    BestCheckpoint,
    Bundle,
    bundle_folder,
    hash_of_description,
)
from lsdflow_contract.errors import BadData, MissingInput, OutputConflict
from lsdflow_contract.files import TEMPORARY_SUFFIX, read_json, storage_errors
from lsdflow_network.bundle import load_bundle, save_bundle
from lsdflow_training.averaged_weights import AveragedWeights
from lsdflow_training.best import choose_best
from lsdflow_training.processes.sharding import share_optimizer, shares_of
from lsdflow_training.training_state import TrainingState, read_state, state_to_bytes

LOG = logging.getLogger("lsdflow.training")


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
    if state.description_sha256 and state.description_sha256 != hash_of_description(description):
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


def keep_best(folder: Path, training_key: str, keep: int) -> BestCheckpoint:
    """Write best.json, and delete all checkpoints but the best and the newest `keep` (keep = 0 keeps all)."""
    best = choose_best(folder, training_key)
    remove_old(folder / "checkpoints", keep, {best.iteration})
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
        optimizer.load_state_dict(resumed.state.optimizer)
        share_optimizer(optimizer)
        torch.set_rng_state(resumed.state.torch_rng)
    except (RuntimeError, ValueError, KeyError) as error:
        raise BadData("the checkpoint does not fit the network", found=error) from error


def _iterations(checkpoints: Path) -> list[int]:
    """Iterations that have a folder, ascending; also if its bundle.json is missing."""
    if not checkpoints.is_dir():
        return []
    return sorted(int(path.name) for path in checkpoints.iterdir() if path.name.isdigit())
