"""The grey values of synthetic tissue, similar to a FIB-SEM image of the labelled neurites.

The tissue is grown first (tissue.py). The result depends only on the seed: the same seed gives the same bytes.

1. Cytoplasm: every cell has its own brightness and grain; a few are dark throughout.
2. Organelles: mitochondria (dark envelope, cristae, an inside that resembles a thin dark neurite) in the thick
   neurites, clouds of vesicles, and a speckle of small dark grains.
3. Membranes: dark sheets between neighbours; darkness and thickness differ for each pair of neighbours and vary
   along the sheet, so that some stretches nearly vanish.
4. Instrument: blur, shading, curtaining along the milling direction (y), a brightness step from slice to slice, and
   partly correlated noise.

All grey values are on the scale 0..255 until they are rounded at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from lsdflow_launch.synthetic.neurites import Neurite
from lsdflow_launch.synthetic.tissue import Tissue, grow_tissue, smooth_noise

Field = NDArray[np.float32]
Vox3 = tuple[int, int, int]
Nm3 = tuple[float, float, float]

MEMBRANE_GREY = 76.0
BRIGHT_GREY = 172.0
ROOM_FOR_MITOCHONDRION_NM = 95.0
SMALLEST_SHAPE_VOX = 16


@dataclass(frozen=True)
class Membranes:
    """Per voxel: distance to the nearest boundary in nm, darkness 0..1 and half thickness in nm of that boundary."""

    distance_nm: Field
    darkness: Field
    half_thickness_nm: Field


def render(tissue: Tissue, voxel_size_nm: Nm3, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return the raw u8 (z,y,x) of `tissue`; the module docstring lists the steps."""
    membranes = find_membranes(tissue.labels, voxel_size_nm, rng)
    image = _cytoplasm(tissue.labels, voxel_size_nm, rng)
    _add_vesicles(image, tissue, membranes.distance_nm, voxel_size_nm, rng)
    _add_mitochondria(image, tissue, membranes.distance_nm, voxel_size_nm, rng)
    sheet = np.exp(-((membranes.distance_nm / membranes.half_thickness_nm) ** 2)) * membranes.darkness
    image += sheet * (MEMBRANE_GREY - image)
    # Resin and empty cytosol are about equally bright: the bright end of the scale is compressed.
    image = np.minimum(image, BRIGHT_GREY + 0.45 * (image - BRIGHT_GREY))
    return _instrument(image, voxel_size_nm, rng)


def find_membranes(labels: NDArray[np.uint64], voxel_size_nm: Nm3, rng: np.random.Generator) -> Membranes:
    """Return the boundaries of dense labels (z,y,x); each pair of neighbours has its own thickness and darkness."""
    ids = labels.astype(np.int32)
    lower, upper = ndimage.minimum_filter(ids, 3), ndimage.maximum_filter(ids, 3)
    n = int(ids.max()) + 1
    # The boundary is two voxels wide: one on either side of the face between two labels.
    boundary = _touches_other_label(ids)
    to_boundary, nearest = ndimage.distance_transform_edt(~boundary, sampling=voxel_size_nm, return_indices=True)
    pair = (lower.astype(np.int64) * n + upper)[tuple(nearest)]
    drift = smooth_noise(ids.shape, _in_voxels(160.0, voxel_size_nm), rng)
    darkness = np.clip(rng.normal(0.93, 0.10, n * n).astype(np.float32)[pair] + 0.10 * drift, 0.42, 1.0)
    half = np.clip(rng.normal(19.5, 4.0, n * n).astype(np.float32)[pair] + 2.5 * drift, 11.0, 31.0)
    return Membranes((to_boundary + min(voxel_size_nm) / 2).astype(np.float32), darkness, half)


def _touches_other_label(ids: NDArray[np.int32]) -> NDArray[np.bool_]:
    touches = np.zeros(ids.shape, bool)
    for axis in range(3):
        view, seen = np.moveaxis(ids, axis, 0), np.moveaxis(touches, axis, 0)
        differs = view[1:] != view[:-1]
        seen[1:] |= differs
        seen[:-1] |= differs
    return touches


def _in_voxels(length_nm: float, voxel_size_nm: Nm3) -> tuple[float, float, float]:
    return length_nm / voxel_size_nm[0], length_nm / voxel_size_nm[1], length_nm / voxel_size_nm[2]


def _grain(shape: Vox3, size_nm: float, voxel_size_nm: Nm3, rng: np.random.Generator) -> Field:
    """Return band-passed noise of standard deviation 1 with grains of about `size_nm`."""
    sigma = _in_voxels(size_nm / 2.5, voxel_size_nm)
    white = rng.standard_normal(shape, np.float32)
    fine = ndimage.gaussian_filter(white, sigma, truncate=2.5)
    fine -= ndimage.gaussian_filter(fine, [1.6 * s for s in sigma], truncate=2.5)
    return np.asarray(fine / max(float(fine.std()), 1e-6), np.float32)


