"""Verbs of train-acrlsd: the affinity network of the experiment's mode.

acrlsd   raw + LSDs of a frozen LSD network -> affinities
mtlsd    raw -> LSDs and affinities
affinities   raw -> affinities (baseline)
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsdflow_command.app import RunOptions
from lsdflow_contract.checkpoint import Bundle, read_bundle
from lsdflow_contract.errors import StageError, UsageError, problems_of
from lsdflow_contract.experiment import Experiment
from lsdflow_train_acrlsd.agreement import check_lsd_bundle
from lsdflow_train_acrlsd.config import TrainAcrlsdConfig
from lsdflow_training.checks import before_prepare, known_volumes, planned_lsd, recipe_to_check, training_problems
from lsdflow_training.data.sampling import common_voxel_size
from lsdflow_training.foreign.imported import imported
from lsdflow_training.measured import measure_training
from lsdflow_training.prepared import Prepared
from lsdflow_training.stage import (
    lsd_bundle_folder,
    prepare_training,
    require_ours,
    run_training,
    training_plan,
    training_status,
    verify_training,
)

if TYPE_CHECKING:
    from lsdflow_training.build import FrozenLsd

STAGE = "train-acrlsd"
LOG = logging.getLogger("lsdflow.training")


def run(experiment: Experiment, options: RunOptions) -> None:
    """Train the affinity network; if it was imported, say so and do nothing."""
    reason = None if options.replace else imported(experiment, STAGE)
    if reason is not None:
        LOG.info("%s: nothing to do, %s", STAGE, reason)
        return
    prepared = _prepared(experiment)
    run_training(prepared, options.replace, _frozen_lsd(experiment))


def validate(experiment: Experiment) -> list[StageError]:
    """All problems that can be seen before training."""
    if imported(experiment, STAGE):
        return []
    try:
        lsd = _lsd_bundle(experiment)
    except StageError as error:
        return [*_problems_before_the_lsds(experiment), error]
    problems = training_problems(experiment, _config(experiment), STAGE, experiment.common.mode, lsd)
    if problems or before_prepare(experiment):
        return problems
    return problems_of([lambda: require_ours(_prepared(experiment))])


def _problems_before_the_lsds(experiment: Experiment) -> list[StageError]:
    """What the settings of both networks say while the LSD network is not trained."""
    config, planned = _config(experiment), planned_lsd(experiment)
    problems = training_problems(experiment, config, STAGE, "acrlsd" if planned else "affinities", planned)
    if planned is None or problems:
        return problems
    size_nm = common_voxel_size(known_volumes(experiment, config)[0])
    recipe = recipe_to_check(experiment, config, STAGE, "acrlsd", size_nm, planned)
    try:
        check_lsd_bundle(planned, recipe.targets)
    except StageError as error:
        error.where = f"{experiment.path}: train-lsd and train-acrlsd, sigma or volumes"
        return [error]
    return []


def plan(experiment: Experiment) -> dict[str, Any]:
    """What a run would do."""
    reason = imported(experiment, STAGE)
    if reason is not None:
        return {"nothing_to_do": reason}
    return training_plan(_prepared(experiment))


def measure(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """What some steps take; done into a throw-away folder."""
    reason = imported(experiment, STAGE)
    if reason is not None:
        raise UsageError(f"{STAGE} has nothing to do: {reason}")
    return measure_training(_prepared(experiment), folder, _frozen_lsd(experiment))


def doctor(_experiment: Experiment | None) -> dict[str, Any]:
    """What this command finds on this machine: torch and its GPUs."""
    from lsdflow_network.torch_build import torch_facts

    return torch_facts()


def status(experiment: Experiment) -> dict[str, Any]:
    """What is trained so far."""
    return training_status(experiment, STAGE)


def verify(experiment: Experiment) -> dict[str, Any]:
    """Load the best bundle of the finished training and check its weights."""
    return verify_training(experiment, STAGE)


def _prepared(experiment: Experiment) -> Prepared:
    lsd = _lsd_bundle(experiment)
    prepared = prepare_training(experiment, _config(experiment), STAGE, experiment.common.mode, lsd)
    if lsd is not None:
        check_lsd_bundle(lsd, prepared.recipe.targets)
    return prepared


def _config(experiment: Experiment) -> TrainAcrlsdConfig:
    return experiment.table(STAGE, TrainAcrlsdConfig)


def _lsd_bundle(experiment: Experiment) -> Bundle | None:
    if experiment.common.mode != "acrlsd":
        return None
    return read_bundle(lsd_bundle_folder(experiment, _config(experiment).lsd_checkpoint))


def _frozen_lsd(experiment: Experiment) -> FrozenLsd | None:
    if experiment.common.mode != "acrlsd":
        return None
    from lsdflow_network.inference import load_network
    from lsdflow_training.build import FrozenLsd  # torch takes seconds to load

    folder = lsd_bundle_folder(experiment, _config(experiment).lsd_checkpoint)
    return FrozenLsd(*load_network(folder, expect_kind="lsd"))
