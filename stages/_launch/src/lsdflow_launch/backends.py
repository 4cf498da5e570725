"""Where `lsdflow run` runs the stages: locally as commands, locally in containers, or as jobs of a cluster."""

from __future__ import annotations

from lsdflow_contract.errors import StageError, UsageError
from lsdflow_contract.experiment import Experiment, did_you_mean
from lsdflow_launch.chain import Chain, stage_arguments, stages_of
from lsdflow_launch.images.container import ContainerOptions, Containers, choose_ask
from lsdflow_launch.report import refreshed_report
from lsdflow_launch.slurm.follow import run_on_slurm
from lsdflow_launch.slurm.table import cluster_of
from lsdflow_launch.status import progress_text, with_activity, with_blocks

BACKENDS = ("local", "container", "slurm")


def run_on(backend: str, experiment: Experiment, first: str, last: str, options: ContainerOptions) -> int:
    """Run the stages `first` to `last` on a backend. Returns the exit code of the first that failed, else 0.

    Raises UsageError (2) for an unknown backend or stage; and the errors of Containers.check before anything runs.
    """
    if backend not in BACKENDS:
        raise UsageError(
            f"unknown backend {backend!r}", wanted=", ".join(BACKENDS), fix=did_you_mean(backend, BACKENDS)
        )
    stages = stages_of(experiment, first, last)
    with refreshed_report(experiment):
        if backend == "slurm":
            return _follow_on_slurm(experiment, first, last)
        if backend == "local":
            return Chain(experiment, stages).run()
        containers = Containers(experiment, options.engine, options.sifs, options.network)
        containers.check(stages)
        return Chain(experiment, stages, caller=containers).run()


def _follow_on_slurm(experiment: Experiment, first: str, last: str) -> int:
    """Submit and follow, and log the progress that the stages report. Returns the exit code of the chain."""
    cluster_of(experiment)
    ask = choose_ask(experiment)

    def progress(stage: str) -> str:
        try:
            facts = {"state": "running", **ask(stage, stage_arguments("status", experiment))}
            return progress_text(with_activity(experiment, stage, with_blocks(experiment, stage, facts)))
        except StageError as error:
            return error.what

    return run_on_slurm(experiment, first, last, progress)
