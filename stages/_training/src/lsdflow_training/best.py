"""best.json: which checkpoint the next stage uses. A damaged one is never chosen."""

from __future__ import annotations

import logging
from pathlib import Path

from lsdflow_contract.checkpoint import (
    WEIGHTS,
    BestCheckpoint,
    Bundle,
    bundle_folder,
    bundle_iterations,
    read_bundle,
    write_best,
)
from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput
from lsdflow_contract.hashing import hash_of_file

LOG = logging.getLogger("lsdflow.training")


def choose_best(folder: Path, training_key: str) -> BestCheckpoint:
    """Write best.json: the checkpoint with the lowest validation loss; the newest where none was validated."""
    checkpoints = folder / "checkpoints"
    bundles = [b for b in _readable(checkpoints) if b.training_key == training_key]
    chosen = next((b for b in sorted(bundles, key=_rank) if _has_its_weights(checkpoints, b)), None)
    if chosen is None:
        raise MissingInput("training has left no checkpoint", where=checkpoints)
    best = BestCheckpoint(
        iteration=chosen.iteration, weights_sha256=chosen.weights_sha256, validation_loss=chosen.validation_loss
    )
    write_best(folder / "best.json", best)
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
