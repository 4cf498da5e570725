"""Start the processes of this node, forward signals to them, and end with the error of the one that failed.

They connect to a store that this process serves, on loopback and a port that the kernel chooses (with several nodes: at
the address of the first), and store there why they ended. All of them end soon after one of them or this process ends.

Jobs of torchrun and of srun need none of this (ranks.py). `processes = N` does not use torchrun: its store listens on
all interfaces, and it reports a failed process by a traceback instead of one message and an exit code.

Each is `python -m lsdflow_training.processes.launch STAGE EXPERIMENT ...`: it runs the stage as its command does (with
--into=FOLDER: measures some steps in it), but stores its error for the process that started it, which reports it once.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lsdflow_command.console import form_log_lines, start_logging
from lsdflow_command.interruption import interrupt_on_signals
from lsdflow_command.monitoring import monitored
from lsdflow_command.processes import end_with_parent
from lsdflow_command.stage import load_stage
from lsdflow_contract.errors import InternalError, Interrupted, StageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_training.failures import StopRequest, stop_on_signals
from lsdflow_training.processes.ranks import Ranks, as_environment, of_local_process, ranks_of_environment
from lsdflow_training.settings import Distribution

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

LOG = logging.getLogger("lsdflow.training")
POLL_SECONDS = 0.1
# How long the others may take to notice that one has ended, before they are killed.
GRACE_SECONDS = 30.0
INTO = "--into="
AGAIN = "run the same command again to resume from the last checkpoint"


def run_local_processes(
    experiment: Experiment, stage: str, distribution: Distribution, node: Ranks, into: Path | None = None
) -> None:
    """Run the stage in distribution.processes processes on this node and wait for them.

    node: rank of this node and number of nodes (rank, world_size).  into: measure some steps in this folder instead.
    Raises the error of a process that failed, and Interrupted (75) after a signal to this process or to one of them.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    from lsdflow_training.processes.rendezvous import LOOPBACK, serve

    store: Store | None = None
    if node.rank == 0 and not node.store_runs:
        address = LOOPBACK if node.world_size == 1 else node.address
        served, port = serve(address, node.port, distribution.peer_timeout_s)
        store = PrefixStore(node.attempt, served)
        node = replace(node, address=address, port=port)
    measured = [] if into is None else [f"{INTO}{into}"]
    arguments = [stage, str(experiment.path), *measured, *experiment.overrides]
    ranks = [of_local_process(node, distribution.processes, number) for number in range(distribution.processes)]
    LOG.info("%d processes on this node, %d in all", distribution.processes, ranks[0].world_size)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with stop_on_signals() as stop:
            for mine in ranks:
                processes.append(_start(arguments, mine))
            codes = _wait(processes, stop, min(GRACE_SECONDS, distribution.peer_timeout_s))
    finally:
        for process in processes:
            process.kill()
            process.wait()
    error = _error({mine.rank: code for mine, code in zip(ranks, codes, strict=True)}, ranks, stop, store)
    if error is not None:
        raise error


def _start(arguments: Sequence[str], ranks: Ranks) -> subprocess.Popen[bytes]:
    """Start it in its own session: Ctrl-C then reaches only this process, which forwards it."""
    command = [sys.executable, "-m", "lsdflow_training.processes.launch", *arguments]
    return subprocess.Popen(command, env=os.environ | as_environment(ranks), start_new_session=True)


def _wait(processes: Sequence[subprocess.Popen[bytes]], stop: StopRequest, grace_s: float) -> list[int]:
    """Wait until all have ended; once one has failed, the others get grace_s.

    Returns their exit codes; 0 for those that are still running, because they wait for the one that failed.
    """
    signalled, deadline = False, float("inf")
    while None in (codes := [process.poll() for process in processes]) and time.monotonic() < deadline:
        if stop and not signalled:
            signalled = True
            for process in processes:
                process.send_signal(signal.SIGTERM)
        if deadline == float("inf") and any(codes):
            deadline = time.monotonic() + grace_s
        time.sleep(POLL_SECONDS)
    return [code or 0 for code in codes]


def _error(
    codes: Mapping[int, int], ranks: Sequence[Ranks], stop: StopRequest, store: Store | None
) -> StageError | None:
    """The error to report: first one with a reason, then a killed process, then that all were interrupted."""
    if not any(codes.values()):
        return None
    from lsdflow_training.processes.rendezvous import read_errors

    stored = read_errors(store or _find(ranks[0]), codes)
    for error in stored.values():
        if not isinstance(error, Interrupted):
            return error
    for rank, code in codes.items():
        if code > 0 and code != Interrupted.exit_code:
            return InternalError(f"process {rank} of the training failed", found=f"exit code {code}", fix=AGAIN)
    if stop:
        return next(iter(stored.values()), Interrupted(f"training stopped by {stop.name}", fix=AGAIN))
    for rank, code in codes.items():
        if code < 0 and rank not in stored:
            found, fix = signal.Signals(-code).name, f"{AGAIN}; SIGKILL is often a lack of memory"
            return Interrupted(f"process {rank} of the training was killed", found=found, fix=fix)
    return next(iter(stored.values()), Interrupted("the training was interrupted", fix=AGAIN))


def _find(ranks: Ranks) -> Store | None:
    """The store of another node, if it still answers."""
    from lsdflow_training.processes.rendezvous import connect

    try:
        return connect(replace(ranks, rank=-1), timeout_s=2.0)
    except StageError:
        return None


def main(arguments: Sequence[str]) -> int:
    """Run the stage; returns the exit code."""
    end_with_parent()  # the parent's lock ends with it: do not write anything after that
    ranks = ranks_of_environment(os.environ)
    start_logging()
    if ranks.rank > 0:
        logging.getLogger().setLevel(logging.WARNING)
    try:
        with interrupt_on_signals():
            _run(arguments, counts=ranks.rank == 0)
    except StageError as error:
        _store_error(error, ranks)
        return error.exit_code
    except Exception as error:  # a bug: store it too, because the others must see every error
        LOG.exception("process %d ended", ranks.rank)
        _store_error(InternalError(f"internal: process {ranks.rank}: {type(error).__name__}: {error}"), ranks)
        return InternalError.exit_code
    return 0


def _run(arguments: Sequence[str], counts: bool) -> None:
    """Run the stage. counts: this process counts iterations, so it exports the metrics."""
    stage, path, *overrides = arguments
    if overrides and overrides[0].startswith(INTO):
        into = Path(overrides.pop(0).removeprefix(INTO))
        load_stage(stage).measure(load_experiment(Path(path), overrides), into)
        return
    experiment = load_experiment(Path(path), overrides)
    form_log_lines(experiment.compute.log_format, stage)
    with monitored(stage, experiment, run_pid=os.getppid()) if counts else nullcontext():
        load_stage(stage).run(experiment)


def _store_error(error: StageError, ranks: Ranks) -> None:
    from lsdflow_training.processes.rendezvous import CONNECTION_ERRORS, connect, error_key

    try:
        connect(ranks, timeout_s=5.0).set(error_key(ranks.rank), json.dumps(error.as_dict()))
    except (StageError, *CONNECTION_ERRORS):
        LOG.error("process %d: %s", ranks.rank, error.message())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
