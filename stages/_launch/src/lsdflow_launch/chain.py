"""The chain of stages: which ones a mode needs, in which order, and what happens when one fails."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lsdflow_contract.chain_link import ChainLink
from lsdflow_contract.errors import Interrupted, StageError, UsageError
from lsdflow_contract.experiment import STAGES, TRAININGS, Experiment, did_you_mean, stages_of_mode
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_launch.commands import PASSED_ON, Call, run_stage

LOG = logging.getLogger("lsdflow.run")
FIRST, LAST = "prepare", "evaluate"
# No report is written after a run that was stopped: the user would have to wait for it.
STOPPED = (Interrupted.exit_code, *(128 + number for number in PASSED_ON))


@dataclass(frozen=True)
class Chain:
    """Stages to run for an experiment, in order."""

    experiment: Experiment
    stages: tuple[str, ...]
    caller: Call = run_stage

    def run(self) -> int:
        """Run the stages; return the exit code of the first that fails, else 0."""
        return self.first_failure()[1]

    def first_failure(self) -> tuple[str, int]:
        """Run the stages one after another; return the first that fails and its exit code, after writing a report.

        Returns ("", 0) if none fails.
        """
        layout, results = self.experiment.layout, dict[str, str]()
        for stage in STAGES:
            results |= _identity(layout, stage)
        for stage in self.stages:
            # What another command makes current meanwhile is not read (see read_manifest).
            earlier = {name: results[name] for name in STAGES[: STAGES.index(stage)] if name in results}
            with replace(ChainLink.of_caller(layout.root), results=earlier).in_environment():
                code = self._call(stage)
            results |= _identity(layout, stage)
            if code:
                LOG.error("%s ended with exit code %d", stage, code)
                if stage != LAST and code not in STOPPED:
                    self._report()
                return stage, code
        return "", 0

    def _call(self, stage: str) -> int:
        arguments = ["run", "--experiment", str(self.experiment.path)]
        for override in self.experiment.overrides:
            arguments += ["--set", override]
        return self.caller(stage, arguments)

    def _report(self) -> None:
        """Write a report of the present results; the exit code remains that of the stage that failed."""
        try:
            self.caller(LAST, report_arguments(self.experiment))
        except StageError as error:
            LOG.error("no report: %s", error.message())


def _identity(layout: ExperimentLayout, stage: str) -> dict[str, str]:
    """Return the identity of the current result of a stage by its name; {} without a readable one."""
    try:
        return {stage: read_manifest(layout, stage).identity}
    except StageError:
        return {}


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


def first_stage(experiment: Experiment, first: str) -> str:
    """Return the stage to begin at: `first`, or an earlier one whose settings --set changes.

    Without this, the stages from `first` on would take a current result that was made with other settings. If it was
    made with these, its stage has nothing to do.
    """
    changed = {override.partition("=")[0].strip() for override in experiment.overrides}
    tables = {key.partition(".")[0] for key in changed}
    tables |= set(TRAININGS) if changed & {"experiment.mode", "experiment.profile", "experiment.seed"} else set()
    begin = next((stage for stage in stages_of(experiment, last=first) if stage in {*tables, first}), first)
    if begin != first:
        LOG.warning("beginning at %s instead of %s, because --set changes its settings", begin, first)
    return begin


def stage_arguments(verb: str, experiment: Experiment) -> Sequence[str]:
    """Return the arguments of a stage command that reports on this experiment as JSON."""
    overrides = [part for override in experiment.overrides for part in ("--set", override)]
    return [verb, "--experiment", str(experiment.path), "--json", *overrides]


def report_arguments(experiment: Experiment, refresh_s: float | None = None) -> list[str]:
    """Return the arguments of evaluate that write the report of an experiment."""
    overrides = [word for override in experiment.overrides for word in ("--set", override)]
    refresh = ["--refresh", str(max(1, round(refresh_s)))] if refresh_s else []
    return ["report", "--experiment", str(experiment.path), *overrides, *refresh]
