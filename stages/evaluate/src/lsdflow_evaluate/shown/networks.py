"""The networks that a prediction was made with, from the checkpoints of the experiment; nothing here has to exist."""

from __future__ import annotations

from pathlib import Path

from lsdflow_contract.checkpoint import Bundle, bundle_folder, bundle_iterations, read_bundle
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import Manifest


def networks_of(experiment: Experiment, predict: Manifest | None) -> tuple[Bundle, ...]:
    """Bundles in the order in which they are applied: LSDs first. None of a checkpoint from elsewhere, or gone.

    Raises StageError for a bundle that cannot be read.
    """
    if predict is None:
        return ()
    affinities = _affinities(experiment, predict)
    if affinities is None or affinities.lsd_bundle_sha256 is None:
        return () if affinities is None else (affinities,)
    lsds = _with_weights(experiment.layout.checkpoints("train-lsd"), affinities.lsd_bundle_sha256)
    chosen = predict.config.get("lsd_checkpoint", "trained_with")
    return (lsds, affinities) if lsds and chosen == "trained_with" else (affinities,)


def _affinities(experiment: Experiment, predict: Manifest) -> Bundle | None:
    """The checkpoint of the iteration that was predicted with; none if it was named by a path."""
    chosen, iteration = predict.config.get("checkpoint"), predict.config.get("resolved", {}).get("iteration")
    if iteration is None or not (chosen == "best" or isinstance(chosen, int)):
        return None
    folder = bundle_folder(experiment.layout.checkpoints("train-acrlsd"), iteration)
    return read_bundle(folder) if folder.is_dir() else None


def _with_weights(checkpoints: Path, sha256: str) -> Bundle | None:
    bundles = (read_bundle(bundle_folder(checkpoints, iteration)) for iteration in bundle_iterations(checkpoints))
    return next((bundle for bundle in bundles if bundle.weights_sha256 == sha256), None)