def _cytoplasm(labels: NDArray[np.uint64], voxel_size_nm: Nm3, rng: np.random.Generator) -> Field:
    """Return the grey of the cytoplasm: brightness and grain of each cell, and slowly varying clouds."""
    n = int(labels.max()) + 1
    brightness = rng.normal(174.0, 13.0, n).astype(np.float32)
    brightness[rng.uniform(size=n) < 0.14] -= 46.0
    grain_of = rng.uniform(7.0, 24.0, n).astype(np.float32)
    ids = labels.astype(np.int32)
    shape = labels.shape
    clouds = 11.0 * smooth_noise(shape, _in_voxels(260.0, voxel_size_nm), rng)
    grain = 0.75 * _grain(shape, 46.0, voxel_size_nm, rng) + 0.65 * _grain(shape, 85.0, voxel_size_nm, rng)
    # Dark specks have more contrast than bright ones: ribosomes, microtubules and vesicle walls are dark.
    grain = np.where(grain < -0.6, 1.5 * grain + 0.3, grain)
    return brightness[ids] + clouds * (0.4 + grain_of[ids] / 20.0) + grain_of[ids] * grain


def _box_around(
    low_nm: NDArray[np.float64], high_nm: NDArray[np.float64], shape: Vox3, voxel_size_nm: Nm3
) -> tuple[slice, ...]:
    """Return the voxels between two corners in nm, clipped to the block (may be empty)."""
    begin = [max(0, int(low_nm[a] / voxel_size_nm[a])) for a in range(3)]
    end = [min(shape[a], int(high_nm[a] / voxel_size_nm[a]) + 1) for a in range(3)]
    return tuple(slice(b, max(b, e)) for b, e in zip(begin, end, strict=True))


