"""The verb check-checkpoints of `lsdflow`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lsdflow_command.app import exit_codes
from lsdflow_contract.checkpoint import read_best
from lsdflow_contract.experiment import load_experiment
from lsdflow_launch.checkpoint_check.check import Checks, Wanted
from lsdflow_launch.checkpoint_check.region import STAGE, find_region
from lsdflow_launch.commands import ask_stage


def add_check_verb(app: typer.Typer) -> None:
    """Register check-checkpoints."""

    @app.command(name="check-checkpoints")
    def check_checkpoints(
        folder: Annotated[Path, typer.Argument(help="folder of the experiment")],
        every: Annotated[int, typer.Option(min=1, help="only iterations that are multiples of this")] = 1,
        follow: Annotated[bool, typer.Option("--follow", help="until the training has finished")] = False,
        volume: Annotated[str | None, typer.Option(help="training volume to check on (default: the first)")] = None,
        keep: Annotated[bool, typer.Option("--keep", help="keep the arrays of the small segmentations")] = False,
        replace: Annotated[
            bool, typer.Option("--replace", help="choose anew although the target was predicted with another one")
        ] = False,
        override: Annotated[list[str] | None, typer.Option("--set", help="table.key=value")] = None,
        debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,
    ) -> None:
        """Segment a small labelled region with each checkpoint; the one of the lowest VOI becomes the best."""
        with exit_codes(debug):
            experiment = load_experiment(folder, override or [])
            region = find_region(experiment, volume, ask_stage)
            checks = Checks(experiment, region, Wanted(every, keep, replace))
            code = checks.follow() if follow else checks.look()
            if code == 0 and (rows := checks.compared()):
                best = read_best(experiment.layout.best_checkpoint(STAGE))
                typer.echo(f"{checks.path}: {len(rows)} checkpoints on {region.words}")
                typer.echo(f"best: iteration {best.iteration}, VOI {best.voi:.3f} bits")
        raise typer.Exit(code)
