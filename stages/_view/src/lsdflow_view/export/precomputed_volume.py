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

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from cloudvolume import Bbox, CloudVolume, chunks
from cloudvolume.datasource.precomputed.sharding import ShardingSpecification

from lsdflow_contract.files import storage_errors, write_atomically
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_contract.hashing import hash_of
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_view.export.levels import Layer, Level, Read, coarser_values
from lsdflow_view.export.passes import ExportPass, ReadBack, Write

CHUNK_VOX = 64
BLOCK_VOX = 128
SHARD_BITS = 6
_ENCODINGS = {"image": "raw", "labels": "compressed_segmentation"}
_TYPES = {"image": "image", "labels": "segmentation"}
# Folders that the info file names in addition to the levels.
_OF_SEGMENTS = ("mesh", "skeletons", "segment_properties")


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
        encoded[code] = encoded_chunk(volume, mip, values[x, y, z])
    name, content = image.make_shard(encoded, box, mip=mip)
    return str(name), bytes(content)


def encoded_chunk(volume: CloudVolume, mip: int, values: npt.NDArray[Any]) -> bytes:
    """The content of one chunk (x, y, z, channel)."""
    meta = volume.image.meta
    content: bytes = chunks.encode(
        values,
        meta.encoding(mip),
        block_size=meta.compressed_segmentation_block_size(mip),
        compression_params=meta.compression_params(mip),
    )
    return content


def _chunk_counts(box: Box) -> tuple[int, ...]:
    return tuple(-(-edge // CHUNK_VOX) for edge in box.shape_vox)


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

    def passes(self) -> list[ExportPass]:
        """One pass per level, which writes its blocks."""
        return [self._pass(level) for level in self.levels]

    def open(self, number: int) -> CloudVolume:
        """One level as a CloudVolume."""
        return CloudVolume(
            f"precomputed://file://{self.folder}", mip=number, info=self.info(), compress=False, progress=False
        )

    def reader(self, number: int) -> Read:
        """Open a level; the function returns the values of a box that is already written, ([c,] z, y, x)."""
        return partial(self._read, self.open(number))

    def _read(self, opened: CloudVolume, box: Box) -> npt.NDArray[Any]:
        values = np.asarray(opened[_xyz_slices(box)])
        return values.T if self.layer.volume.channels else values[..., 0].T

    def _pass(self, level: Level) -> ExportPass:
        folder = self._level_folder(level)
        return ExportPass(
            name=f"{self.layer.name}-{level.number}",
            key=self.key,
            # Blocks of whole files (shards or chunks), so that no two processes write the same file.
            plan=BlockPlan(level.box, shard_shape_vox(level.box) if self.sharded else (BLOCK_VOX,) * 3),
            folder=folder,
            begin=lambda: not folder.is_dir(),
            open=partial(self._open_pass, level),
        )

    @contextmanager
    def _open_pass(self, level: Level) -> Iterator[Write]:
        target, values_of = self.open(level.number), self._source(level)

        def write(block: Block) -> None:
            values = values_of(block.write)
            with storage_errors(self.folder):
                self._put(target, level, block.write, values)
                read = partial(self._read, target, block.write)
                self.read_back.require(block.number, values, read, f"{self.folder} {block}")

        yield write

    def _source(self, level: Level) -> Read:
        """Computes the values of a box of a level, from the source or from the finer level."""
        if level.number == 0:
            to_source = _opposite(self.levels[0].box.begin_vox)
            return lambda box: self.layer.volume.read(box.translate(to_source))
        finer = self.levels[level.number - 1]
        read = self.reader(finer.number)
        return lambda box: coarser_values(read, box, level, finer, self.layer.reduction)

    def _put(self, target: CloudVolume, level: Level, box: Box, values: npt.NDArray[Any]) -> None:
        """Write the files of a block: one shard, or its chunks."""
        xyzc = values.T if self.layer.volume.channels else values.T[..., np.newaxis]
        if self.sharded:
            files = [shard_of(target, level.number, _xyz_slices(box), xyzc)]
        else:
            chunks_ = [chunk.write for chunk in BlockPlan(box, (CHUNK_VOX,) * 3).blocks()]
            local = [_xyz_slices(chunk.translate(_opposite(box.begin_vox))) for chunk in chunks_]
            files = [
                (_chunk_name(chunk), encoded_chunk(target, level.number, xyzc[place]))
                for chunk, place in zip(chunks_, local, strict=True)
            ]
        for name, content in files:
            write_atomically(self._level_folder(level) / name, partial(_put_content, content))

    def _level_folder(self, level: Level) -> Path:
        return self.folder / str(self._scale(level)["key"])

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


def _xyz_slices(box: Box) -> tuple[slice, slice, slice]:
    z, y, x = box.slices()
    return x, y, z


def _chunk_name(box: Box) -> str:
    spans = zip(box.begin_vox[::-1], box.end_vox[::-1], strict=True)
    return "_".join(f"{begin}-{end}" for begin, end in spans)


def _opposite(vox: Vox3) -> Vox3:
    z, y, x = vox
    return -z, -y, -x


def _put_content(content: bytes, file: BinaryIO) -> None:
    file.write(content)
