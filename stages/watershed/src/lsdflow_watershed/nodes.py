"""Nodes of the region graph: one per fragment, with its size and centre of mass."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.geometry import Geometry, Vox3
from lsdflow_contract.graph import RagNodes
from lsdflow_runtime.compiled import compiled


def fragment_nodes(numbers: NDArray[np.uint64], count: int, first_id: int, begin_vox: Vox3, grid: Geometry) -> RagNodes:
    """Measure the fragments of one block.

    The centre is the mean voxel index times the voxel size, plus the offset of the volume: the
    convention of the published graphs (no half voxel is added). Sums are integers, so the result
    does not depend on any order.

    :param numbers: (z, y, x) local numbers 1..count of the block, 0 = none; each number occurs.
    :param first_id: id of number 1; number n has id first_id + n - 1.
    :param begin_vox: index of the first voxel of the block on `grid`.
    :param grid: the grid of the target volume, for positions in nm.
    """
    size, total = _sizes_and_sums(numbers, count)
    ids = np.arange(count, dtype=np.uint64) + np.uint64(first_id)
    return _nodes(ids, size[1:], total[1:], begin_vox, grid)


def partial_nodes(numbers: NDArray[np.uint32], ids: NDArray[np.uint64], begin_vox: Vox3, grid: Geometry) -> RagNodes:
    """Measure the parts of fragments in a block: size and centre of these voxels only, to be summed over blocks.

    :param numbers: (z, y, x) numbers below n, 0 = none; not all of them occur.
    :param ids: (n,) id of each number, ascending.
    :returns: one row for each number that occurs, ascending.
    """
    size, total = _sizes_and_sums(numbers, len(ids) - 1)
    there = size > 0
    there[0] = False
    return _nodes(ids[there], size[there], total[there], begin_vox, grid)


def _nodes(
    ids: NDArray[np.uint64], size: NDArray[np.int64], total: NDArray[np.int64], begin_vox: Vox3, grid: Geometry
) -> RagNodes:
    center_vox = total / np.maximum(size[:, None], 1) + np.asarray(begin_vox, np.float64)
    center_nm = np.asarray(grid.offset_nm) + center_vox * np.asarray(grid.voxel_size_nm)
    return RagNodes(id=ids, center_nm=center_nm, size_vox=size.astype(np.uint64))


@compiled
def _sizes_and_sums(
    numbers: NDArray[np.uint32] | NDArray[np.uint64], count: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    size = np.zeros(count + 1, np.int64)
    total = np.zeros((count + 1, 3), np.int64)
    nz, ny, nx = numbers.shape
    for z in range(nz):
        for y in range(ny):
            for x in range(nx):
                number = numbers[z, y, x]
                size[number] += 1
                total[number, 0] += z
                total[number, 1] += y
                total[number, 2] += x
    return size, total
