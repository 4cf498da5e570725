"""`lsdflow sweep run --on container`: every stage of a run in the image that the run's images.env pins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lsdflow_contract.errors import UsageError
from lsdflow_contract.experiment import did_you_mean, load_experiment
from lsdflow_launch.commands import run_stage
from lsdflow_launch.images.container import Containers, sif_folder
from lsdflow_launch.place import Containing
from lsdflow_launch.sweep.folder import SweepFolder
from lsdflow_launch.sweep.run import Caller

PLACES = ("local", "container")


def caller_at(place: str, sweep: SweepFolder, containing: Containing) -> Caller:
    """What runs a stage at a place: the installed command, or the image. UsageError (2) for an unknown place."""
    if place not in PLACES:
        raise UsageError(f"no place {place!r} to run", wanted=", ".join(PLACES), hint=did_you_mean(place, PLACES))
    if place == "local":
        return run_stage
    # The base names the folder of SIFs relative to itself. Runs link to results in the base and in shared/.
    sifs = containing.sifs or sif_folder(load_experiment(sweep.root / sweep.plan.base_file))
    beside = (sweep.root, sweep.base_folder)

    def call(stage: str, arguments: Sequence[str]) -> int:
        experiment = load_experiment(Path(arguments[arguments.index("--experiment") + 1]))
        return Containers(experiment, containing.engine, sifs, containing.network, beside)(stage, arguments)

    return call
