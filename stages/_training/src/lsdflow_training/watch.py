"""Check each validation loss: is it plausible, should the training stop?  The first process decides for all."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from lsdflow_contract.errors import BadData
from lsdflow_training.curves import read_curves
from lsdflow_training.loss_bands import constant_answer_loss, doubt
from lsdflow_training.patch import Patch
from lsdflow_training.processes.group import Group
from lsdflow_training.steering import Steering
from lsdflow_training.stop_rules import VERDICTS, Verdict, verdict

LOG = logging.getLogger("lsdflow.training")


class Watch:
    """verdict: whether the training should continue, judged from its curves in `folder`."""

    def __init__(self, folder: Path, rules: Steering, group: Group) -> None:
        self._folder, self._rules, self._group = folder, rules, group
        self._constant = float("inf")
        self.verdict: Verdict = "go on"

    def begin(self, patches: Sequence[Patch]) -> None:
        """Prepare with the validation patches; all processes together. BadData if early stopping has no patches."""
        self._constant = constant_answer_loss(patches)
        if self._rules.patience is not None and not any(row[0] for row in self._group.gather([len(patches)])):
            raise BadData(
                "`validation_fraction` selects no labelled voxels, so early stopping cannot be used",
                where="the end in z of the training volumes",
                wanted="voxels there that the mask trains",
                fix="raise validation_fraction, correct the mask, or leave patience_iterations out",
            )

    def look(self, iteration: int, validation_loss: float) -> None:
        """Check a new validation loss, which must already be in the curves."""
        reason = doubt(validation_loss, self._constant, iteration)
        if reason and self._group.writes:
            LOG.warning(reason)
        self.judge(iteration)

    def judge(self, iteration: int) -> None:
        """Update the verdict from the curves up to an iteration; all processes together."""
        if self._rules.patience is None:
            return
        found = 0
        if self._group.writes:
            validations, losses = read_curves(self._folder, iteration)
            found = VERDICTS.index(verdict(validations, losses, self._rules))
        self.verdict = VERDICTS[int(self._group.of_first(found))]
        if self.verdict != "go on":
            LOG.info("%s: the validation loss was no better for %d iterations", self.verdict, self._rules.patience)
