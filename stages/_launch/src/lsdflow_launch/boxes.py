"""`lsdflow cut` and `lsdflow add-labels`: look at what is worst, correct it, and train on the corrections.

DIR --cut--> boxes: raw, segmentation --a person corrects--> labels --add-labels--> NEWDIR

NEWDIR is an experiment with all settings of DIR. It trains on the boxes and on the volumes that DIR had, and begins
with the weights that predicted in DIR. evaluate reads and writes the boxes (lsdflow_evaluate/boxes.py).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from os.path import relpath
from pathlib import Path
from typing import Annotated, Any

import typer

from lsdflow_command.app import exit_codes
from lsdflow_contract.checkpoint import bundle_folder, bundle_iterations, read_bundle
from lsdflow_contract.errors import MissingInput, OutputConflict, UsageError
from lsdflow_contract.experiment import STAGES, TRAININGS, Experiment, load_experiment
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_launch.init.draft import (
    Draft,
    images_text,
    network_shape,
    read_override,
    refuse_folder_in_volume,
    removed_on_failure,
    valid_name,
)
from lsdflow_launch.init.inspect import RATE_OF_TRAINED, this_machine
from lsdflow_launch.init.middle import asked
from lsdflow_launch.init.networks import find_network
from lsdflow_launch.init.propose import text_of
from lsdflow_launch.init.template import experiment_schema, experiment_text, merged, table_schemas
from lsdflow_launch.options import Debug, Folder, Json, Set
from lsdflow_launch.output import next_line, print_answer, stdout_for_json
from lsdflow_launch.preflight import show_problems
from lsdflow_launch.sweep.folder import moved_paths

BOXES = "boxes"
At = Annotated[
    str,
    typer.Option(
        help="worst:1..5 (the worst splits and merges; without ground truth the least certain places), z,y,x in nm, or "
        '"z, y, x vox"'
    ),
]
Size = Annotated[str, typer.Option(help="size of a box in voxels: one number, or z,y,x")]
Corrected = Annotated[
    list[Path], typer.Argument(metavar="BOX...", help="folder of a box, or the corrected labels in it (TIFF, zarr)")
]


def present_networks(experiment: Experiment) -> dict[str, Path]:
    """The networks that predicted the present affinities: the folder of each bundle, by the stage that trains it.

    Raises MissingInput (66) if predict has not finished, or if a network is gone.
    """
    layout = experiment.layout
    predicted = read_manifest(layout, "predict")
    tables = (experiment.tables.get("predict", {}), predicted.config)
    words = (table.get(key) for table in tables for key in ("checkpoint", "lsd_checkpoint"))
    folders = [experiment.resolve(word) for word in words if isinstance(word, str)]
    folders = [folder for folder in folders if (folder / "bundle.json").is_file()]
    for checkpoints in map(layout.checkpoints, TRAININGS):
        folders += [bundle_folder(checkpoints, iteration).resolve() for iteration in bundle_iterations(checkpoints)]
    known = {read_bundle(folder).weights_sha256: folder for folder in folders}
    roles = {"train-acrlsd": "network", "train-lsd": "lsd_network"}
    used = {stage: predicted.inputs[role] for stage, role in roles.items() if role in predicted.inputs}
    if gone := [stage for stage, sha256 in used.items() if sha256 not in known]:
        fix = "a network that is here: lsdflow use, or predict.checkpoint; then run predict again"
        raise MissingInput("the network that predicted is not here", where=layout.root, wanted=gone[0], fix=fix)
    return {stage: known[sha256] for stage, sha256 in used.items()}


def next_tables(experiment: Experiment, root: Path, volumes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The tables of an experiment in `root` that trains on these boxes, too, from the present weights."""
    tables = dict(moved_paths(experiment.tables, experiment.path.parent, root))
    common, prepare = tables.get("experiment", {}), tables.get("prepare", {})
    training = list(prepare.get("training", []))
    for volume in volumes:
        name, taken = volume["name"], {given["name"] for given in training}
        number = next(n for n in range(1, len(taken) + 2) if (name if n == 1 else f"{name}-{n}") not in taken)
        unique = name if number == 1 else f"{name}-{number}"
        training.append({"name": unique, "raw": f"{BOXES}/{name}.zarr", "pad_labels": True})
    for given in training:
        given.pop("probability", None)  # all or none has one; by default it is the labelled share
    predict = {key: value for key, value in tables.get("predict", {}).items() if "checkpoint" not in key}
    tables |= {"experiment": {**common, "name": valid_name(root.name) or "experiment"}, "predict": predict}
    tables["prepare"] = {**prepare, "training": training}
    tables.get("store", {}).pop("database", None)  # a database holds the graph of one experiment
    for stage, folder in present_networks(experiment).items():
        bundle = read_bundle(folder)
        if stage not in experiment.stages:  # DIR was segmented by a network from elsewhere
            network = find_network(str(folder), bundle.kind)
            tables["experiment"]["profile"] = network.profile_on_gpu if this_machine().gpu else network.profile
        sigma = {"sigma": f"{text_of(bundle.sigma_nm)} nm"} if bundle.sigma_nm else {}
        tables[stage] = {
            **sigma,
            "learning_rate": RATE_OF_TRAINED,
            **tables.get(stage, {}),
            "initial_weights": relpath(folder, root),
            **network_shape(bundle.unet.model_dump(mode="json")),
        }
    return tables


