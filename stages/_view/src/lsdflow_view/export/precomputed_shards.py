"""Shards of a precomputed volume (neuroglancer_uint64_sharded_v1): many chunks in one file. 10^12 voxels then need
about 60,000 files (of 256^3 voxels) instead of 4 million.

Chunks are numbered along a space-filling curve (compressed Morton code). A shard holds 2^SHARD_BITS consecutive
chunks, which form a box: 4 x 4 x 4 chunks, or longer along the other axes where the volume is thin. cloud-volume
computes the curve and writes the file format.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from cloudvolume import Bbox, CloudVolume, chunks
from cloudvolume.datasource.precomputed.sharding import ShardingSpecification

from lsdflow_contract.geometry import Box, Vox3

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
