"""The commands that are used before an experiment runs: `init` and `schema`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.completion import one_of
from lsdflow_contract.checkpoint import Mode
from lsdflow_contract.experiment import Profile, load_experiment
from lsdflow_launch.commands import stages_here
from lsdflow_launch.init.draft import Draft, draft_experiment, removed_on_failure
from lsdflow_launch.init.inspect import Start
from lsdflow_launch.init.networks import find_network, list_of_networks, shipped_networks
from lsdflow_launch.init.propose import Choice
from lsdflow_launch.init.template import experiment_schema, table_schemas, toml_value
from lsdflow_launch.options import Debug, Folder, Set
from lsdflow_launch.output import next_line, print_answer
from lsdflow_launch.planning.evidence import gpu_lines
from lsdflow_launch.preflight import problems_of, show_problems

Train = Annotated[
    list[Path] | None,
    typer.Option(help="volume with labels to train on (repeat for more; default: --volume, if it has labels)"),
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        help="tiny, general, standard; for thick sections tiny-anisotropic, general-anisotropic, snemi3d "
        "(default: chosen from the volumes and the machine)",
        autocompletion=one_of(get_args(Profile)),
    ),
]
ModeOption = Annotated[
    str | None,
    typer.Option(
        help="networks: acrlsd, mtlsd or affinities (default: that of the network that it starts from, or acrlsd)",
        autocompletion=one_of(get_args(Mode)),
    ),
]


def _show_list(context: typer.Context, option: typer.CallbackParam, value: Any) -> Any:
    """For --network list: show the networks and end, as soon as both --network and --json have been read."""
    read = {**context.params, str(option.name): value}
    if read.get("network") == "list" and "as_json" in read:
        with exit_codes(debug=False, as_json=read["as_json"]):
            typer.echo(json.dumps(shipped_networks()) if read["as_json"] else list_of_networks())
        raise typer.Exit
    return value


NetworkOption = Annotated[
    str | None,
    typer.Option(
        help="a trained network: the name of one that comes with lsdflow (list: shows them), or a folder with "
        "bundle.json. Nothing is trained; with --train, the training starts from it. Without the option, a training "
        "starts from one that comes with lsdflow and fits; none: from random weights",
        callback=_show_list,
        is_eager=True,
    ),
]
ListJson = Annotated[bool, typer.Option("--json", help="print JSON", callback=_show_list, is_eager=True)]
VoxelSize = Annotated[
    str | None, typer.Option(help='voxel size z, y, x of all volumes: "40, 8, 8 nm" (default: from their metadata)')
]
ExpansionFactor = Annotated[
    float | None, typer.Option(help="expansion microscopy: the voxel sizes of all volumes are divided by this factor")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="show experiment.toml; write nothing")]


def add_start_verbs(app: typer.Typer) -> None:
    """Register `init` and `schema`."""

    @app.command()
    def init(
        folder: Folder,
        volume: Annotated[Path, typer.Option(help="volume to segment")],
        train: Train = None,
        labels: Annotated[
            Path | None, typer.Option(help="labels of --train, if they are in another file or folder")
        ] = None,
        truth: Annotated[Path | None, typer.Option(help="ground truth of --volume, for scores")] = None,
        network: NetworkOption = None,
        profile: ProfileOption = None,
        mode: ModeOption = None,
        voxel_size: VoxelSize = None,
        expansion_factor: ExpansionFactor = None,
        dry_run: DryRun = False,
        override: Set = None,
        as_json: ListJson = False,
        debug: Debug = False,
    ) -> None:
        """Read the volumes, propose settings and write DIR/experiment.toml with every setting explained."""
        with exit_codes(debug, as_json):
            more = tuple(override or ())
            folder, volume = folder.expanduser(), volume.expanduser()
            labels, truth = (path and path.expanduser() for path in (labels, truth))
            found = find_network(network, mode) if network and network != "none" else None
            start = Start(
                root=folder,
                train=tuple(path.expanduser() for path in train or ()),
                volume=volume,
                labels=labels,
                truth=truth,
                profile=profile,
                mode=mode or (found.mode if found else None),
                voxel_size=voxel_size,
                expansion_factor=expansion_factor,
                overrides=more,
                network=found,
                from_nothing=network == "none",
            )
            draft = draft_experiment(start)
            if dry_run:
                typer.echo(json.dumps(_as_json(draft.choices, text=draft.text)) if as_json else draft.text, nl=as_json)
                return
            _write_checked(draft, folder, as_json)

    @app.command()
    def schema() -> None:
        """Print the JSON schema of experiment.toml, for editors: keys, values, units and their meaning."""
        typer.echo(json.dumps(experiment_schema(table_schemas(stages_here())), indent=1, ensure_ascii=False))


def _write_checked(draft: Draft, folder: Path, as_json: bool) -> None:
    """Write the experiment and check it. Raises typer.Exit after problems; then nothing is left."""
    with removed_on_failure(draft.layout):
        layout = draft.write()
        following = f"lsdflow run {folder}"
        if as_json:
            wrote = [str(path) for path in (layout.experiment_toml, layout.schema_json, layout.images_env)]
            problems = problems_of(load_experiment(folder))
            codes = [problem["exit_code"] for found in problems.values() for problem in found]
            facts = {"wrote": [] if codes else wrote, "problems": problems, "next": following}
            typer.echo(json.dumps(_as_json(draft.choices, **facts)))
            if codes:
                raise typer.Exit(codes[0])
            return
        for choice in draft.choices:
            typer.echo(f"  {choice.key} = {toml_value(choice.value)}    # {choice.why}")
        try:
            show_problems(load_experiment(folder), as_json=False)
        except typer.Exit:
            again = "nothing was written: call `lsdflow init` again with the settings, --set table.key=value"
            typer.echo(again, err=True)
            raise
        typer.echo("".join(f"{line}\n" for line in gpu_lines(load_experiment(folder))), nl=False)
        typer.echo(f"wrote {layout.experiment_toml}, {layout.images_env.name} and {layout.schema_json.name}")
        print_answer({}, next_line(following), as_json=False)


def _as_json(choices: Sequence[Choice], **more: Any) -> dict[str, Any]:
    return {**more, "proposed": [dataclasses.asdict(choice) for choice in choices]}
