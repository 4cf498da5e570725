"""Export to neuroglancer precomputed: one folder per layer, with several levels (mips), meshes and skeletons.

OUT/<layer>/info               type, resolution (nm) and voxel_offset of each level; x, y, z order
OUT/<layer>/<resolution>/...   the voxels of a level (precomputed_volume)
OUT/<layer>/mesh, skeletons    of chosen segments (shapes)
OUT/lsdflow_export.json        keys of the finished layers and shapes

Levels are halved on the grid of the world, as viewers expect: voxel 5 of level 0 is in voxel 2 of level 1, wherever
the volume begins.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lsdflow_contract.errors import UsageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import write_json
from lsdflow_contract.geometry import Geometry, Vox3
from lsdflow_contract.manifest import Writer
from lsdflow_contract.no_experiment import EXPORT_RECORD, UNFINISHED
from lsdflow_view.export.levels import Layer, level_count, open_layers, pyramid
from lsdflow_view.export.passes import PassRunner, ReadBack, close_folder, export_folder, export_record, record_keys
from lsdflow_view.export.precomputed_volume import PrecomputedLayer
from lsdflow_view.export.shapes import ShapeOptions, Shapes, wanted_shapes

LOG = logging.getLogger("lsdflow.view")


@dataclass(frozen=True)
class VolumeOptions:
    """Number of levels (None: until one fits on a screen), and whether chunks are single files or in shards."""

    levels: int | None = None
    sharded: bool = False


def export_precomputed(
    experiment: Experiment,
    out: Path,
    named: tuple[str, ...],
    options: VolumeOptions,
    shapes: ShapeOptions,
    workers: int = 1,
) -> dict[str, int]:
    """Write the named layers (by default the usual ones) to `out`; returns how many items of each kind were written.

    workers: processes that write blocks and shapes.
    """
    checked = ReadBack.of_fraction(experiment.compute.verify_fraction)
    layers = [_precomputed_layer(layer, out, options, checked) for layer in open_layers(experiment, named)]
    wanted = wanted_shapes(_layer_of_shapes(layers, shapes), out / UNFINISHED, shapes)
    record, keys = export_record(out), {layer.layer.name: layer.key for layer in layers}
    finished = None if record is None else record["layers"]
    made = (record or {}).get("shapes", {})
    with export_folder(out, finished, keys) as folder:
        runner = PassRunner(experiment, folder, workers)
        left = [one for one in wanted if made.get(_place(one)) != one.key]
        _require_shapes(left, runner)
        record_keys(folder, finished or {}, keys)
        new = [layer for layer in layers if layer.layer.name not in (finished or {})]
        written = {"blocks": runner.run([pass_ for layer in new for pass_ in layer.passes()])}
        record = {"layers": {**(finished or {}), **keys}, "shapes": made}
        _finish(out, layers, record)
        for one in left:
            written[one.name] = one.make(runner)
            made[_place(one)] = one.key
        _finish(out, layers, record)
    close_folder(out)
    return written


def _require_shapes(shapes: list[Shapes], runner: PassRunner) -> None:
    """Find the segments that get shapes, and raise before any volume is written if one of them cannot be made."""
    for one in shapes[:1]:
        one.segments.make(runner)
    for one in shapes:
        one.require_fit()


def _place(shapes: Shapes) -> str:
    return f"{shapes.layer.layer.name}/{shapes.kind}"


def _finish(out: Path, layers: list[PrecomputedLayer], record: dict[str, Any]) -> None:
    """Write the metadata of complete layers."""
    for layer in layers:
        write_json(layer.folder / "info", layer.info())
    write_json(out / EXPORT_RECORD, {"written_by": Writer.of("view").model_dump(), **record})


def _layer_of_shapes(layers: list[PrecomputedLayer], shapes: ShapeOptions) -> PrecomputedLayer | None:
    """The layer whose segments get meshes and skeletons; None if none are wanted."""
    if not (shapes.meshes or shapes.skeletons):
        return None
    for layer in layers:
        if layer.layer.name == shapes.of and layer.layer.kind == "labels":
            return layer
    labels = [layer.layer.name for layer in layers if layer.layer.kind == "labels"]
    raise UsageError(
        "meshes and skeletons are of the segments of a layer that is exported",
        where="--shapes-of",
        wanted=", ".join(labels) or "a layer of labels",
        found=shapes.of,
    )


def _precomputed_layer(layer: Layer, out: Path, options: VolumeOptions, checked: ReadBack) -> PrecomputedLayer:
    geometry = layer.volume.geometry
    box = geometry.box.translate(_whole_offset_vox(geometry, layer.volume.where))
    levels = pyramid(geometry.voxel_size_nm, box, options.levels or level_count(geometry.voxel_size_nm, box))
    return PrecomputedLayer(layer, out / layer.name, levels, checked, options.sharded)


def _whole_offset_vox(geometry: Geometry, where: str) -> Vox3:
    """The offset in whole voxels, all that precomputed can hold; what is left over is said.

    Halves are rounded up everywhere, so that all layers of one grid move by the same part of a voxel.
    """
    exact = np.round(np.array(geometry.offset_nm) / np.array(geometry.voxel_size_nm), 3)
    z, y, x = np.floor(exact + 0.5).astype(int).tolist()
    shift = ((z, y, x) - exact) * np.array(geometry.voxel_size_nm)
    if shift.any():
        LOG.warning(
            "%s: its offset is no whole number of voxels, so it is exported %s nm (z, y, x) beside its place: "
            "precomputed holds whole voxels only, `lsdflow export ome` writes the exact offset",
            where,
            ", ".join(f"{length:g}" for length in shift),
        )
    return z, y, x