def add_labels(experiment: Experiment, boxes: Sequence[Path], root: Path, overrides: Sequence[str] = ()) -> list[Any]:
    """Write the experiment in `root`, with the boxes as training volumes; returns their names and labelled parts.

    Raises OutputConflict (73) if `root` exists, the errors of `take-boxes` and of `present_networks`, and typer.Exit
    for problems of the new experiment; then nothing is left.
    """
    if root.exists():
        fix = "choose a folder that does not exist yet"
        raise OutputConflict("the new experiment needs a folder of its own", where=root, fix=fix)
    refuse_folder_in_volume(root, [])
    present_networks(experiment)
    schemas = table_schemas(STAGES)
    more: list[tuple[list[str], Any]] = []
    for override in overrides:
        read_override(override, schemas, more)
    layout = ExperimentLayout(root.resolve())
    with removed_on_failure(layout):
        words = ["--experiment", str(experiment.path), "--to", str(layout.root / BOXES)]
        volumes = asked("evaluate", ["take-boxes", *words, *(str(box.absolute()) for box in boxes)])["volumes"]
        text = experiment_text(schemas, merged(next_tables(experiment, layout.root, volumes), more))
        images = experiment.layout.images_env
        pins = images.read_text(encoding="utf-8") if images.is_file() else images_text(STAGES)
        Draft(layout, text, experiment_schema(schemas), pins).write()
        show_problems(load_experiment(layout.root), as_json=False)
    return list(volumes)


def add_box_verbs(app: typer.Typer) -> None:
    """Register `cut` and `add-labels`."""

    @app.command()
    def cut(
        folder: Folder,
        at: At,
        size: Size = "128",
        to: Annotated[Path | None, typer.Option(help="folder for the boxes (default: DIR/boxes)")] = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Cut boxes where errors are worst, with raw and segmentation as OME-Zarr and TIFF, for you to correct."""
        with exit_codes(debug, as_json):
            experiment = load_experiment(folder, [])
            words = ["--experiment", str(experiment.path), f"--at={at}", "--size", *_three_numbers(size)]
            answer = asked("evaluate", ["cut-boxes", *words, "--to", str(to or folder / BOXES)])
            lines = [f"{box['folder']}: {_numbers(box['shape_vox'])} voxels" for box in answer["boxes"]]
            named = shlex.join(["lsdflow", "add-labels", str(folder), *(box["folder"] for box in answer["boxes"])])
            step = f"{named} --to {shlex.quote(f'{folder}-2')}    # when labels.tif or box.zarr is corrected"
            print_answer({**answer, "next": step}, "\n".join([*lines, next_line(step)]), as_json)

    @app.command(name="add-labels")
    def add(
        folder: Folder,
        boxes: Corrected,
        to: Annotated[Path, typer.Option(help="folder of the new experiment")],
        override: Set = None,
        as_json: Json = False,
        debug: Debug = False,
    ) -> None:
        """Make a new experiment that trains on corrected boxes, too, and begins with the present weights."""
        with exit_codes(debug, as_json):
            with stdout_for_json(as_json):
                volumes = add_labels(load_experiment(folder, []), boxes, to, override or [])
            lines = [f"{v['name']}: {v['neurons']} neurons, {100 * v['labelled']:.0f} % labelled" for v in volumes]
            step = shlex.join(["lsdflow", "run", str(to)])
            facts = {"volumes": volumes, "wrote": [str(to / "experiment.toml")], "next": step}
            print_answer(facts, "\n".join([*lines, f"wrote {to / 'experiment.toml'}", next_line(step)]), as_json)


def _three_numbers(size: str) -> list[str]:
    numbers = [word.strip() for word in size.split(",")]
    if len(numbers) not in (1, 3) or not all(number.isdecimal() for number in numbers):
        raise UsageError("no size of a box", where="--size", wanted="128, or 32,128,128", found=size)
    return numbers * (3 if len(numbers) == 1 else 1)


def _numbers(values: Sequence[int]) -> str:
    return " x ".join(map(str, values))
