"""The command `check-checkpoints` of `lsdflow`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from lsdflow_command.app import exit_codes
from lsdflow_contract.checkpoint import read_best
from lsdflow_contract.experiment import load_experiment
from lsdflow_launch.checkpoint_check.check import Checks, Wanted
from lsdflow_launch.checkpoint_check.region import STAGE, find_region
from lsdflow_launch.commands import ask_stage
from lsdflow_launch.options import Debug, Folder, Json, Set
from lsdflow_launch.output import print_answer, stdout_for_json


def add_check_verb(app: typer.Typer) -> None:
    """Register `check-checkpoints`."""

    @app.command(name="check-checkpoints")
    def check_checkpoints(
        folder: Folder,
        every: Annotated[int, typer.Option(min=1, help="check only iterations that are multiples of this")] = 1,
        follow: Annotated[
            bool, typer.Option("--follow", help="wait for new checkpoints until the training has finished")
        ] = False,
        volume: Annotated[str | None, typer.Option(help="training volume to check on (default: the first)")] = None,
        keep: Annotated[bool, typer.Option("--keep", help="keep the small segmentations")] = False,
        override: Set = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Segment a small labelled region with each checkpoint; `predict` then uses the one with the lowest VOI."""
        with exit_codes(debug, as_json):
            experiment = load_experiment(folder, override or [])
            region = find_region(experiment, volume, ask_stage)
            checks = Checks(experiment, region, Wanted(every, keep))
            with stdout_for_json(as_json):
                code = checks.follow() if follow else checks.look()
            facts: dict[str, Any] = {"exit_code": code, "table": str(checks.path), "region": region.words}
            text = ""
            if code == 0 and (rows := checks.compared()):
                best = read_best(experiment.layout.best_checkpoint(STAGE))
                facts |= {"checkpoints": len(rows), "best": best.model_dump()}
                text = f"{checks.path}: {len(rows)} checkpoints on {region.words}\n"
                text += f"best: iteration {best.iteration}, VOI {best.voi:.3f} bits"
            print_answer(facts, text, as_json)
        raise typer.Exit(code)
