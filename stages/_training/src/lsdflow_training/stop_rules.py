r"""Early stopping: the validation loss has stopped falling, or rises while the training loss falls.

        | best before               | no better for `patience` iterations
loss    |  \__                      |
        |     \___  .best           |   validation rises, training falls -> "overfit"
        |          \________________|___validation stays               -> "plateau"
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Literal, get_args

from lsdflow_training.steering import Steering

Verdict = Literal["go on", "plateau", "overfit"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


def verdict(validations: Mapping[int, float], losses: Mapping[int, float], rules: Steering) -> Verdict:
    """Whether a training should end, judged from its curves so far (iteration -> loss).

    "plateau" or "overfit" once no validation loss of the last `patience` iterations was below (1 - min_improvement)
    times the best one before them. "overfit" if also their mean is above (1 + min_improvement) times that best one,
    and the mean training loss of these iterations is below that of as many iterations before.
    """
    if rules.patience is None or not validations:
        return "go on"
    since = max(validations) - rules.patience
    before = [loss for iteration, loss in validations.items() if iteration <= since]
    recent = [loss for iteration, loss in validations.items() if iteration > since]
    if not before or min(recent) < min(before) * (1 - rules.min_improvement):
        return "go on"
    if fmean(recent) > min(before) * (1 + rules.min_improvement) and _falls(losses, since, rules.patience):
        return "overfit"
    return "plateau"


def _falls(losses: Mapping[int, float], since: int, patience: int) -> bool:
    recent = [loss for iteration, loss in losses.items() if iteration > since]
    before = [loss for iteration, loss in losses.items() if since - patience < iteration <= since]
    return bool(recent and before) and fmean(recent) < fmean(before)
