"""The command `lsdflow-view`: `show` opens a viewer on an experiment; `export` writes the field's formats."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.cli import Verbs, version_line
from lsdflow_command.completion import one_of
from lsdflow_command.console import start_logging
from lsdflow_command.machine import available_cores
from lsdflow_contract.errors import UsageError
from lsdflow_contract.experiment import load_experiment
from lsdflow_view.export.levels import LAYERS, USUAL
from lsdflow_view.show import Listening, show_folder

app = Verbs(name="lsdflow-view")
export_app = Verbs(name="export", help="Export an experiment's volumes as OME-NGFF or neuroglancer precomputed.")
Folder = Annotated[Path, typer.Argument(help="folder of the experiment")]
Out = Annotated[Path, typer.Argument(help="folder to write; an interrupted export is resumed")]
Named = Annotated[
    list[str] | None,
    typer.Option(
        "--layer",
        help=f"layer to write (repeat for more): {', '.join(LAYERS)} (default: {', '.join(USUAL)}, if they exist)",
        autocompletion=one_of(LAYERS),
    ),
]
Levels = Annotated[
    int | None,
    typer.Option(min=1, max=16, help="number of resolution levels (default: until the coarsest fits on a screen)"),
]
Meshes = Annotated[str, typer.Option(help="make meshes of this many of the largest segments, or all")]
Skeletons = Annotated[str, typer.Option(help="make skeletons of this many of the largest segments, or all")]
MeshError = Annotated[
    float | None,
    typer.Option(
        "--mesh-error-nm", min=0, help="how far, in nm, a vertex may move to save triangles (default: one voxel edge)"
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="worker processes (default: the cores of this job); fewer if the segments do not fit into memory",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="also print tracebacks")]


@export_app.command()
def ome(
    folder: Folder,
    out: Out,
    named: Named = None,
    levels: Levels = None,
    workers: Workers = None,
    debug: Debug = False,
) -> None:
    """Write OME-NGFF 0.5 (zarr 3): raw as an image, with labels; LSDs and affinities if named by --layer."""
    with exit_codes(debug):
        # zarr takes a second to import
        from lsdflow_view.export.ngff import export_ome

        written = export_ome(load_experiment(folder), out, tuple(named or ()), levels, workers or available_cores())
        typer.echo(f"{out}: OME-NGFF 0.5, {written} blocks written" if written else f"{out}: all there already")


@export_app.command()
def precomputed(
    folder: Folder,
    out: Out,
    named: Named = None,
    levels: Levels = None,
    sharded: Annotated[
        bool, typer.Option("--sharded", help="store chunks in shards: 60 times fewer files, for large volumes")
    ] = False,
    workers: Workers = None,
    meshes: Meshes = "0",
    skeletons: Skeletons = "0",
    of: Annotated[
        str, typer.Option("--shapes-of", help="layer whose segments get meshes and skeletons")
    ] = "segmentation",
    level: Annotated[
        int, typer.Option("--shape-level", min=0, help="resolution level for meshes and skeletons; 0 is the finest")
    ] = 0,
    error_nm: MeshError = None,
    memory_gib: Annotated[
        float,
        typer.Option(
            "--shape-memory-gib", min=0, help="largest memory, in GiB, for the mesh or skeleton of one segment"
        ),
    ] = 4.0,
    debug: Debug = False,
) -> None:
    """Write neuroglancer precomputed: a folder for each layer, with several levels, meshes and skeletons."""
    with exit_codes(debug):
        wanted = (_count(meshes, "--meshes"), _count(skeletons, "--skeletons"))
        # cloud-volume and the libraries for meshes and skeletons take seconds to import
        from lsdflow_view.export.precomputed import VolumeOptions, export_precomputed
        from lsdflow_view.export.shapes import ShapeOptions

        shapes = ShapeOptions(*wanted, of, level, error_nm, memory_gib)
        how, cores = VolumeOptions(levels, sharded), workers or available_cores()
        written = export_precomputed(load_experiment(folder), out, tuple(named or ()), how, shapes, cores)
        kinds = ", ".join(f"{count} {what}" for what, count in written.items() if count)
        typer.echo(f"{out}: precomputed, {kinds} written" if kinds else f"{out}: all there already")


def _count(text: str, option: str) -> int:
    """The number of segments that an option gives, or all."""
    if text == "all":
        return sys.maxsize
    if not text.isdecimal():
        raise UsageError("not a number of segments", where=option, wanted="a number, or all", found=text)
    return int(text)


def main() -> None:
    """Entry point."""
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(version_line("lsdflow-view", "lsdflow-view"))
        raise typer.Exit


@app.callback(help="View an experiment, and export its volumes. Example: lsdflow-view show DIR")
def _front(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    del show_version
    start_logging()


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="folder of the experiment or of an export, or a training snapshot")],
    at: Annotated[str | None, typer.Option(help='position to open: z,y,x in nm, or "48, 80, 80 vox"')] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the local web server; 0 = any free port")] = 0,
    host: Annotated[str, typer.Option(help="name or address of a network interface")] = "127.0.0.1",
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="open a browser")] = True,
    napari: Annotated[bool, typer.Option("--napari", help="use napari instead of neuroglancer")] = False,
    export: Annotated[Path | None, typer.Option(help="show the coarser levels of this `export ome` folder")] = None,
    debug: Annotated[bool, typer.Option("--debug", help="also print tracebacks")] = False,
) -> None:
    """Show all volumes and the segmentation at every threshold in neuroglancer or napari; Ctrl-C ends it."""
    with exit_codes(debug):
        listening = None if napari else Listening(host, port, browser)
        show_folder(folder, listening, at, export)


app.add_typer(export_app)
