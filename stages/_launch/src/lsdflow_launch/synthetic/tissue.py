"""Packed synthetic neuropil: neurites of very different calibre that fill a block without gaps.

1. Centrelines, thick neurites first (neurites.py).
2. Growth. Every centreline point has a radius; a voxel belongs to the point with the smallest ``d^2 - r^2`` (a power
   diagram), so thick and thin tubes coexist and no space is left between them::

        o o o o o o      points of a thick neurite (large r)
       ------------      boundary: pushed away from the large radii
        . . . . . .      points of a thin neurite (small r)

   A coarse grid selects the candidates, then every voxel near a boundary is computed exactly. The positions are first
   displaced by smooth noise, which makes the surfaces wobble.
3. Repair. Only the largest 6-connected component of each neurite is kept; the rest is given to the neighbours, grown
   voxel by voxel so that every label remains one 6-connected object.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from lsdflow_launch.synthetic.neurites import Neurite, place_neurites

Floats32 = NDArray[np.float32]
Labels = NDArray[np.uint64]

GRID_NM = 20.0
GAP_NM = 300.0  # no voxel is further than this from the surface of its tube
FACES = ndimage.generate_binary_structure(3, 1)


@dataclass(frozen=True)
class Tissue:
    """Labels (z,y,x) u64, dense, 1..n, each 6-connected, and the neurite of every label (index label - 1)."""

    labels: Labels
    neurites: tuple[Neurite, ...]


def smooth_noise(
    shape_vox: tuple[int, int, int], wavelength_vox: tuple[float, float, float], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Return a smooth random field (z,y,x) f32 of mean 0 and deviation 1 that varies over `wavelength_vox`."""
    pitch = [max(w / 2.0, 1.0) for w in wavelength_vox]
    coarse = rng.standard_normal([int(n / p) + 4 for n, p in zip(shape_vox, pitch, strict=True)]).astype(np.float32)
    start = rng.uniform(0.0, 1.0, 3)
    for axis, (n, p) in enumerate(zip(shape_vox, pitch, strict=True)):
        coarse = _resample(coarse, axis, start[axis] + np.arange(n) / p)
    field = coarse - coarse.mean()
    return np.asarray(field / max(float(field.std()), 1e-6), np.float32)


def _resample(field: NDArray[np.float32], axis: int, at: NDArray[np.float64]) -> NDArray[np.float32]:
    """Resample with a quadratic B-spline along one axis: continuous first derivative, one matrix product."""
    base = np.floor(at).astype(int)
    t = at - base
    matrix = np.zeros((at.size, field.shape[axis]), np.float32)
    for shift, weight in enumerate(((1 - t) ** 2 / 2, 0.5 + t * (1 - t), t**2 / 2)):
        matrix[np.arange(at.size), base + shift] += weight.astype(np.float32)
    return np.moveaxis(np.tensordot(matrix, field, axes=(1, axis)), 0, axis)


def grow_tissue(
    shape_vox: tuple[int, int, int], voxel_size_nm: tuple[float, float, float], rng: np.random.Generator
) -> Tissue:
    """Return neurites that fill a block of `shape_vox` voxels; the module docstring lists the steps."""
    extent_nm = np.asarray(shape_vox) * np.asarray(voxel_size_nm)
    neurites = place_neurites(extent_nm, rng)
    labels = _power_diagram(neurites, shape_vox, voxel_size_nm, rng)
    labels, kept = _repair(labels, len(neurites))
    return Tissue(labels, tuple(neurites[i] for i in kept))


def _power_diagram(
    neurites: list[Neurite],
    shape_vox: tuple[int, int, int],
    voxel_size_nm: tuple[float, float, float],
    rng: np.random.Generator,
) -> Labels:
    """Return labels (z,y,x) u64, 1..n: the neurite with the least d^2 - r^2 at the displaced position of a voxel."""
    points = np.concatenate([n.points_nm for n in neurites]).astype(np.float32)
    radii = np.concatenate([n.radii_nm for n in neurites]).astype(np.float32)
    owner = np.concatenate([np.full(len(n.radii_nm), i + 1, np.uint64) for i, n in enumerate(neurites)])
    position = _bent_positions_nm(shape_vox, voxel_size_nm, rng).reshape(-1, 3)
    origin = np.minimum(position.min(axis=0), points.min(axis=0)) - GRID_NM
    last = np.maximum(position.max(axis=0), points.max(axis=0)) + 2 * GRID_NM
    grid_shape = tuple(int(n) for n in np.ceil((last - origin) / GRID_NM))
    winner = _winner_on_grid((points - origin) / np.float32(GRID_NM), radii / np.float32(GRID_NM), grid_shape)
    return owner[_best_near(position, points, radii, winner, origin, owner)].reshape(shape_vox)


