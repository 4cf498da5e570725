"""Verbs of train-lsd. The LSD network is needed by mode acrlsd alone; the other modes train one network only."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from lsdflow_command.app import RunOptions
from lsdflow_contract.errors import StageError, UsageError, problems_of
from lsdflow_contract.experiment import Experiment
from lsdflow_train_lsd.config import TrainLsdConfig
from lsdflow_training.checks import before_prepare, training_problems
from lsdflow_training.foreign.imported import imported
from lsdflow_training.measured import measure_training
from lsdflow_training.stage import (
    prepare_training,
    require_ours,
    run_training,
    training_plan,
    training_status,
    verify_training,
)

STAGE = "train-lsd"
LOG = logging.getLogger("lsdflow.training")


def run(experiment: Experiment, options: RunOptions) -> None:
    """Train the LSD network; in modes without one, or if it was imported, say so and do nothing."""
    reason = _not_needed(experiment) or (None if options.replace else imported(experiment, STAGE))
    if reason is not None:
        LOG.info("%s: nothing to do, %s", STAGE, reason)
        return
    run_training(prepare_training(experiment, _config(experiment), STAGE, "lsd"), options.replace)


def validate(experiment: Experiment) -> list[StageError]:
    """All problems that can be seen before training."""
    if _not_needed(experiment) or imported(experiment, STAGE):
        return []
    problems = training_problems(experiment, _config(experiment), STAGE, "lsd")
    if problems or before_prepare(experiment):
        return problems
    return problems_of([lambda: require_ours(prepare_training(experiment, _config(experiment), STAGE, "lsd"))])


def plan(experiment: Experiment) -> dict[str, Any]:
    """What a run would do."""
    reason = _not_needed(experiment) or imported(experiment, STAGE)
    if reason is not None:
        return {"nothing_to_do": reason}
    return training_plan(prepare_training(experiment, _config(experiment), STAGE, "lsd"))


def measure(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """What some steps take; done into a throw-away folder."""
    reason = _not_needed(experiment) or imported(experiment, STAGE)
    if reason is not None:
        raise UsageError(f"{STAGE} has nothing to do: {reason}")
    return measure_training(prepare_training(experiment, _config(experiment), STAGE, "lsd"), folder)


def status(experiment: Experiment) -> dict[str, Any]:
    """What is trained so far."""
    facts = training_status(experiment, STAGE)
    reason = _not_needed(experiment) or imported(experiment, STAGE)
    return facts if reason is None else {**facts, "nothing_to_do": reason}


def verify(experiment: Experiment) -> dict[str, Any]:
    """Load the best bundle of the finished training and check its weights."""
    reason = _not_needed(experiment)
    if reason is not None:
        return {"nothing_to_do": reason, "verified": True}
    return verify_training(experiment, STAGE)


def _config(experiment: Experiment) -> TrainLsdConfig:
    return experiment.table(STAGE, TrainLsdConfig)


def _not_needed(experiment: Experiment) -> str | None:
    """Why there is no LSD network in this experiment; None if there is one."""
    mode = experiment.common.mode
    return None if mode == "acrlsd" else f"mode {mode} has no separate LSD network: train-acrlsd trains its one network"
