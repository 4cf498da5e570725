"""Measure a training: run some steps in a temporary folder and report their speed and memory.

The volumes are those of the experiment; everything is written to the folder. The speed is that of the steps after the
first two, without the start of a training (compilation, first batches).
"""

from __future__ import annotations

import csv
import importlib
import os
import resource
import socket
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsdflow_contract.errors import OutputConflict
from lsdflow_network.devices import device_facts
from lsdflow_training.processes.ranks import ranks_of_environment
from lsdflow_training.run import Training, tensorflow_backend
from lsdflow_training.settings import Distribution, Records, TrainingSettings

if TYPE_CHECKING:
    from lsdflow_training.build import FrozenLsd

MOST_STEPS, MOST_MINUTES = 50, 1.0
STEPS_OF_THE_START = 2


def measure_training(training: Training, folder: Path, lsd: FrozenLsd | None = None) -> dict[str, Any]:
    """Iterations per second of one process, and memory; the files that were written stay in `folder`.

    In a process that processes/scaling.py has started: those of several processes, see processes/step_times.py.
    Raises OutputConflict (73) for a folder that is not empty, NotInstalled (78) if tensorflow is configured and not
    installed, and what a training raises. GPU memory is reported only with torch.
    """
    ranks = ranks_of_environment(os.environ)
    if ranks.started_locally:
        from lsdflow_training.processes.step_times import measure_rank  # torch takes seconds to load

        return measure_rank(training, folder, lsd, ranks)
    require_empty(folder)
    with_tensorflow = training.config.backend == "tensorflow"
    trainer: Any = tensorflow_backend() if with_tensorflow else importlib.import_module("lsdflow_training.trainer")
    folder.mkdir(parents=True, exist_ok=True)
    settings = some_steps(training.settings)
    result = trainer.train(settings, training.sources, folder, training.key, lsd)
    return {
        "it_per_s": steady_speed(folder / "loss.csv"),
        "iteration": result.iteration,
        "seconds": 60 * result.minutes,
        **memory_taken(settings, on_device=not with_tensorflow),
    }


def require_empty(folder: Path) -> None:
    """Raise OutputConflict (73) for a folder that is not empty."""
    if folder.is_dir() and any(folder.iterdir()):
        raise OutputConflict(
            "the folder of the measurement is not empty", where=folder, fix="name one that does not exist"
        )


def steady_speed(losses: Path) -> float:
    """Iterations per second from the rows of a loss.csv, without its first steps if there are others.

    Each row has the mean speed since the start, so row n was written n / speed seconds after the start.
    """
    with losses.open(newline="", encoding="utf-8") as file:
        rows = [(int(row["iteration"]), float(row["it_per_s"])) for row in csv.DictReader(file) if row["it_per_s"]]
    skipped = min(STEPS_OF_THE_START, len(rows) - 1)
    begin, begin_s = (rows[skipped - 1][0], rows[skipped - 1][0] / rows[skipped - 1][1]) if skipped else (0, 0.0)
    end, speed = rows[-1]
    return (end - begin) / (end / speed - begin_s)


def some_steps(settings: TrainingSettings) -> TrainingSettings:
    """The settings for a few steps of one process, without validation, early stopping or records."""
    schedules = replace(
        settings.schedules,
        max_iteration=min(MOST_STEPS, settings.schedules.max_iteration),
        max_minutes=MOST_MINUTES,
        validation_patches=0,
    )
    alone = replace(settings.distribution, processes=Distribution.processes)
    return replace(settings, schedules=schedules, distribution=alone, patience=None, records=Records())


def memory_taken(settings: TrainingSettings, on_device: bool = True) -> dict[str, Any]:
    """Peak memory of this process and of its device (MiB), and the names of the device and of this machine."""
    return {
        "peak_rss_mib": _peak_rss_mib(settings.num_workers),
        **(device_facts(settings.device) if on_device else {"device": settings.device}),
        "host": socket.gethostname(),
    }


def _peak_rss_mib(workers: int) -> float:
    """Peak memory of this process and its workers; for each worker that of the largest, because only that is known."""
    own, largest = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return (own + workers * largest) / 1024
