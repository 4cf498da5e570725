"""Was the network of a training stage imported from another program? Then there is nothing to train."""

from __future__ import annotations

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import read_manifest

# Among the inputs of the manifest: sha256 of the checkpoint's files.
IMPORTED_CHECKPOINT = "imported_checkpoint"


def imported(experiment: Experiment, stage: str) -> str | None:
    """What the results of a stage were imported from, in words; None if it was trained here, or not at all.

    Without train/<stage>, which links to it, an imported network is not used: a user removes the link to train one.
    """
    try:
        manifest = read_manifest(experiment.layout, stage)
    except MissingInput:
        return None
    if IMPORTED_CHECKPOINT not in manifest.inputs or not experiment.layout.train_dir(stage).exists():
        return None
    return f"the network of iteration {manifest.facts.get('iteration')} was imported from {manifest.facts.get('from')}"
