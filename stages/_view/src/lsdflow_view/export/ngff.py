"""Export to OME-NGFF 0.5 (zarr 3): the raw data as image, segmentations as labels, network outputs as channel images.

OUT/zarr.json                  group: multiscales of raw
OUT/0, 1, 2 ...                raw, level by level
OUT/labels/<name>/0, 1 ...     fragments, segmentation, truth: as many levels
OUT/images/<name>/0, 1 ...     lsds, affinities (c, z, y, x)

Each block is a whole chunk file (shard) of the target, written once. The metadata are written last, so an unfinished
export is not an image yet. They are under `ome` in the attributes of the groups; lengths are in nanometers. The
translation of a level is the position of the centre of its voxel 0, in a world in which level 0 begins at the volume's
offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.arrays import ArraySpec
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import read_json
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import Writer
from lsdflow_contract.no_experiment import OME_RECORD
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.formats.folders import json_object
from lsdflow_runtime.formats.ngff import image_metadata, labels_metadata, write_group
from lsdflow_runtime.io.volumes import OutputArray, Volume, open_volume
from lsdflow_view.export.levels import (
    USUAL,
    Layer,
    Level,
    Read,
    centre_translation_nm,
    coarser_values,
    level_count,
    level_geometry,
    open_layer,
    open_layers,
    pyramid,
)
from lsdflow_view.export.passes import ExportPass, PassRunner, ReadBack, Write, close_folder, export_folder, record_keys

PROVENANCE = "lsdflow"


def image_folder(out: Path, name: str, kind: str) -> Path:
    """The folder of the multiscale image of a layer: `out` itself for raw, a folder in `out` for the others."""
    if name == "raw":
        return out
    return out / ("labels" if kind == "labels" else "images") / name


def finished_layers(out: Path) -> dict[str, str] | None:
    """Key of each layer of a finished export; None if `out` holds none."""
    layers = json_object(out / OME_RECORD).get("attributes", {}).get(PROVENANCE, {}).get("layers")
    return dict(layers) if isinstance(layers, dict) else None


def multiscale_of(folder: Path) -> dict[str, Any]:
    """The `multiscales` entry of an exported image: its axes and its levels."""
    (found,) = read_json(folder / OME_RECORD)["attributes"]["ome"]["multiscales"]
    return dict(found)


def open_levels(folder: Path) -> list[Volume]:
    """The levels of an exported image, finest first."""
    return [open_volume(folder, level["path"]) for level in multiscale_of(folder)["datasets"]]


class _NgffArray(ArraySpec):
    """An array whose dimensions have the names of its OME axes."""

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the axes; the channel axis is `c`."""
        return ("c", "z", "y", "x") if self.channels else ("z", "y", "x")


