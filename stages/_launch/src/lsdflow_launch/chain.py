"""The chain of stages: which ones a mode needs, in which order, and what happens when one fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from lsdflow_contract.errors import Interrupted, MissingInput, StageError, UsageError
from lsdflow_contract.experiment import STAGES, Experiment, did_you_mean, stages_of_mode
from lsdflow_launch.commands import PASSED_ON, Call, run_stage

LOG = logging.getLogger("lsdflow.run")
FIRST, LAST = "prepare", "evaluate"
# Stages that compute block by block, with workers.
BLOCK_STAGES = ("predict", "watershed", "agglomerate", "segment", "evaluate")
# No report is written after a run that was stopped: the user would have to wait for it.
STOPPED = (Interrupted.exit_code, *(128 + number for number in PASSED_ON))


@dataclass(frozen=True)
class Chain:
    """Stages to run for an experiment, in order."""

    experiment: Experiment
    stages: tuple[str, ...]
    caller: Call = run_stage
    verb: str = "run"

    def run(self) -> int:
        """Run the stages; return the exit code of the first that fails, else 0."""
        return self.first_failure()[1]

    def first_failure(self) -> tuple[str, int]:
        """Run the stages one after another; return the first that fails and its exit code, after writing a report.

        Returns ("", 0) if none fails. A repair continues if that of prepare fails: its sources may be gone, and later
        stages do not need them.
        """
        failed = ("", 0)
        for stage in self.stages:
            code = self._call(stage)
            if code == 0:
                continue
            LOG.error("%s ended with exit code %d", stage, code)
            if stage != LAST and code not in STOPPED and self.verb == "run":
                self._report()
            failed = failed if failed[1] else (stage, code)
            if not (self.verb == "repair" and stage == FIRST and code not in STOPPED):
                break
        return failed

    def _call(self, stage: str) -> int:
        arguments = [self.verb, "--experiment", str(self.experiment.path)]
        for override in self.experiment.overrides:
            arguments += ["--set", override]
        return self.caller(stage, arguments)

    def _report(self) -> None:
        """Write a report of the present results; the exit code remains that of the stage that failed."""
        try:
            if self.caller(LAST, report_arguments(self.experiment)) == UsageError.exit_code:
                self._call(LAST)  # an older image without `report`
        except StageError as error:
            LOG.error("no report: %s", error.message())


def stages_of(experiment: Experiment, first: str = STAGES[0], last: str = LAST) -> tuple[str, ...]:
    """Return the stages from `first` to `last` that the experiment needs; a training that is named is one of them.

    A training is not needed if the mode has no such network, or if [predict] names the folder of a network that was
    trained elsewhere. Raises UsageError (2) for an unknown stage, or the wrong order.
    """
    for name in (first, last):
        if name not in STAGES:
            raise UsageError(f"no stage {name!r}", wanted=", ".join(STAGES), fix=did_you_mean(name, STAGES))
    begin, end = STAGES.index(first), STAGES.index(last)
    if begin > end:
        raise UsageError(f"{first} comes after {last}", wanted=" -> ".join(STAGES))
    # A training that is named is run although its network is given.
    wanted = {*experiment.stages, first, last} & {*stages_of_mode(experiment.common.mode)}
    return tuple(stage for stage in STAGES[begin : end + 1] if stage in wanted)


def finished_repairable_stages(experiment: Experiment) -> tuple[str, ...]:
    """Return the finished stages that have a repair, in order. MissingInput (66) if there is none."""
    repairable = (FIRST, *BLOCK_STAGES)
    found = tuple(s for s in stages_of(experiment) if s in repairable and experiment.layout.manifest(s).exists())
    if not found:
        raise MissingInput(
            "no finished stage can be repaired",
            where=experiment.layout.root,
            wanted=", ".join(repairable),
            fix="lsdflow run resumes the stages that are not finished",
        )
    return found


def stage_arguments(verb: str, experiment: Experiment) -> Sequence[str]:
    """Return the arguments of a stage command that reports on this experiment as JSON."""
    overrides = [part for override in experiment.overrides for part in ("--set", override)]
    return [verb, "--experiment", str(experiment.path), "--json", *overrides]


def report_arguments(experiment: Experiment, refresh_s: float | None = None) -> list[str]:
    """Return the arguments of evaluate that write the report of an experiment."""
    overrides = [word for override in experiment.overrides for word in ("--set", override)]
    refresh = ["--refresh", str(max(1, round(refresh_s)))] if refresh_s else []
    return ["report", "--experiment", str(experiment.path), *overrides, *refresh]
