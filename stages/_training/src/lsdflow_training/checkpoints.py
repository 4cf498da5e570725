"""Checkpoints of a training: one bundle every so often, the newest valid one to resume from, a limited number kept."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from lsdflow_contract.checkpoint import RESUME, Bundle, bundle_folder, bundle_iterations
from lsdflow_contract.errors import BadData, MissingInput, NotOurs
from lsdflow_contract.files import TEMPORARY_SUFFIX
from lsdflow_network.bundle import load_bundle, save_bundle
from lsdflow_training.training_state import TrainingState, read_state, state_to_bytes

LOG = logging.getLogger("lsdflow.training")


@dataclass(frozen=True)
class Resumed:
    """A checkpoint that was read back."""

    bundle: Bundle
    weights: dict[str, Tensor]
    state: TrainingState


def save_checkpoint(checkpoints: Path, bundle: Bundle, network: nn.Module, state: TrainingState) -> Bundle:
    """Write the bundle of an iteration with its resume.pt; returns it with the sha256 of its weights."""
    return save_bundle(checkpoints, bundle, network.state_dict(), {RESUME: state_to_bytes(state)})


def newest_valid(checkpoints: Path, training_key: str) -> Resumed | None:
    """The newest checkpoint that can be read; damaged ones are skipped with a warning. None: start anew.

    Raises NotOurs if the newest was trained with other parameters or volumes, BadData if all are damaged.
    """
    iterations = bundle_iterations(checkpoints)
    for iteration in reversed(iterations):
        folder = bundle_folder(checkpoints, iteration)
        try:
            bundle, weights = load_bundle(folder)
            state = read_state(folder / RESUME)
        except (BadData, MissingInput) as error:
            LOG.warning("checkpoint %s cannot be used, going back to an older one: %s", folder, error.what)
            continue
        if bundle.training_key != training_key:
            raise NotOurs(
                "the checkpoints here were trained with other parameters or volumes",
                where=folder,
                wanted=f"training key {training_key[:12]}",
                found=f"training key {bundle.training_key[:12]}",
                hint="run with --replace to train anew, or restore the earlier settings",
            )
        return Resumed(bundle, weights, state)
    if iterations:
        raise BadData("all checkpoints are damaged", where=checkpoints, hint="run with --replace to train anew")
    return None


def remove_old(checkpoints: Path, keep: int, protected: set[int]) -> None:
    """Delete all but the newest `keep` checkpoints; `protected` iterations (the best) stay. keep = 0 keeps all."""
    if keep <= 0:
        return
    for iteration in bundle_iterations(checkpoints)[:-keep]:
        if iteration not in protected:
            shutil.rmtree(bundle_folder(checkpoints, iteration), ignore_errors=True)


def remove_partial(checkpoints: Path) -> None:
    """Delete what an interrupted write left behind."""
    for leftover in checkpoints.glob(f".*{TEMPORARY_SUFFIX}"):
        shutil.rmtree(leftover, ignore_errors=True)


def restore(resumed: Resumed, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Put weights, optimizer and random state back. BadData if they do not fit the network."""
    try:
        network.load_state_dict(resumed.weights)
        optimizer.load_state_dict(resumed.state.optimizer)
        torch.set_rng_state(resumed.state.torch_rng)
    except (RuntimeError, ValueError, KeyError) as error:
        raise BadData("the checkpoint does not fit the network", found=error) from error
