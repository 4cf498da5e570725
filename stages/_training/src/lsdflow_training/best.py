"""best.json: the checkpoint that the next stage uses. A damaged checkpoint is never chosen.

A training chooses by validation loss. A choice by VOI (`lsdflow check-checkpoints`) takes precedence as long as its
checkpoint exists, also when the training is resumed: newer checkpoints compete only once they have been checked too.
"""

from __future__ import annotations

import logging
from pathlib import Path

from lsdflow_contract.checkpoint import (
    WEIGHTS,
    BestCheckpoint,
    Bundle,
    bundle_folder,
    bundle_iterations,
    read_best,
    read_bundle,
    write_best,
)
from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput
from lsdflow_contract.hashing import hash_of_file

LOG = logging.getLogger("lsdflow.training")


def choose_best(folder: Path, training_key: str) -> BestCheckpoint:
    """Write best.json: the checkpoint with the lowest validation loss, or the newest if none was validated.

    A choice by VOI is kept. Raises MissingInput (66) if this training has no undamaged checkpoint.
    """
    checkpoints = folder / "checkpoints"
    bundles = [b for b in _readable(checkpoints) if b.training_key == training_key]
    chosen = next((b for b in sorted(bundles, key=_rank) if _has_its_weights(checkpoints, b)), None)
    if chosen is None:
        raise MissingInput("training has left no checkpoint", where=checkpoints)
    best = BestCheckpoint(
        iteration=chosen.iteration, weights_sha256=chosen.weights_sha256, validation_loss=chosen.validation_loss
    )
    # Read after hashing the weights, during which check-checkpoints may write best.json.
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
        LOG.info("best.json stays at iteration %d, chosen by VOI (lsdflow check-checkpoints)", best.iteration)
    return best


def _readable(checkpoints: Path) -> list[Bundle]:
    bundles = []
    for iteration in bundle_iterations(checkpoints):
        try:
            bundles.append(read_bundle(bundle_folder(checkpoints, iteration)))
        except (BadData, ContractMismatch) as error:
            LOG.warning("checkpoint %s is left out of the choice of the best: %s", error.where, error.what)
    return bundles


def _has_its_weights(checkpoints: Path, bundle: Bundle) -> bool:
    weights = bundle_folder(checkpoints, bundle.iteration) / WEIGHTS
    if weights.exists() and hash_of_file(weights) == bundle.weights_sha256:
        return True
    LOG.warning("checkpoint %s is left out of the choice of the best: its weights are damaged", weights)
    return False


def _rank(bundle: Bundle) -> tuple[float, int]:
    loss = bundle.validation_loss
    return (float("inf") if loss is None else loss, -bundle.iteration)
