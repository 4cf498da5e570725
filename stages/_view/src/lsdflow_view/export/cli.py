"""The verbs `export ome` and `export precomputed`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.completion import one_of
from lsdflow_command.verbs import Verbs
from lsdflow_contract.experiment import load_experiment
from lsdflow_view.export.layers import LAYERS, USUAL

app = Verbs(name="export", help="Write an experiment's volumes in the formats of the field.")
Folder = Annotated[Path, typer.Argument(help="folder of the experiment")]
Out = Annotated[Path, typer.Argument(help="folder to write; one that was begun is gone on with")]
Named = Annotated[
    list[str] | None,
    typer.Option(
        "--layer",
        help=f"layer to write (repeat): {', '.join(LAYERS)} (default: {', '.join(USUAL)}, those that are there)",
        autocompletion=one_of(LAYERS),
    ),
]
Levels = Annotated[
    int | None, typer.Option(min=1, max=16, help="levels of each volume (default: until one fits on a screen)")
]
Debug = Annotated[bool, typer.Option("--debug", help="show tracebacks")]


@app.command()
def ome(folder: Folder, out: Out, named: Named = None, levels: Levels = None, debug: Debug = False) -> None:
    """OME-NGFF 0.5 (zarr 3): raw as image, labels beside it; lsds and affinities as channel images, if named."""
    with exit_codes(debug):
        # zarr takes a second to start
        from lsdflow_view.export.ngff import export_ome

        written = export_ome(load_experiment(folder), out, tuple(named or ()), levels)
        typer.echo(f"{out}: OME-NGFF 0.5, {written} blocks written" if written else f"{out}: all there already")


@app.command()
def precomputed(folder: Folder, out: Out, named: Named = None, levels: Levels = None, debug: Debug = False) -> None:
    """Neuroglancer precomputed: one folder a layer, in several levels; meshes and skeletons of chosen segments."""
    with exit_codes(debug):
        from lsdflow_view.export.precomputed import export_precomputed

        written = export_precomputed(load_experiment(folder), out, tuple(named or ()), levels)
        typer.echo(f"{out}: precomputed, {written} blocks written" if written else f"{out}: all there already")
