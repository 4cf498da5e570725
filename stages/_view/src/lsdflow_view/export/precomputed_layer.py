"""One layer as a neuroglancer precomputed volume, level by level, written and read by cloud-volume."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cloudvolume import CloudVolume

from lsdflow_contract.files import storage_errors, write_atomically
from lsdflow_contract.geometry import Box
from lsdflow_contract.hashing import hash_of
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.io.chunk_files import make_durable
from lsdflow_view.export.coarser import coarser_values
from lsdflow_view.export.folder import Work
from lsdflow_view.export.layers import Layer
from lsdflow_view.export.precomputed_shards import CHUNK_VOX, shard_of, shard_shape_vox, sharding
from lsdflow_view.export.pyramid import Level
from lsdflow_view.export.read_back import ReadBack

BLOCK_VOX = 128
_ENCODINGS = {"image": "raw", "labels": "compressed_segmentation"}
# Folders that the info file names in addition to the levels.
_OF_SEGMENTS = ("mesh", "skeletons", "segment_properties")
_TYPES = {"image": "image", "labels": "segmentation"}


@dataclass(frozen=True)
class PrecomputedLayer:
    """The export of one layer to a precomputed volume; boxes are on the grid of the world (voxel_offset included)."""

    layer: Layer
    folder: Path
    levels: tuple[Level, ...]
    read_back: ReadBack
    sharded: bool

    @cached_property
    def key(self) -> str:
        """Identifies the exported data and its division into levels."""
        return hash_of(
            {
                "format": "precomputed",
                "layer": self.layer.name,
                "identity": self.layer.identity,
                "scales": [self._scale(level) for level in self.levels],
            }
        )

    def info(self) -> dict[str, Any]:
        """The content of the info file, with the folders of meshes and skeletons if they exist."""
        volume, kind = self.layer.volume, self.layer.kind
        shapes = {name: name for name in _OF_SEGMENTS if (self.folder / name).is_dir()}
        return {
            "@type": "neuroglancer_multiscale_volume",
            "type": _TYPES[kind],
            "data_type": volume.dtype.name,
            "num_channels": max(1, volume.channels),
            "scales": [self._scale(level) for level in self.levels],
            **(shapes if kind == "labels" else {}),
        }

    def works(self) -> list[Work]:
        """One pass per level, which writes its blocks."""
        return [self._work(level) for level in self.levels]

    def open(self, number: int) -> CloudVolume:
        """One level as a CloudVolume."""
        return CloudVolume(
            f"precomputed://file://{self.folder}", mip=number, info=self.info(), compress=False, progress=False
        )

    def read(self, number: int, box: Box) -> npt.NDArray[Any]:
        """Values of a level that is already written, ([c,] z, y, x)."""
        values = np.asarray(self._opened(number)[_xyz_slices(box)])
        return values.T if self.layer.volume.channels else values[..., 0].T

    def _work(self, level: Level) -> Work:
        folder = self.folder / self._scale(level)["key"]
        return Work(
            name=f"{self.layer.name}-{level.number}",
            key=self.key,
            count=len(self._plan(level)),
            folder=folder,
            begin=lambda: not folder.is_dir(),
            write=partial(self._write, level),
        )

    def _plan(self, level: Level) -> BlockPlan:
        """Blocks of whole files (shards or chunks), so that no two processes write the same file."""
        return BlockPlan(level.box, shard_shape_vox(level.box) if self.sharded else (BLOCK_VOX,) * 3)

    def _write(self, level: Level, number: int) -> None:
        block = self._plan(level).block(number)
        values = self._values(level, block.write)
        with storage_errors(self.folder):
            self._put(level, block.write, values)
            self.read_back.require(
                number, values, lambda: self.read(level.number, block.write), f"{self.folder} {block}"
            )
            if not self.sharded:
                make_durable(self.folder, self._chunk_files(level, block.write))

    def _values(self, level: Level, box: Box) -> npt.NDArray[Any]:
        if level.number == 0:
            begin = self.levels[0].box.begin_vox
            return self.layer.volume.read(box.translate((-begin[0], -begin[1], -begin[2])))
        finer = self.levels[level.number - 1]
        return coarser_values(lambda part: self.read(finer.number, part), box, level, finer, self.layer.reduction)

    def _put(self, level: Level, box: Box, values: npt.NDArray[Any]) -> None:
        target = values.T if self.layer.volume.channels else values.T[..., np.newaxis]
        opened = self._opened(level.number)
        if self.sharded:
            name, content = shard_of(opened, level.number, _xyz_slices(box), target)
            path = self.folder / self._scale(level)["key"] / name
            write_atomically(path, lambda file: file.write(content))
        else:
            opened[_xyz_slices(box)] = target

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
            **({"sharding": sharding(level.box)} if self.sharded else {}),
        }

    def _opened(self, number: int) -> CloudVolume:
        if number not in self._volumes:
            self._volumes[number] = self.open(number)
        return self._volumes[number]

    @cached_property
    def _volumes(self) -> dict[int, CloudVolume]:
        return {}


def _xyz_slices(box: Box) -> tuple[slice, slice, slice]:
    z, y, x = box.slices()
    return x, y, z
