"""One of the processes that local_processes starts: python -m lsdflow_training.processes.one_process STAGE ...

It runs the stage as its command does, but stores its error for the process that started it, which reports it once.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from lsdflow_command.console import form_log_lines, start_logging
from lsdflow_command.interruption import interrupt_on_signals
from lsdflow_command.monitoring import monitored
from lsdflow_command.processes import end_with_parent
from lsdflow_command.stage import load_stage
from lsdflow_contract.errors import InternalError, StageError
from lsdflow_contract.experiment import load_experiment
from lsdflow_training.processes.ranks import Ranks, ranks_of_environment

LOG = logging.getLogger("lsdflow.training")


def main(arguments: Sequence[str]) -> int:
    """Run the stage; returns the exit code."""
    end_with_parent(signal.SIGTERM)
    ranks = ranks_of_environment(os.environ)
    start_logging()
    if ranks.rank > 0:
        logging.getLogger().setLevel(logging.WARNING)
    try:
        with interrupt_on_signals():
            _run(arguments, counts=ranks.rank == 0)
    except StageError as error:
        _leave(error, ranks)
        return error.exit_code
    except Exception as error:  # a bug: store it too, because the others must see every error
        LOG.exception("process %d ended", ranks.rank)
        _leave(InternalError(f"internal: process {ranks.rank}: {type(error).__name__}: {error}"), ranks)
        return InternalError.exit_code
    return 0


def _run(arguments: Sequence[str], counts: bool) -> None:
    """Run the stage. counts: this process counts iterations, so it exports the metrics."""
    stage, path, *overrides = arguments
    experiment = load_experiment(Path(path), overrides)
    form_log_lines(experiment.compute.log_format, stage)
    with monitored(stage, experiment, run_pid=os.getppid()) if counts else nullcontext():
        load_stage(stage).run(experiment)


def _leave(error: StageError, ranks: Ranks) -> None:
    from lsdflow_training.processes.meeting import GONE, connect, error_key

    try:
        connect(ranks, timeout_s=5.0).set(error_key(ranks.rank), json.dumps(error.as_dict()))
    except (StageError, *GONE):
        LOG.error("process %d: %s", ranks.rank, error.message())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