@dataclass(frozen=True)
class _Image:
    """The export of one layer to one multiscale image."""

    layer: Layer
    folder: Path
    levels: tuple[Level, ...]
    read_back: ReadBack

    @cached_property
    def key(self) -> str:
        """Identifies the exported data and its division into levels."""
        source = self.layer.volume
        return hash_of(
            {
                "format": "ome 0.5",
                "layer": self.layer.name,
                "identity": self.layer.identity,
                "offset_nm": source.geometry.offset_nm,
                "levels": [[level.step, level.voxel_size_nm, level.box.shape_vox] for level in self.levels],
                "write_shape_vox": source.chunk_shape_vox,
            }
        )

    def array(self, level: Level) -> OutputArray:
        """The array of a level, with the write unit of the source."""
        source = self.layer.volume
        spec = _NgffArray(str(level.number), source.dtype.name, source.channels, self.layer.kind)
        grid = level_geometry(source.geometry, level)
        return OutputArray(self.folder, spec, grid, grid.box, source.chunk_shape_vox)

    def passes(self) -> list[ExportPass]:
        """One pass per level, which writes its blocks."""
        return [self._pass(level) for level in self.levels]

    def provenance(self) -> dict[str, Any]:
        """The lsdflow block of each array."""
        return {
            "contract": CONTRACT_VERSION,
            "written_by": Writer.of("view").model_dump(),
            "key": self.key,
            "inputs": {self.layer.name: self.layer.identity},
        }

    def _pass(self, level: Level) -> ExportPass:
        array = self.array(level)
        return ExportPass(
            name=f"{self.layer.name}-{level.number}",
            key=self.key,
            # Blocks of whole files of the target, so that no two processes write the same file.
            plan=BlockPlan(level.box, self.layer.volume.chunk_shape_vox),
            folder=array.folder,
            begin=lambda: array.create(self.provenance()),
            open=partial(self._open_pass, level),
        )

    @contextmanager
    def _open_pass(self, level: Level) -> Iterator[Write]:
        target, values_of = self.array(level).open(), self._source(level)

        def write(block: Block) -> None:
            """Write the voxels of a block, read them back, and flush them to disk."""
            values = values_of(block.write)
            target.write(block.write, values)
            read = partial(target.read, block.write)
            self.read_back.require(block.number, values, read, f"{target.where} {block}")
            target.make_durable(block.write)

        yield write

    def _source(self, level: Level) -> Read:
        """Computes the values of a box of a level, from the source or from the finer level."""
        if level.number == 0:
            return self.layer.volume.read
        finer = self.levels[level.number - 1]
        read = self.array(finer).open().read
        return lambda box: coarser_values(read, box, level, finer, self.layer.reduction)


def export_ome(experiment: Experiment, out: Path, named: tuple[str, ...], count: int | None, workers: int = 1) -> int:
    """Write the named layers (by default the usual ones) to `out`; returns how many blocks were written.

    count: levels of each image; None: until a level fits on a screen. workers: processes that write. raw is always
    written, because labels need an image.
    """
    layers = open_layers(experiment, named)
    if all(layer.name != "raw" for layer in layers):
        layers = (open_layer(experiment, "raw"), *layers)
    raw = layers[0].volume.geometry
    count = count or level_count(raw.voxel_size_nm, raw.box)
    checked = ReadBack.of_fraction(experiment.compute.verify_fraction)
    images = [
        _Image(layer, image_folder(out, layer.name, layer.kind), _levels(layer, count), checked) for layer in layers
    ]
    finished, keys = finished_layers(out), {image.layer.name: image.key for image in images}
    with export_folder(out, finished, keys) as folder:
        record_keys(folder, finished or {}, keys)
        left = [image for image in images if image.layer.name not in (finished or {})]
        passes = [pass_ for image in left for pass_ in image.passes()]
        written = PassRunner(experiment, folder, workers).run(passes)
        _write_metadata(out, images, {**(finished or {}), **keys})
    close_folder(out)
    return written


def _levels(layer: Layer, count: int) -> tuple[Level, ...]:
    geometry = layer.volume.geometry
    return pyramid(geometry.voxel_size_nm, geometry.box, count)


def _write_metadata(out: Path, images: list[_Image], keys: dict[str, str]) -> None:
    """Write the metadata of the groups, that of the export as a whole last."""
    attributes = {image.layer.name: {"ome": _metadata(image)} for image in images}
    for image in images:
        if image.folder != out:
            write_group(image.folder, attributes[image.layer.name])
    labels = [name for name in USUAL if name in keys and name != "raw"]
    if labels:
        write_group(out / "labels", {"ome": labels_metadata(labels)})
    if set(keys) - set(USUAL):
        write_group(out / "images", {})
    write_group(out, {**attributes["raw"], PROVENANCE: {"written_by": Writer.of("view").model_dump(), "layers": keys}})


def _metadata(image: _Image) -> dict[str, Any]:
    source = image.layer.volume
    levels = [(level.voxel_size_nm, centre_translation_nm(source.geometry, level)) for level in image.levels]
    return image_metadata(image.layer.name, image.layer.kind, levels, source.channels)
