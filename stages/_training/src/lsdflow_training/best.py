"""best.json: which checkpoint the next stage uses."""

from __future__ import annotations

from pathlib import Path

from lsdflow_contract.checkpoint import (
    BestCheckpoint,
    Bundle,
    bundle_folder,
    bundle_iterations,
    read_bundle,
    write_best,
)
from lsdflow_contract.errors import BadData, MissingInput


def choose_best(folder: Path, training_key: str) -> BestCheckpoint:
    """Write best.json: the checkpoint with the lowest validation loss; the newest where none was validated."""
    checkpoints = folder / "checkpoints"
    bundles = [b for b in _readable(checkpoints) if b.training_key == training_key]
    if not bundles:
        raise MissingInput("training has left no checkpoint", where=checkpoints)
    chosen = min(bundles, key=_rank)
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
        except BadData:
            continue
    return bundles


def _rank(bundle: Bundle) -> tuple[float, int]:
    loss = bundle.validation_loss
    return (float("inf") if loss is None else loss, -bundle.iteration)
