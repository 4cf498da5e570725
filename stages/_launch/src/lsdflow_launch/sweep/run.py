"""Run the experiments of a sweep one after another: shared stages first, then their own stages.

A run that another process computes is skipped. A run whose shared stages another process computes is postponed until
they are finished. An interrupted run resumes where its stages stopped.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from lsdflow_command.experiment_lock import experiment_lock
from lsdflow_contract.errors import BlocksFailed, Interrupted, OutputConflict, UsageError
from lsdflow_contract.experiment import STAGES, Experiment, did_you_mean, load_experiment
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_launch.chain import LAST, STOPPED, Chain
from lsdflow_launch.commands import Call, run_stage
from lsdflow_launch.images.container import ContainerOptions, Containers, sif_folder
from lsdflow_launch.sweep.folder import SweepFolder, link_stages, open_stages
from lsdflow_launch.sweep.grid import Run
from lsdflow_launch.sweep.merge import row_of

LOG = logging.getLogger("lsdflow.sweep")
# The first stage that failed and its exit code; ("", 0): none.
Failure = tuple[str, int]
Outcome = Literal["done", "failed", "at work elsewhere", "waits"]
POLL_SECONDS = 5.0
BACKENDS = ("local", "container")


def caller_at(backend: str, sweep: SweepFolder, containers: ContainerOptions) -> Call:
    """Return the function that runs a stage, as a command or in its image. UsageError (2) for an unknown backend."""
    if backend not in BACKENDS:
        fix = did_you_mean(backend, BACKENDS)
        raise UsageError(f"unknown backend {backend!r}", wanted=", ".join(BACKENDS), fix=fix)
    if backend == "local":
        return run_stage
    # The base names the folder of SIFs relative to itself. Runs link to results in the base and in shared/.
    sifs = containers.sifs or sif_folder(load_experiment(sweep.base_file))
    writable = (sweep.root, sweep.base_file.parent)

    def call(stage: str, arguments: Sequence[str]) -> int:
        """Run a stage in its image; return its exit code."""
        experiment = load_experiment(Path(arguments[arguments.index("--experiment") + 1]))
        return Containers(experiment, containers.engine, sifs, containers.network, writable)(stage, arguments)

    return call


@dataclass
class SweepRunner:
    """Computes runs of a prepared sweep; `caller` runs a stage's command."""

    sweep: SweepFolder
    caller: Call
    wait: Callable[[float], None] = time.sleep
    _failed: dict[Path, Failure] = field(default_factory=dict)

    def run_all(self, runs: Sequence[Run]) -> dict[str, Outcome]:
        """Run all; return the outcome of each run by name. Raises Interrupted (75) when a stage was stopped."""
        outcomes: dict[str, Outcome] = {}
        waiting, idle = deque(runs), 0
        while waiting:
            run = waiting.popleft()
            outcomes[run.name] = self._run(run)
            idle = idle + 1 if outcomes[run.name] == "waits" else 0
            if outcomes[run.name] == "waits":
                waiting.append(run)
            if idle >= len(waiting) > 0:
                LOG.info("%d runs wait for stages that another process makes for them", len(waiting))
                self.wait(POLL_SECONDS)
                idle = 0
        return outcomes

    def _run(self, run: Run) -> Outcome:
        folder, row = self.sweep.run_folder(run), row_of(self.sweep, run)
        if row.status == "done":
            LOG.info("%s: done already", run.name)
            return "done"
        failure = self._shared(run)
        if failure is None:
            return "waits"
        try:
            with experiment_lock(ExperimentLayout(folder)):
                experiment = load_experiment(folder)
                stages = open_stages(experiment, run.nodes[-1])
                if not stages and row_of(self.sweep, run).status != "done":
                    stages = (LAST,)  # its scores are lost
                stage, code = failure if failure[1] else self._make(experiment, stages)
        except OutputConflict as error:
            LOG.warning("%s: skipped, at work elsewhere: %s", run.name, error.found)
            return "at work elsewhere"
        LOG.info("%s: %s", run.name, f"failed in {stage}" if code else "done")
        return "failed" if code else "done"

    def _shared(self, run: Run) -> Failure | None:
        """Run and link the shared stages of a run; return how they failed, None while another process computes one."""
        for node, after, earlier in run.links():
            folder = self.sweep.folder(node)
            experiment = load_experiment(folder)
            if folder not in self._failed and open_stages(experiment, node):
                try:
                    with experiment_lock(experiment.layout):
                        failure = self._make(experiment, open_stages(experiment, node))
                except OutputConflict:
                    return None
                if failure[1]:
                    self._failed[folder] = failure
            if folder in self._failed:
                return self._failed[folder]
            link_stages(earlier, folder, self.sweep.folder(after))
        return "", 0

    def _make(self, experiment: Experiment, stages: tuple[str, ...]) -> Failure:
        """Run these stages. Raises Interrupted (75) if one was stopped."""
        failure = Chain(experiment, stages, caller=self.caller).first_failure()
        if failure[1] in STOPPED:
            raise Interrupted("the sweep was stopped", where=experiment.path.parent, fix="run it again to resume")
        return failure


def prepare_volumes(sweep: SweepFolder, caller: Call) -> int:
    """Run the stage prepare once in each folder that needs it. Returns the exit code of the first that failed, else 0.

    Raises OutputConflict (73) if another process is computing the same folder.
    """
    nodes = {node.folder: node for run in sweep.plan.runs for node in run.nodes if STAGES[0] in node.stages}
    for node in nodes.values():
        experiment = load_experiment(sweep.folder(node))
        # An experiment with imported predictions may have no volumes.
        if STAGES[0] in experiment.tables or STAGES[0] in open_stages(experiment, node):
            with experiment_lock(experiment.layout):
                code = caller(STAGES[0], ["run", "--experiment", str(experiment.path)])
            if code:
                return code
    return 0


def exit_code_of(outcomes: Mapping[str, Outcome]) -> int:
    """Return 79 if a run failed, 73 if another process computes one, else 0."""
    if "failed" in outcomes.values():
        return BlocksFailed.exit_code
    return OutputConflict.exit_code if "at work elsewhere" in outcomes.values() else 0
