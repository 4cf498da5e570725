"""The locks of an experiment: one chain of stages at a time, and one process of a stage at a time.

    runs/lock          a command that runs or changes several stages: run, repair, use, clean, a run of a sweep
    runs/<stage>/lock  a stage that runs: called by such a command, by hand, or in a job of a cluster

Without the first lock, a second `lsdflow run` with other settings would change what the first one reads next. Stages by
hand exclude chains but not each other: they name their inputs in their manifests.

Both sides take their own lock first and then look for the other one, so of two that begin at the same moment, at least
one is refused. A chain passes the id of its lock to its stages (`ChainLink`), which therefore may run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lsdflow_command.lock_file import LockFile, folder_lock, refusal_of
from lsdflow_contract.chain_link import ChainLink
from lsdflow_contract.experiment import STAGES
from lsdflow_contract.layout import ExperimentLayout

CHAIN_IS_RUNNING = "another command works on this experiment"


@contextmanager
def experiment_lock(layout: ExperimentLayout) -> Iterator[None]:
    """Exclude all other chains and stages from the experiment; the stages that are called within the block may run.

    Raises OutputConflict (73) if another process works on the experiment, or takes over meanwhile.
    """
    with folder_lock(layout.runs, CHAIN_IS_RUNNING) as holder:
        require_idle_stages(layout)
        with ChainLink(str(layout.root.resolve()), holder.id).in_environment():
            yield


@contextmanager
def stage_lock(layout: ExperimentLayout, stage: str) -> Iterator[None]:
    """Exclude other processes of the stage, and all chains except the one that called this process.

    Raises OutputConflict (73) if such a process works on the experiment, or takes over the stage meanwhile.
    """
    with folder_lock(layout.stage_runs(stage)):
        require_no_chain(layout)
        yield


def require_idle(layout: ExperimentLayout) -> None:
    """Raise OutputConflict (73) if a chain or a stage works on the experiment."""
    require_no_chain(layout)
    require_idle_stages(layout)


def require_no_chain(layout: ExperimentLayout) -> None:
    """Raise OutputConflict (73) if a chain works on the experiment, except the one that called this process."""
    file = LockFile(layout.runs / "lock")
    holder = file.live_holder()
    if holder is not None and holder.id != ChainLink.of_caller(layout.root).lock:
        raise refusal_of(file, CHAIN_IS_RUNNING, holder)


def require_idle_stages(layout: ExperimentLayout) -> None:
    """Raise OutputConflict (73) if a stage works on the experiment."""
    for stage in STAGES:
        file = LockFile(layout.stage_runs(stage) / "lock")
        if (holder := file.live_holder()) is not None:
            raise refusal_of(file, f"{stage} is at work in this experiment", holder)
