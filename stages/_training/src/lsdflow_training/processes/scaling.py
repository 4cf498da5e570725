"""The command `scaling` of the trainings: a few steps with some number of processes, for `lsdflow scaling`."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from lsdflow_command.app import DebugOption, ExperimentOption, IntoOption, SetOption, opened_experiment
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import read_json
from lsdflow_training.config import MOST_PROCESSES
from lsdflow_training.measured import require_empty
from lsdflow_training.processes.launch import run_local_processes
from lsdflow_training.processes.ranks import Ranks
from lsdflow_training.settings import Distribution

OF_SLOWEST, MEANS = ("it_per_s", "samples_per_s"), ("all_reduce_share", "all_reduce_wait_share", "data_wait_share")
PEAKS = ("peak_rss_mib", "device_peak_mib")


def add_scaling(app: typer.Typer, stage: str) -> None:
    """Add the command `scaling` to the application of a training stage."""

    @app.command(hidden=True)
    def scaling(
        experiment: ExperimentOption,
        into: IntoOption,
        processes: Annotated[int, typer.Option(min=1, max=MOST_PROCESSES, help="processes on this machine")] = 1,
        override: SetOption = None,
        debug: DebugOption = False,
    ) -> None:
        """Run some training steps in several processes in a temporary folder; print speed and memory as JSON."""
        with opened_experiment(experiment, override, debug, as_json=True, interruptible=True) as opened:
            typer.echo(json.dumps(measure_processes(opened, stage, processes, into.absolute())))


def measure_processes(experiment: Experiment, stage: str, processes: int, folder: Path) -> dict[str, Any]:
    """The speed of the slowest process, the mean shares of time, and the peak memory of each (MiB, by rank).

    Raises OutputConflict (73) for a folder that is not empty, and what one of the processes raises.
    """
    require_empty(folder)
    folder.mkdir(parents=True, exist_ok=True)
    run_local_processes(experiment, stage, Distribution(processes=processes), Ranks(), into=folder)
    ranks: list[dict[str, Any]] = [read_json(folder / f"rank_{rank}.json") for rank in range(processes)]
    return {
        **ranks[0],
        **{name: min(one[name] for one in ranks) for name in OF_SLOWEST},
        **{name: None if None in (all_of := [one[name] for one in ranks]) else fmean(all_of) for name in MEANS},
        **{name: [one[name] for one in ranks] for name in PEAKS if name in ranks[0]},
    }
