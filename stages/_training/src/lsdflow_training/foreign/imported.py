"""Find out whether the network of a training stage was imported. Then there is nothing to train."""

from __future__ import annotations

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import read_manifest

# Key in the inputs of the manifest: sha256 of the checkpoint's files.
IMPORTED_CHECKPOINT = "imported_checkpoint"


def imported(experiment: Experiment, stage: str) -> str | None:
    """A text that says what the network of a stage was imported from; None if it was not imported.

    An imported network is not used without the link train/<stage>: a user removes the link to train a network.
    """
    try:
        manifest = read_manifest(experiment.layout, stage)
    except MissingInput:
        return None
    if IMPORTED_CHECKPOINT not in manifest.inputs or not experiment.layout.train_dir(stage).exists():
        return None
    return f"the network of iteration {manifest.facts.get('iteration')} was imported from {manifest.facts.get('from')}"
