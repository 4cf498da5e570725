"""Verbs of train-lsd. The LSD network is needed by mode acrlsd alone; the other modes train one network only."""

from __future__ import annotations

import logging
from typing import Any

from lsdflow_command.app import RunOptions
from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_train_lsd.config import TrainLsdConfig
from lsdflow_training.stage import (
    prepare_training,
    run_training,
    training_plan,
    training_problems,
    training_status,
    verify_training,
)

STAGE = "train-lsd"
LOG = logging.getLogger("lsdflow.training")


def run(experiment: Experiment, options: RunOptions) -> None:
    """Train the LSD network; in modes without one, say so and do nothing."""
    if _not_needed(experiment):
        LOG.info("%s: nothing to do, %s", STAGE, _reason(experiment))
        return
    run_training(prepare_training(experiment, _config(experiment), STAGE, "lsd"), options.replace)


def validate(experiment: Experiment) -> list[StageError]:
    """All problems that can be seen before training."""
    return [] if _not_needed(experiment) else training_problems(experiment, _config(experiment), STAGE, "lsd")


def plan(experiment: Experiment) -> dict[str, Any]:
    """What a run would do."""
    if _not_needed(experiment):
        return {"nothing_to_do": _reason(experiment)}
    return training_plan(prepare_training(experiment, _config(experiment), STAGE, "lsd"))


def status(experiment: Experiment) -> dict[str, Any]:
    """What is trained so far."""
    facts = training_status(experiment, STAGE)
    return {**facts, "nothing_to_do": _reason(experiment)} if _not_needed(experiment) else facts


def verify(experiment: Experiment) -> dict[str, Any]:
    """Load the best bundle of the finished training and check its weights."""
    if _not_needed(experiment):
        return {"nothing_to_do": _reason(experiment), "verified": True}
    return verify_training(experiment, STAGE)


def _config(experiment: Experiment) -> TrainLsdConfig:
    return experiment.table(STAGE, TrainLsdConfig)


def _not_needed(experiment: Experiment) -> bool:
    return experiment.common.mode != "acrlsd"


def _reason(experiment: Experiment) -> str:
    return f"mode {experiment.common.mode} has no separate LSD network: train-acrlsd trains its one network"
