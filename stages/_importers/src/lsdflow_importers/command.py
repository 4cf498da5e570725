"""The command `import-checkpoint` of train-lsd and train-acrlsd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from lsdflow_command.app import exit_codes
from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD
from lsdflow_contract.errors import UsageError
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.geometry import Lengths, Vox3

_FROM = (
    "the checkpoint: .../train_net_checkpoint_300000 (TensorFlow 1) or .../model_checkpoint_300000 (gunpowder, torch)"
)
_KIND = "refuse another kind of network (default: found from the weights)"
_CONFIG = "JSON with input_shape and output_shape (default: config.json or test_net.json beside the checkpoint)"
_FACTORS = 'pooling factors z,y,x, finest first: "2,2,2; 3,3,3"; needed only if the upsampling has no weights'
_OFFSETS = 'offsets of the affinities: "-1,0,0; 0,-1,0; 0,0,-1; ..."; needed only for more than three'
KindOption = Annotated[Literal["lsd", "acrlsd", "mtlsd", "affinities"] | None, typer.Option("--kind", help=_KIND)]


def add_import(app: typer.Typer, stage: str) -> None:
    """Add the command `import-checkpoint` to the application of a training stage."""

    @app.command(name="import-checkpoint")
    def import_checkpoint(
        experiment: Annotated[Path, typer.Argument(help="folder of the experiment, or its experiment.toml")],
        source: Annotated[Path, typer.Option("--from", help=_FROM)],
        kind: KindOption = None,
        config: Annotated[Path | None, typer.Option(help=_CONFIG)] = None,
        voxel_size: Annotated[
            str | None, typer.Option(help='voxel size of the training: "8 nm" or "40, 4, 4 nm" (z, y, x)')
        ] = None,
        sigma: Annotated[str | None, typer.Option(help='sigma of the LSDs: "80 nm"')] = None,
        downsample_factors: Annotated[str | None, typer.Option(help=_FACTORS)] = None,
        neighborhood: Annotated[str | None, typer.Option(help=_OFFSETS)] = None,
        iteration: Annotated[
            int | None, typer.Option(min=0, help="number of training iterations, if the file name does not contain it")
        ] = None,
        lsd_checkpoint: Annotated[
            str, typer.Option(help="acrlsd: LSD network that it was trained with: best, or an iteration")
        ] = "best",
        json_: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
        debug: Annotated[bool, typer.Option("--debug", help="also print tracebacks")] = False,
    ) -> None:
        """Import a network that another program trained, for use by `predict`."""
        with exit_codes(debug, as_json=json_):
            from lsdflow_importers.importer import ImportOptions
            from lsdflow_importers.importer import import_checkpoint as run_import

            options = ImportOptions(
                path=source.absolute(),
                kind=kind,
                config=config,
                voxel_size=_length(voxel_size, "--voxel-size"),
                sigma=_length(sigma, "--sigma"),
                factors=_triples(downsample_factors, "--downsample-factors", smallest=1),
                neighborhood=_triples(neighborhood, "--neighborhood") or AFFINITY_NEIGHBORHOOD,
                iteration=iteration,
                lsd_checkpoint=lsd_checkpoint,
            )
            facts = run_import(load_experiment(experiment), stage, options)
            typer.echo(json.dumps(facts) if json_ else "\n".join(f"{k}: {v}" for k, v in facts.items()))


def _length(text: str | None, option: str) -> Lengths | None:
    if text is None:
        return None
    try:
        return Lengths.parse(text)
    except ValueError as error:
        raise UsageError(str(error), where=option) from error


def _triples(text: str | None, option: str, smallest: int | None = None) -> tuple[Vox3, ...] | None:
    """ "1,2,2; 3,3,3" -> ((1, 2, 2), (3, 3, 3))."""
    if text is None:
        return None
    try:
        found = [[int(number) for number in part.split(",")] for part in text.split(";")]
    except ValueError:
        found = []
    if not found or any(len(t) != 3 or (smallest is not None and min(t) < smallest) for t in found):
        raise UsageError("triples of whole numbers are wanted", where=option, wanted='"2,2,2; 3,3,3"', found=repr(text))
    return tuple((z, y, x) for z, y, x in found)
