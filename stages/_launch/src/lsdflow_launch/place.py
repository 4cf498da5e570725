"""Where `lsdflow run` runs the stages: locally as commands, locally in containers, or as jobs of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lsdflow_contract.errors import UsageError
from lsdflow_contract.experiment import Experiment, did_you_mean
from lsdflow_launch.chain import Chain, stages_of
from lsdflow_launch.images.container import Containers
from lsdflow_launch.slurm.cli import follow_on_slurm
from lsdflow_launch.telling.reporting import kept_up_to_date

PLACES = ("local", "container", "slurm")


@dataclass(frozen=True)
class Containing:
    """Options of `--on container`: engine, folder of SIFs, network of the database; None = chosen automatically."""

    engine: str | None = None
    sifs: Path | None = None
    network: str | None = None


def run_on(place: str, experiment: Experiment, first: str, last: str, containing: Containing) -> int:
    """Run the stages `first` to `last` at a place. Returns the exit code of the first that failed, else 0.

    Raises UsageError (2) for an unknown place or stage; and the errors of Containers.check before anything runs.
    """
    if place not in PLACES:
        raise UsageError(f"unknown backend {place!r}", wanted=", ".join(PLACES), fix=did_you_mean(place, PLACES))
    stages = stages_of(experiment, first, last)
    with kept_up_to_date(experiment):
        if place == "slurm":
            return follow_on_slurm(experiment, first, last)
        if place == "local":
            return Chain(experiment, stages).run()
        containers = Containers(experiment, containing.engine, containing.sifs, containing.network)
        containers.check(stages)
        return Chain(experiment, stages, caller=containers).run()
