"""Skeletons made from truth, where none were traced: simple, documented, good enough to compare segmentations.

1. Truth is taken on a coarse lattice of voxels (every k-th voxel), so that every node is in its neuron.
2. Each neuron is thinned to one voxel width (scikit-image `skeletonize`, Lee 1994), inside its own bounding box.
3. Neighbouring skeleton voxels (26-neighbourhood) are joined; of their graph only the minimum spanning forest by
   length stays, so loops of thick places vanish.

Neurons whose skeleton has no edge (specks) are left out.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree
from skimage.morphology import skeletonize

from lsdflow_contract.geometry import Box, Geometry, Nm3, Vox3
from lsdflow_evaluate.lattice import strided
from lsdflow_evaluate.scores.run_length import Skeletons
from lsdflow_runtime.io.target import Truth

# One of each pair of opposite neighbours: 13 of 26.
_HALF_OF_26 = [step for step in itertools.product((-1, 0, 1), repeat=3) if step > (0, 0, 0)]


def thin_truth(truth: Truth, box: Box, grid: Geometry, step: Vox3) -> Skeletons:
    """Skeletons of the truth in a box, from every step-th voxel."""
    spacing: Nm3 = tuple(s * v for s, v in zip(step, grid.voxel_size_nm, strict=True))  # type: ignore[assignment]
    middle = tuple(b + 0.5 for b in box.begin_vox)
    first: Nm3 = tuple(o + m * v for o, m, v in zip(grid.offset_nm, middle, grid.voxel_size_nm, strict=True))  # type: ignore[assignment]
    return skeletons_of(strided(truth.read, truth.labels.chunk_shape_vox, box, step), spacing, first)


def lattice_points(box: Box, step: Vox3) -> int:
    """How many points the lattice of a box has: all of them are held in memory."""
    return int(np.prod([-(-n // s) for n, s in zip(box.shape_vox, step, strict=True)]))


def skeletons_of(labels: NDArray[np.uint64], spacing_nm: Nm3, first_nm: Nm3) -> Skeletons:
    """Skeletons of all labels > 0.

    `labels` uint64 (z, y, x) on a lattice with `spacing_nm` between its voxels, the first of which has its centre at
    `first_nm`. Positions are voxel centres, nm.
    """
    names = np.union1d(labels, np.zeros(1, np.uint64))
    dense = np.searchsorted(names, labels).astype(np.int32)
    voxels, neurons, edges, nodes = [], [], [], 0
    for number, box in enumerate(ndimage.find_objects(dense), start=1):
        if box is None:
            continue
        place, pairs = _thin(dense[box] == number, spacing_nm)
        if not len(pairs):
            continue
        voxels.append(place + np.array([part.start for part in box]))
        neurons.append(np.full(len(place), names[number], np.uint64))
        edges.append(pairs + nodes)
        nodes += len(place)
    if not voxels:
        return Skeletons(np.zeros((0, 3)), np.zeros(0, np.uint64), np.zeros((0, 2), np.int64))
    positions = np.concatenate(voxels) * np.array(spacing_nm) + np.array(first_nm)
    return Skeletons(positions, np.concatenate(neurons), np.concatenate(edges))


def lattice_step_vox(voxel_size_nm: Nm3) -> Vox3:
    """Voxels between lattice points: a lattice as isotropic as can be, not finer than two of the shortest edges."""
    wanted = max(2 * min(voxel_size_nm), *voxel_size_nm)
    z, y, x = (max(1, round(wanted / size)) for size in voxel_size_nm)
    return z, y, x


def _thin(body: NDArray[np.bool_], spacing_nm: Nm3) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Skeleton of one body: voxels int64 (n, 3) that have an edge, and edges int64 (m, 2) of a spanning forest."""
    thinned: NDArray[np.bool_] = skeletonize(np.pad(body, 1))  # type: ignore[no-untyped-call]
    skeleton = thinned[1:-1, 1:-1, 1:-1].astype(bool)
    place = np.argwhere(skeleton)
    if len(place) < 2:
        return place, np.zeros((0, 2), np.int64)
    number = np.full(np.array(body.shape) + 2, -1, np.int64)
    number[1:-1, 1:-1, 1:-1][skeleton] = np.arange(len(place))
    lower, upper, length = [], [], []
    for step in _HALF_OF_26:
        z, y, x = (place + 1 + np.array(step)).T
        neighbour = number[z, y, x]
        there = neighbour >= 0
        lower.append(np.flatnonzero(there))
        upper.append(neighbour[there])
        length.append(np.full(there.sum(), float(np.linalg.norm(np.multiply(step, spacing_nm)))))
    tree = _spanning_forest(np.concatenate(lower), np.concatenate(upper), np.concatenate(length), len(place))
    used, dense = np.unique(tree, return_inverse=True)
    return place[used], dense.reshape(-1, 2).astype(np.int64)


def _spanning_forest(
    lower: NDArray[np.int64], upper: NDArray[np.int64], length: NDArray[np.float64], nodes: int
) -> NDArray[np.int64]:
    graph = coo_array((length, (lower, upper)), shape=(nodes, nodes)).tocsr()
    tree = minimum_spanning_tree(graph).tocoo()
    return np.stack([tree.row, tree.col], axis=1).astype(np.int64)
