"""Names of fragments: local numbers within a block, ids that are unique in the whole volume.

Mode `blocks` (the published way):

    id = row-major block number * voxels per block + local number,   local number = 1, 2, ...

A block has at most as many fragments as voxels, so ids of two blocks never meet, and the block
that made a fragment can be read from its id: (id - 1) // voxels per block.
"""

from __future__ import annotations

import cc3d
import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import ConfigError
from lsdflow_runtime.compiled import compiled

ID_LIMIT = 2**63


def number_components(fragments: NDArray[np.uint32]) -> tuple[NDArray[np.uint64], int]:
    """Give every face-connected piece of a fragment its own local number.

    Cropping cuts some fragments into pieces that only meet outside the block.

    :param fragments: (z, y, x), 0 = none.
    :returns: (z, y, x) u64 numbers 1..n in the order of their first voxel (z, y, x), and n.
    """
    if not fragments.any():
        return np.zeros(fragments.shape, np.uint64), 0
    pieces, count = cc3d.connected_components(
        np.ascontiguousarray(fragments), connectivity=6, return_N=True, out_dtype=np.uint32
    )
    flat = pieces.astype(np.uint32, copy=False).ravel()
    return _number_by_first_voxel(flat, int(count)).reshape(fragments.shape), int(count)


@compiled
def _number_by_first_voxel(pieces: NDArray[np.uint32], count: int) -> NDArray[np.uint64]:
    number = np.zeros(count + 1, np.uint64)
    out = np.zeros(pieces.size, np.uint64)
    known = np.uint64(0)
    for voxel in range(pieces.size):
        piece = pieces[voxel]
        if piece == 0:
            continue
        if number[piece] == 0:
            known += np.uint64(1)
            number[piece] = known
        out[voxel] = number[piece]
    return out


def global_ids(numbers: NDArray[np.uint64], block_number: int, voxels_per_block: int) -> NDArray[np.uint64]:
    """Turn local numbers (0 = none) into ids that are unique in the volume; 0 stays 0."""
    start = np.uint64(block_number * voxels_per_block)
    return np.where(numbers > 0, numbers + start, np.uint64(0))


def check_id_range(block_count: int, voxels_per_block: int) -> None:
    """Refuse a volume whose largest possible fragment id does not fit a signed 64-bit integer.

    :raises ConfigError: names the largest id and the limit. Stores keep ids as signed integers.
    """
    largest = block_count * voxels_per_block
    if largest >= ID_LIMIT:
        raise ConfigError(
            "fragment ids do not fit into 64 bits",
            wanted=f"largest id below 2^63 = {ID_LIMIT}",
            found=f"{block_count} blocks of {voxels_per_block} voxels: largest id {largest}",
            hint="choose a block_shape that wastes fewer voxels outside the volume",
        )
