"""The choice of a checkpoint that `lsdflow run` makes before predict, if the training has held sections out."""

from __future__ import annotations

import logging

from lsdflow_contract.checkpoint import read_best
from lsdflow_contract.errors import Interrupted, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import read_manifest
from lsdflow_launch.checkpoint_selection.region import STAGE, find_region
from lsdflow_launch.checkpoint_selection.selection import Selection
from lsdflow_launch.commands import Ask, Call

LOG = logging.getLogger("lsdflow.selection")


def select_before_predict(experiment: Experiment, caller: Call, ask: Ask) -> int:
    """Choose by VOI among the checkpoints of a training that held sections out, unless that was done before.

    Returns 75 if it was interrupted, else 0: if it fails, predict uses the checkpoint that the training chose.
    """
    if not may_select(experiment):
        return 0
    LOG.info("select-checkpoint: segmenting the held-out sections with each checkpoint that was kept")
    try:
        code = Selection(experiment, find_region(experiment, None, ask), caller=caller).update()
        why = f"exit code {code}" if code else ""
    except Interrupted as error:
        LOG.error("%s", error.message())
        return error.exit_code
    except StageError as error:
        why = error.message()
    if why:
        LOG.warning("no checkpoint and threshold were chosen on held-out sections, those of the training stay: %s", why)
    return 0


def may_select(experiment: Experiment, *, after_training: bool = False) -> bool:
    """True if predict reads best.json, which is not chosen by VOI, and the training has held sections out.

    after_training: the training is still to run, and holds out what its table says, if anything.
    """
    layout, predict = experiment.layout, experiment.tables.get("predict", {})
    if STAGE not in experiment.stages or predict.get("checkpoint", "best") != "best":
        return False
    if after_training:
        return bool(experiment.tables.get(STAGE, {}).get("validation_fraction") != 0)
    try:
        held_out = bool(read_manifest(layout, STAGE).facts.get("validation_fraction"))
        return held_out and read_best(layout.best_checkpoint(STAGE)).chosen_by != "voi"
    except StageError:  # reported by predict
        return False
