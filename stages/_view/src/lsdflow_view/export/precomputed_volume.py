"""One layer as a neuroglancer precomputed volume, level by level, written and read by cloud-volume.

OUT/<layer>/<resolution>/...   chunks: raw for images, compressed_segmentation for labels; no further compression,
                               so that any web server and any reader (tensorstore, neuroglancer, igneous) can serve
                               them; or shards of such chunks

Shards (neuroglancer_uint64_sharded_v1) hold many chunks in one file: 10^12 voxels need about 60,000 files (of 256^3
voxels) instead of 4 million. Chunks are numbered along a space-filling curve (compressed Morton code). A shard holds
2^SHARD_BITS consecutive chunks, which form a box: 4 x 4 x 4 chunks, or longer along the other axes where the volume is
thin. cloud-volume computes the curve and writes the file format.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cloudvolume import Bbox, CloudVolume, chunks
from cloudvolume.datasource.precomputed.sharding import ShardingSpecification

from lsdflow_contract.files import storage_errors, write_atomically
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_contract.hashing import hash_of
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.io.chunk_files import make_durable
from lsdflow_view.export.levels import Layer, Level, coarser_values
from lsdflow_view.export.passes import ReadBack, Work

CHUNK_VOX = 64
SHARD_BITS = 6


def sharding(box: Box) -> dict[str, Any]:
    """The `sharding` entry of a scale in the info file. Chunks are compressed (gzip) within the shard."""
    bits = sum((count - 1).bit_length() for count in _chunk_counts(box))
    return {
        "@type": "neuroglancer_uint64_sharded_v1",
        "preshift_bits": SHARD_BITS,
        "hash": "identity",
        "minishard_bits": 0,
        "shard_bits": max(0, bits - SHARD_BITS),
        "minishard_index_encoding": "gzip",
        "data_encoding": "gzip",
    }


def shard_shape_vox(box: Box) -> Vox3:
    """Shape (z, y, x) of the shards of a level; the first shard begins at the first voxel of the level."""
    spec = ShardingSpecification.from_dict(sharding(box))
    x, y, z = (int(edge) for edge in spec.image_shard_shape(box.shape_vox[::-1], (CHUNK_VOX,) * 3))
    return z, y, x


def shard_of(volume: CloudVolume, mip: int, place: tuple[slice, ...], values: npt.NDArray[Any]) -> tuple[str, bytes]:
    """Name and content of the shard that holds `values` (x, y, z, channel) at `place`: one whole shard.

    Chunks are encoded one by one, because cloud-volume itself would write the same empty chunk for all empty ones, even
    where the end of the volume cuts a chunk.
    """
    box = Bbox([part.start for part in place], [part.stop for part in place])
    image, encoded = volume.image, {}
    points, codes = image.morton_codes(box, mip=mip)
    corner = np.min(points, axis=0)
    for point, code in zip(points, codes, strict=True):
        x, y, z = (slice(b, b + CHUNK_VOX) for b in (np.asarray(point) - corner) * CHUNK_VOX)
        encoded[code] = chunks.encode(
            values[x, y, z],
            image.meta.encoding(mip),
            block_size=image.meta.compressed_segmentation_block_size(mip),
            compression_params=image.meta.compression_params(mip),
        )
    name, content = image.make_shard(encoded, box, mip=mip)
    return str(name), bytes(content)


def _chunk_counts(box: Box) -> tuple[int, ...]:
    return tuple(-(-edge // CHUNK_VOX) for edge in box.shape_vox)


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
