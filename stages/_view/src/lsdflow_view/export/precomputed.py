"""Export to neuroglancer precomputed, written by cloud-volume: one folder a layer, several levels (mips).

OUT/<layer>/info               type, resolution (nm) and voxel_offset of each level; x, y, z order
OUT/<layer>/<resolution>/...   chunks: raw for images, compressed_segmentation for labels; not compressed beyond that,
                               so that any web server and any reader (tensorstore, neuroglancer, igneous) can serve them
OUT/<layer>/mesh, skeletons    of chosen segments (shapes)
OUT/lsdflow_export.json        what is finished

Levels are halved on the grid of the world, as viewers expect: voxel 5 of level 0 lies in voxel 2 of level 1, wherever
the volume begins.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cloudvolume import CloudVolume

from lsdflow_contract.errors import BadData
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import read_json, storage_errors, write_json
from lsdflow_contract.geometry import Box, whole_voxels
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import Writer
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.chunk_files import make_durable
from lsdflow_view.export.coarser import coarser_values
from lsdflow_view.export.folder import BlockWork, close_folder, export_folder, run_works
from lsdflow_view.export.layers import Layer, open_layers
from lsdflow_view.export.pyramid import Level, level_count, pyramid

CHUNK_VOX = 64
BLOCK_VOX = 128
RECORD = "lsdflow_export.json"
_ENCODINGS = {"image": "raw", "labels": "compressed_segmentation"}
_TYPES = {"image": "image", "labels": "segmentation"}


@dataclass(frozen=True)
class PrecomputedLayer:
    """One layer on its way into one precomputed volume; boxes are on the grid of the world (voxel_offset included)."""

    layer: Layer
    folder: Path
    levels: tuple[Level, ...]

    @cached_property
    def key(self) -> str:
        """Names what is exported: the data, and how it is cut into levels."""
        return hash_of(
            {
                "format": "precomputed",
                "layer": self.layer.name,
                "identity": self.layer.identity,
                "scales": [self._scale(level) for level in self.levels],
            }
        )

    def info(self) -> dict[str, Any]:
        """The info file; names of folders with meshes and skeletons where there are some."""
        volume, kind = self.layer.volume, self.layer.kind
        shapes = {name: name for name in ("mesh", "skeletons") if (self.folder / name).is_dir()}
        return {
            "@type": "neuroglancer_multiscale_volume",
            "type": _TYPES[kind],
            "data_type": volume.dtype.name,
            "num_channels": max(1, volume.channels),
            "scales": [self._scale(level) for level in self.levels],
            **(shapes if kind == "labels" else {}),
        }

    def works(self) -> list[BlockWork]:
        """The blocks of all levels."""
        return [self._work(level) for level in self.levels]

    def open(self, number: int) -> CloudVolume:
        """One level, as cloud-volume has it."""
        return CloudVolume(
            f"precomputed://file://{self.folder}", mip=number, info=self.info(), compress=False, progress=False
        )

    def read(self, number: int, box: Box) -> npt.NDArray[Any]:
        """Values of a level that is written, ([c,] z, y, x)."""
        values = np.asarray(self._opened(number)[_xyz_slices(box)])
        return values.T if self.layer.volume.channels else values[..., 0].T

    def _work(self, level: Level) -> BlockWork:
        return BlockWork(
            name=f"{self.layer.name}-{level.number}",
            key=self.key,
            plan=BlockPlan(level.box, (BLOCK_VOX,) * 3),
            begin=lambda: not (self.folder / self._scale(level)["key"]).is_dir(),
            write=lambda block: self._write(level, block),
        )

    def _write(self, level: Level, block: Block) -> None:
        if level.number == 0:
            begin = self.levels[0].box.begin_vox
            own = block.write.translate((-begin[0], -begin[1], -begin[2]))
            values = self.layer.volume.read(own)
        else:
            finer = self.levels[level.number - 1]
            values = coarser_values(
                lambda box: self.read(finer.number, box), block.write, level, finer, self.layer.reduction
            )
        target = values.T if self.layer.volume.channels else values.T[..., np.newaxis]
        with storage_errors(self.folder):
            self._opened(level.number)[_xyz_slices(block.write)] = target
            make_durable(self.folder, self._chunk_files(level, block.write))

    def _chunk_files(self, level: Level, box: Box) -> list[Path]:
        folder = self.folder / self._scale(level)["key"]
        chunks = [chunk.write for chunk in BlockPlan(box, (CHUNK_VOX,) * 3).blocks()]
        spans = [zip(chunk.begin_vox[::-1], chunk.end_vox[::-1], strict=True) for chunk in chunks]
        return [folder / "_".join(f"{begin}-{end}" for begin, end in span) for span in spans]

    def _scale(self, level: Level) -> dict[str, Any]:
        resolution = [int(size) if size.is_integer() else size for size in reversed(level.voxel_size_nm)]
        labels = self.layer.kind == "labels"
        return {
            "key": "_".join(str(size) for size in resolution),
            "resolution": resolution,
            "voxel_offset": list(level.box.begin_vox[::-1]),
            "size": list(level.box.shape_vox[::-1]),
            "chunk_sizes": [[CHUNK_VOX] * 3],
            "encoding": _ENCODINGS[self.layer.kind],
            **({"compressed_segmentation_block_size": [8, 8, 8]} if labels else {}),
        }

    def _opened(self, number: int) -> CloudVolume:
        if number not in self._volumes:
            self._volumes[number] = self.open(number)
        return self._volumes[number]

    @cached_property
    def _volumes(self) -> dict[int, CloudVolume]:
        return {}


def export_precomputed(experiment: Experiment, out: Path, named: tuple[str, ...], count: int | None) -> int:
    """Write the named layers (none: the usual ones) below `out`; returns how many blocks were written."""
    layers = [_on_the_way(layer, out, count) for layer in open_layers(experiment, named)]
    finished, keys = _finished_layers(out), {layer.layer.name: layer.key for layer in layers}
    with export_folder(out, finished, keys) as under_way:
        left = [layer for layer in layers if layer.layer.name not in (finished or {})]
        written = run_works("export precomputed", under_way, [work for layer in left for work in layer.works()])
        for layer in layers:
            write_json(layer.folder / "info", layer.info())
        record = {"written_by": Writer.of("view").model_dump(), "layers": {**(finished or {}), **keys}}
        write_json(out / RECORD, record)
    close_folder(out)
    return written


def _on_the_way(layer: Layer, out: Path, count: int | None) -> PrecomputedLayer:
    geometry = layer.volume.geometry
    where = f"offset of {layer.volume.where}"
    box = geometry.box.translate(whole_voxels(geometry.offset_nm, geometry.voxel_size_nm, where))
    count = count or level_count(geometry.voxel_size_nm, box)
    return PrecomputedLayer(layer, out / layer.name, pyramid(geometry.voxel_size_nm, box, count))


def _finished_layers(out: Path) -> dict[str, str] | None:
    """Key of each layer of a finished export; None if there is none."""
    record = out / RECORD
    if not record.is_file():
        return None
    layers = read_json(record).get("layers")
    if not isinstance(layers, dict):
        raise BadData("damaged record of an export", where=record, hint="export to another folder")
    return dict(layers)


def _xyz_slices(box: Box) -> tuple[slice, slice, slice]:
    z, y, x = box.slices()
    return x, y, z
