"""The command `plan`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from lsdflow_command.app import exit_codes
from lsdflow_contract.errors import StageError, StorageFailure, UsageError
from lsdflow_contract.experiment import Experiment, load_experiment, nearest
from lsdflow_contract.geometry import Vox3
from lsdflow_launch.chain import BLOCK_STAGES
from lsdflow_launch.descriptions import plans_of
from lsdflow_launch.images.container import choose_ask
from lsdflow_launch.options import Debug, Folder, Json, Set
from lsdflow_launch.planning.evidence import record_of
from lsdflow_launch.planning.plan import Plan, PlanOptions, make_plan
from lsdflow_launch.planning.stored import compare, store_plan

LOG = logging.getLogger("lsdflow.plan")
EXPERIMENT = "experiment"
PLACES = {"": None, "local": False, "slurm": True}


def add_plan_verb(app: typer.Typer) -> None:
    """Register `plan`."""

    @app.command()
    def plan(
        folder: Folder,
        measure: Annotated[
            bool,
            typer.Option(
                "--measure",
                help="measure time and memory of one block (or some training steps) of each stage that can run now",
            ),
        ] = False,
        like: Annotated[Path | None, typer.Option(help="finished experiment whose measured times are used")] = None,
        prices: Annotated[
            Path | None, typer.Option(help="file with prices (default: prices.toml of the experiment)")
        ] = None,
        volume_shape: Annotated[
            str, typer.Option(help="plan for a target of this shape instead: voxels z,y,x, such as 10000,10000,10000")
        ] = "",
        workers: Annotated[int, typer.Option(min=0, help="workers of every stage (default: as configured)")] = 0,
        on: Annotated[
            str, typer.Option(help="local or slurm (default: slurm if experiment.toml has a cluster table)")
        ] = "",
        compared: Annotated[
            bool, typer.Option("--compare", help="compare the last plan with what was measured")
        ] = False,
        override: Set = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Estimate disk, files, memory, hours and cost of a run from measured blocks; writes DIR/plan.json."""
        with exit_codes(debug, as_json):
            experiment = load_experiment(folder, [*(override or []), *_workers(folder, workers)])
            if on not in PLACES:
                raise UsageError(f"unknown backend {on!r}", wanted="local or slurm", fix=nearest(on, list(PLACES)))
            if compared:
                _compare(experiment, as_json)
                return
            options = PlanOptions(measure, like, prices, PLACES[on], _shape(volume_shape))
            estimated = make_plan(experiment, options, choose_ask(experiment))
            _show(experiment, estimated, as_json, store=options.volume_shape is None)
            certain = [warn for warn in estimated.warnings if warn.certain]
        if certain:
            raise typer.Exit(StorageFailure.exit_code)


def _shape(text: str) -> Vox3 | None:
    """Return the voxels of "z,y,x"; None for an empty text. Raises UsageError (2) for anything else."""
    if not text:
        return None
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise UsageError(
            "not a shape", where="--volume-shape", wanted="voxels z,y,x, such as 10000,10000,10000", found=text
        )
    z, y, x = map(int, parts)
    return z, y, x


def _workers(folder: Path, count: int) -> list[str]:
    """Return the settings that give every stage this many workers, here and on a cluster."""
    if not count:
        return []
    stages = BLOCK_STAGES if load_experiment(folder).uses_cluster else ()
    return [
        f"compute.workers={count}",
        "compute.runner=daisy",
        *(f"cluster.{stage}.workers={count}" for stage in stages),
    ]


def _show(experiment: Experiment, plan: Plan, as_json: bool, store: bool) -> None:
    if as_json:
        facts: dict[str, Any] = plan.as_dict()
        stages = facts.pop("stages")
        typer.echo(json.dumps({**{s: {**f, "estimate": stages[s]} for s, f in plan.facts.items()}, EXPERIMENT: facts}))
    else:
        from lsdflow_launch.output import plain_console
        from lsdflow_launch.planning.table import show_plan

        show_plan(plan, plain_console())
    if not store:
        return
    try:
        path = store_plan(experiment, plan)
    except StageError as error:
        LOG.warning("the plan is not kept: %s", error.message())
        return
    if not as_json:
        typer.echo(f"wrote {path}; after the run: lsdflow plan {experiment.path.parent} --compare")


def _compare(experiment: Experiment, as_json: bool) -> None:
    facts = plans_of(experiment, choose_ask(experiment))
    found = compare(experiment, {stage: record_of(experiment, stage, answer) for stage, answer in facts.items()})
    if as_json:
        comparisons: dict[str, Any] = {}
        for line in found:
            comparisons.setdefault(line.stage, {})[line.name] = line.as_dict()
        typer.echo(json.dumps(comparisons))
        return
    from lsdflow_launch.output import plain_console
    from lsdflow_launch.planning.table import show_comparison

    show_comparison(found, plain_console())
