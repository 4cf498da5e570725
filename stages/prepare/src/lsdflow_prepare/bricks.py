"""Cutting a volume in bricks: whole chunks of the output, few decodes of the input, bounded memory.

A brick is at least one input chunk, rounded up to whole output chunks, then grown along x, y and z as memory allows:
long rows read fastest, and slices of TIFF are decoded once where a whole plane fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from lsdflow_contract.geometry import Box, Vox3

MEMORY_BYTES = 512 << 20


def brick_shape(shape_vox: Vox3, chunk_vox: int, bytes_per_voxel: int, source_chunk_vox: Vox3 | None = None) -> Vox3:
    """Edge lengths of a brick: multiples of `chunk_vox`, within memory unless one chunk alone is more."""
    limit = max(MEMORY_BYTES // bytes_per_voxel, chunk_vox**3)
    whole = [_round_up(length, chunk_vox) for length in shape_vox]
    wanted = source_chunk_vox or (chunk_vox,) * 3
    edges = [min(_round_up(length, chunk_vox), most) for length, most in zip(wanted, whole, strict=True)]
    for axis in (0, 1, 2):
        while edges[0] * edges[1] * edges[2] > limit and edges[axis] > chunk_vox:
            edges[axis] = _round_up(edges[axis] // 2, chunk_vox)
    for axis in (2, 1):
        others = edges[0] * edges[1] * edges[2] // edges[axis]
        edges[axis] = max(edges[axis], min(whole[axis], limit // others // chunk_vox * chunk_vox))
    return (edges[0], edges[1], edges[2])


def bricks(shape_vox: Vox3, edge_vox: Vox3) -> list[Box]:
    """Bricks in order of z, y, x; those at the end are cut off there."""
    return list(_bricks(shape_vox, edge_vox))


def _bricks(shape_vox: Vox3, edge_vox: Vox3) -> Iterator[Box]:
    for z, y, x in product(*(range(0, n, e) for n, e in zip(shape_vox, edge_vox, strict=True))):
        end = tuple(min(b + e, n) for b, e, n in zip((z, y, x), edge_vox, shape_vox, strict=True))
        yield Box.from_bounds((z, y, x), (end[0], end[1], end[2]))


def _round_up(length: int, step: int) -> int:
    return max(step, -(-length // step) * step)