def _winner_on_grid(points_grid: Floats32, radii_grid: Floats32, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """Return the index of the winning point at every node of a coarse grid (all lengths in grid pitches).

    ``min over p of |x - p|^2 - r_p^2`` separates into one minimum per axis, as in Felzenszwalb and Huttenlocher's
    distance transform; the paraboloids are followed only as far as the largest radius plus a gap can reach.
    """
    cost = np.full(shape, np.inf, np.float32)
    winner = np.zeros(shape, np.int32)
    nodes = tuple(np.rint(points_grid).astype(int).T)
    order = np.argsort(radii_grid)  # ascending: where two points share a node, the thicker one is written last
    nodes = tuple(axis[order] for axis in nodes)
    cost[nodes] = -(radii_grid[order] ** 2)
    winner[nodes] = order
    reach = int(radii_grid.max() + GAP_NM / GRID_NM) + 1
    for axis in range(3):
        source_cost, source_winner = np.moveaxis(cost.copy(), axis, 0), np.moveaxis(winner.copy(), axis, 0)
        cost_view, winner_view = np.moveaxis(cost, axis, 0), np.moveaxis(winner, axis, 0)
        for step in range(1, min(reach, shape[axis] - 1) + 1):
            for to, of in ((slice(step, None), slice(0, -step)), (slice(0, -step), slice(step, None))):
                offer = source_cost[of] + np.float32(step * step)
                better = offer < cost_view[to]
                np.copyto(cost_view[to], offer, where=better)
                np.copyto(winner_view[to], source_winner[of], where=better)
    return winner


def _best_near(
    position_nm: Floats32,
    points_nm: Floats32,
    radii_nm: Floats32,
    winner: NDArray[np.int32],
    origin_nm: Floats32,
    owner: Labels,
) -> NDArray[np.int32]:
    """Return the exact winner (M,) among the winners of the eight grid nodes around each position."""
    node = ((position_nm - origin_nm) / np.float32(GRID_NM)).astype(np.int32)
    flat = np.ravel_multi_index(tuple(node.T), winner.shape)
    steps = [np.ravel_multi_index(corner, winner.shape) for corner in np.ndindex(2, 2, 2)]
    winner = winner.ravel()
    first = owner[winner[flat]]
    # If all eight nodes belong to one neurite, the voxel belongs to it.
    ask = np.flatnonzero(np.any([owner[winner[flat + step]] != first for step in steps[1:]], axis=0))
    best: NDArray[np.int32] = winner[flat]
    here, nodes = position_nm[ask], flat[ask]
    least = np.full(len(ask), np.inf, np.float32)
    for step in steps:
        offer = winner[nodes + step]
        cost = ((here - points_nm[offer]) ** 2).sum(axis=1) - radii_nm[offer] ** 2
        better = cost < least
        least[better] = cost[better]
        best[ask[better]] = offer[better]
    return best


def _bent_positions_nm(
    shape_vox: tuple[int, int, int], voxel_size_nm: tuple[float, float, float], rng: np.random.Generator
) -> NDArray[np.float32]:
    """Return the voxel centres (z,y,x,3) f32 in nm, displaced by smooth noise of two wavelengths."""
    position = np.empty((*shape_vox, 3), np.float32)
    for axis in range(3):
        line = (np.arange(shape_vox[axis]) + 0.5) * voxel_size_nm[axis]
        position[..., axis] = np.expand_dims(line, [a for a in range(3) if a != axis])
        for wavelength_nm, amplitude_nm in ((450.0, 36.0), (190.0, 14.0)):
            wave = smooth_noise(shape_vox, tuple(wavelength_nm / v for v in voxel_size_nm), rng)  # type: ignore[arg-type]
            position[..., axis] += amplitude_nm * wave
    return position


def _repair(labels: Labels, n_labels: int) -> tuple[Labels, list[int]]:
    """Return one 6-connected object per label, numbered 1..n without gaps; and the neurites kept (0-based)."""
    kept: list[int] = []
    out = np.zeros(labels.shape, np.uint64)
    smallest = max(60, labels.size // 40_000)
    for index, box in enumerate(ndimage.find_objects(labels.astype(np.int32), n_labels)):
        if box is None:
            continue
        pieces, n = ndimage.label(labels[box] == index + 1, FACES)
        sizes = np.bincount(pieces.ravel())[1:]
        if n == 0 or sizes.max() < smallest:
            continue
        kept.append(index)
        out[box][pieces == int(np.argmax(sizes)) + 1] = len(kept)
    return _fill_by_growth(out), kept


def _fill_by_growth(labels: Labels) -> Labels:
    """Give zeros the label of a face neighbour, layer by layer, so that 6-connected labels stay 6-connected."""
    while not labels.all():
        layer = labels.copy()
        for axis in range(3):
            for step in (1, -1):
                to, of = (slice(1, None), slice(0, -1)) if step > 0 else (slice(0, -1), slice(1, None))
                view, source = np.moveaxis(layer, axis, 0)[to], np.moveaxis(labels, axis, 0)[of]
                np.copyto(view, source, where=view == 0)
        labels = layer
    return labels