def _positions_nm(box: tuple[slice, ...], voxel_size_nm: Nm3) -> Field:
    """Return the voxel centres (3,z,y,x) f32 of a box, in nm."""
    axes = [(np.arange(s.start, s.stop) + 0.5) * v for s, v in zip(box, voxel_size_nm, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij")).astype(np.float32)


def _add_mitochondria(
    image: Field, tissue: Tissue, distance_nm: Field, voxel_size_nm: Nm3, rng: np.random.Generator
) -> None:
    """Draw mitochondria along the centrelines, wherever a neurite is wide enough, about one per 700 nm."""
    free = tissue.labels.copy()  # voxels of a mitochondrion become 0, so that no two overlap
    for index, neurite in enumerate(tissue.neurites):
        wide = np.flatnonzero(neurite.radii_nm > ROOM_FOR_MITOCHONDRION_NM)
        if wide.size == 0:
            continue
        for _ in range(rng.poisson(0.022 * wide.size) + int(rng.uniform() < 0.5)):
            middle = int(rng.choice(wide))
            box, depth = _shape_mitochondrion(neurite, middle, image.shape, voxel_size_nm, rng)
            depth = np.minimum(depth, distance_nm[box] - 24.0)
            body = depth > -30.0
            if depth.size == 0 or np.any(free[box][body & (tissue.labels[box] == index + 1)] == 0):
                continue
            depth[tissue.labels[box] != index + 1] = -1.0
            free[box][depth > 0] = 0
            _paint_mitochondrion(image[box], depth, _positions_nm(box, voxel_size_nm), voxel_size_nm, rng)


def _shape_mitochondrion(
    neurite: Neurite, middle: int, shape: Vox3, voxel_size_nm: Nm3, rng: np.random.Generator
) -> tuple[tuple[slice, ...], Field]:
    """Return the box of one lumpy mitochondrion near the centreline, and the depth below its surface in nm."""
    room_nm = float(neurite.radii_nm[middle])
    radius_nm = min(rng.uniform(60.0, 130.0), 0.68 * room_nm)
    aside = rng.standard_normal(3)
    aside *= rng.uniform(0.0, 1.0) * max(room_nm - radius_nm - 30.0, 0.0) / np.linalg.norm(aside)
    half = int(rng.integers(6, 26))
    line = neurite.points_nm[max(0, middle - half) : middle + half : 4] + aside
    reach = 1.3 * radius_nm + 30.0
    box = _box_around(line.min(axis=0) - reach, line.max(axis=0) + reach, shape, voxel_size_nm)
    position = _positions_nm(box, voxel_size_nm)
    size = (position.shape[1], position.shape[2], position.shape[3])
    away = np.full(size, np.inf, np.float32)
    if away.size == 0:
        return box, away
    for point in line.astype(np.float32):
        np.minimum(away, np.sqrt(((position - point[:, None, None, None]) ** 2).sum(axis=0)), out=away)
    lumps = smooth_noise(size, _in_voxels(140.0, voxel_size_nm), rng)
    return box, np.asarray(radius_nm + 8.0 * lumps - away, np.float32)


def _paint_mitochondrion(
    view: Field, depth_nm: Field, position_nm: Field, voxel_size_nm: Nm3, rng: np.random.Generator
) -> None:
    """Draw envelope, matrix and cristae into `view`; `depth_nm` is positive inside."""
    matrix = rng.normal(114.0, 15.0)
    across = rng.standard_normal(3).astype(np.float32)
    across /= np.linalg.norm(across)
    bend = smooth_noise(depth_nm.shape, _in_voxels(130.0, voxel_size_nm), rng)
    phase = np.tensordot(across, position_nm, 1) / np.float32(rng.uniform(38.0, 52.0)) + 0.55 * bend
    patches = smooth_noise(depth_nm.shape, _in_voxels(90.0, voxel_size_nm), rng) > -0.4
    cristae = np.maximum(np.sin(2 * np.pi * phase), -0.2) * patches
    inside = matrix - rng.uniform(8.0, 30.0) * cristae + 7.0 * _grain(depth_nm.shape, 50.0, voxel_size_nm, rng)
    envelope = np.exp(-(((depth_nm - 11.0) / 13.0) ** 2))
    grey = inside + envelope * (78.0 - inside)
    cover = np.clip(depth_nm / 8.0 + 0.5, 0.0, 1.0)
    view += cover * (grey.astype(np.float32) - view)


def _add_vesicles(
    image: Field, tissue: Tissue, distance_nm: Field, voxel_size_nm: Nm3, rng: np.random.Generator
) -> None:
    """Draw clouds of 40-55 nm vesicles (dark wall, light inside) in more than half of the thicker neurites."""
    walls = np.zeros_like(image)
    extent = np.asarray(image.shape) * np.asarray(voxel_size_nm)
    for index, neurite in enumerate(tissue.neurites):
        wide = np.flatnonzero(neurite.radii_nm > 65.0)
        if wide.size < 8 or rng.uniform() < 0.4:
            continue
        for _ in range(1 + wide.size // 60):
            spot = neurite.points_nm[int(rng.choice(wide))]
            cloud = spot + rng.uniform(60.0, 160.0) * rng.standard_normal((int(rng.integers(25, 110)), 3))
            for centre in cloud[np.all((cloud >= 0) & (cloud < extent), axis=1)]:
                at = tuple((centre / voxel_size_nm).astype(int))
                if tissue.labels[at] == index + 1 and distance_nm[at] > 30.0:
                    _draw_vesicle(walls, centre, voxel_size_nm, rng)
    image -= 74.0 * walls


def _draw_vesicle(walls: Field, centre_nm: NDArray[np.float64], voxel_size_nm: Nm3, rng: np.random.Generator) -> None:
    """Draw the wall 0..1 of one vesicle, or a dark ball if it has a dense core, into `walls`."""
    radius = float(rng.uniform(18.0, 27.0))
    box = _box_around(centre_nm - 38.0, centre_nm + 38.0, walls.shape, voxel_size_nm)
    position = _positions_nm(box, voxel_size_nm) - centre_nm.astype(np.float32)[:, None, None, None]
    away = np.sqrt((position**2).sum(axis=0))
    if rng.uniform() < 0.08:
        away = np.maximum(away, radius)
    np.maximum(walls[box], np.exp(-(((away - radius) / 9.0) ** 2)), out=walls[box])


def _instrument(image: Field, voxel_size_nm: Nm3, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Apply blur, shading, curtaining, slice steps and noise; round and clip to u8."""
    shape = image.shape
    image = ndimage.gaussian_filter(image, _in_voxels(8.5, voxel_size_nm), truncate=3.0)
    image += 4.0 * smooth_noise(shape, _in_voxels(1100.0, voxel_size_nm), rng)
    # Curtains run along y: constant in y, sharp in x, and present in several slices of z.
    curtain = ndimage.gaussian_filter(rng.standard_normal((shape[0], 1, shape[2])).astype(np.float32), (4.0, 0.0, 0.8))
    image += 1.3 * curtain / max(float(curtain.std()), 1e-6)
    image += rng.normal(0.0, 0.9, (shape[0], 1, 1)).astype(np.float32)
    correlated = ndimage.gaussian_filter(rng.standard_normal(shape, np.float32), (0.0, 0.6, 0.8), truncate=3.0)
    image += 3.2 * correlated / float(correlated.std()) + 3.2 * rng.standard_normal(shape, np.float32)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def synthetic_em(
    shape_vox: tuple[int, int, int], voxel_size_nm: tuple[float, float, float], seed: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Return a densely packed block of neuropil as in a FIB-SEM image, with its labels.

    Returns raw u8 (z,y,x), dark membranes on grey cytoplasm, and labels u64 (z,y,x): 1..n without gaps and without
    background, each label one 6-connected neurite; membranes belong to the neurites on either side.
    Raises ValueError for a block of fewer than 16 voxels along an axis or a voxel size that is not positive.
    """
    if len(shape_vox) != 3 or min(shape_vox) < SMALLEST_SHAPE_VOX:
        raise ValueError(f"shape_vox: found {shape_vox}, wanted three numbers of at least {SMALLEST_SHAPE_VOX}")
    if len(voxel_size_nm) != 3 or not min(voxel_size_nm) > 0:
        raise ValueError(f"voxel_size_nm: found {voxel_size_nm}, wanted three positive lengths in nm")
    growth, drawing = np.random.default_rng(seed).spawn(2)
    tissue = grow_tissue(shape_vox, voxel_size_nm, growth)
    return render(tissue, voxel_size_nm, drawing), tissue.labels
