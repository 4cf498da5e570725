"""The verbs `export ome` and `export precomputed`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lsdflow_command.app import exit_codes
from lsdflow_command.completion import one_of
from lsdflow_command.cores import available_cores
from lsdflow_command.verbs import Verbs
from lsdflow_contract.errors import UsageError
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
Meshes = Annotated[str, typer.Option(help="meshes of so many of the largest segments, or all")]
Skeletons = Annotated[str, typer.Option(help="skeletons of so many of the largest segments, or all")]
MeshError = Annotated[
    float | None,
    typer.Option(
        "--mesh-error-nm", min=0, help="how far a vertex may be moved to save triangles (default: one edge of a voxel)"
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="processes that write (default: the cores that this job has); each holds a few blocks, or one segment: "
        "of these no more than memory holds",
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="show tracebacks")]


@app.command()
def ome(
    folder: Folder,
    out: Out,
    named: Named = None,
    levels: Levels = None,
    workers: Workers = None,
    debug: Debug = False,
) -> None:
    """OME-NGFF 0.5 (zarr 3): raw as image, labels beside it; lsds and affinities as channel images, if named."""
    with exit_codes(debug):
        # zarr takes a second to start
        from lsdflow_view.export.ngff import export_ome

        written = export_ome(load_experiment(folder), out, tuple(named or ()), levels, workers or available_cores())
        typer.echo(f"{out}: OME-NGFF 0.5, {written} blocks written" if written else f"{out}: all there already")


@app.command()
def precomputed(
    folder: Folder,
    out: Out,
    named: Named = None,
    levels: Levels = None,
    sharded: Annotated[
        bool, typer.Option("--sharded", help="chunks in shards: a sixtieth of the files, for large volumes")
    ] = False,
    workers: Workers = None,
    meshes: Meshes = "0",
    skeletons: Skeletons = "0",
    of: Annotated[str, typer.Option("--shapes-of", help="layer of these segments")] = "segmentation",
    level: Annotated[
        int, typer.Option("--shape-level", min=0, help="level that they are made from; 0: the finest")
    ] = 0,
    error_nm: MeshError = None,
    memory_gib: Annotated[
        float,
        typer.Option("--shape-memory-gib", min=0, help="most memory that one of these segments may need"),
    ] = 4.0,
    debug: Debug = False,
) -> None:
    """Neuroglancer precomputed: one folder a layer, in several levels; meshes and skeletons of chosen segments."""
    with exit_codes(debug):
        wanted = (_count(meshes, "--meshes"), _count(skeletons, "--skeletons"))
        # cloud-volume and what makes shapes take seconds to start
        from lsdflow_view.export.precomputed import VolumeOptions, export_precomputed
        from lsdflow_view.export.shape_works import ShapeOptions

        shapes = ShapeOptions(*wanted, of, level, error_nm, memory_gib)
        how, cores = VolumeOptions(levels, sharded), workers or available_cores()
        written = export_precomputed(load_experiment(folder), out, tuple(named or ()), how, shapes, cores)
        told = ", ".join(f"{count} {what}" for what, count in written.items() if count)
        typer.echo(f"{out}: precomputed, {told} written" if told else f"{out}: all there already")


def _count(text: str, option: str) -> int:
    """A number of segments, or all."""
    if text == "all":
        return sys.maxsize
    if not text.isdecimal():
        raise UsageError("not a number of segments", where=option, wanted="a number, or all", found=text)
    return int(text)
