"""Augmentation on the CPU: apply a deformation, and changes of the intensities, to arrays.

A field (3, z, y, x) holds for each voxel of the result its position in the source, in source voxels. The compiled loops
give the results of gunpowder's scipy routines (zoom of order 1; map_coordinates of order 0 and 1).

Every changed `raw` is a new array, or the same one if the change is none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from lsdflow_contract.geometry import Box, Vox3
from lsdflow_training.augmentation.description import (
    Alpha,
    Artifact,
    Blurring,
    Change,
    Contrast,
    Damage,
    Damages,
    Exponents,
    Field,
    Noise,
    Positions,
    Raw,
    Warp,
    opacity,
)
from lsdflow_training.compiled import compiled


def fine_field(warp: Warp) -> Field:
    """Field (3, z, y, x) of a deformation: source position of each voxel of its box, in voxels."""
    field = upsample_field(warp.coarse, warp.shape_vox)
    if warp.section_shifts_vox is not None:
        field[1:] += warp.section_shifts_vox.T[:, :, None, None]
    return field


def upsample_field(coarse: Field, shape_vox: Vox3) -> Field:
    """Upsample (3, a, b, c) linearly to (3, *shape_vox), float32; first and last points stay at the edges."""
    at_z, at_y, at_x = upsampled_positions(coarse, shape_vox)
    return field_at(coarse, at_z, at_y, at_x)


def upsampled_positions(coarse: Field, shape_vox: Vox3) -> tuple[Positions, Positions, Positions]:
    """Positions of the voxels of (3, *shape_vox) in the coarse field, along z, y, x."""
    sizes = zip(coarse.shape[1:], shape_vox, strict=True)
    z, y, x = (np.linspace(0, n - 1, m).astype(np.float32) for n, m in sizes)
    return z, y, x


def field_at(coarse: Field, at_z: Positions, at_y: Positions, at_x: Positions) -> Field:
    """Interpolate the coarse field linearly at a grid of positions: (3, z, y, x), float32."""
    fine = np.empty((3, at_z.size, at_y.size, at_x.size), np.float32)
    _upsample(np.ascontiguousarray(coarse, dtype=np.float32), at_z, at_y, at_x, fine)
    return fine


def gather_nearest(source: npt.NDArray[np.generic], field: Field) -> npt.NDArray[np.generic]:
    """The nearest voxel of source (z, y, x; any dtype, ids stay exact) for each voxel of the field; 0 outside."""
    out = np.zeros(field.shape[1:], source.dtype)
    _gather_nearest(np.ascontiguousarray(source), field, out)
    return out


def gather_linear(source: npt.NDArray[np.floating], field: Field) -> npt.NDArray[np.float32]:
    """Trilinear interpolation of source (z, y, x) for each voxel of the field, float32; 0 outside."""
    out = np.zeros(field.shape[1:], np.float32)
    _gather_linear(np.ascontiguousarray(source, dtype=np.float32), field, out)
    return out


@compiled
def _upsample(coarse: Field, at_z: Positions, at_y: Positions, at_x: Positions, fine: Field) -> None:
    _, depth, height, width = coarse.shape
    row = np.empty(width, np.float32)
    for d in range(3):
        for z in range(at_z.size):
            z0 = min(int(at_z[z]), max(depth - 2, 0))
            z1 = min(z0 + 1, depth - 1)
            wz = at_z[z] - z0
            for y in range(at_y.size):
                y0 = min(int(at_y[y]), max(height - 2, 0))
                y1 = min(y0 + 1, height - 1)
                wy = at_y[y] - y0
                for i in range(width):
                    upper = coarse[d, z0, y0, i] * (1 - wy) + coarse[d, z0, y1, i] * wy
                    lower = coarse[d, z1, y0, i] * (1 - wy) + coarse[d, z1, y1, i] * wy
                    row[i] = upper * (1 - wz) + lower * wz
                for x in range(at_x.size):
                    x0 = min(int(at_x[x]), max(width - 2, 0))
                    x1 = min(x0 + 1, width - 1)
                    wx = at_x[x] - x0
                    fine[d, z, y, x] = row[x0] * (1 - wx) + row[x1] * wx


@compiled
def _gather_nearest(source: npt.NDArray[np.generic], field: Field, out: npt.NDArray[np.generic]) -> None:
    depth, height, width = source.shape
    for z in range(out.shape[0]):
        for y in range(out.shape[1]):
            for x in range(out.shape[2]):
                sz = int(np.floor(field[0, z, y, x] + np.float32(0.5)))
                sy = int(np.floor(field[1, z, y, x] + np.float32(0.5)))
                sx = int(np.floor(field[2, z, y, x] + np.float32(0.5)))
                if 0 <= sz < depth and 0 <= sy < height and 0 <= sx < width:
                    out[z, y, x] = source[sz, sy, sx]


@compiled
def _gather_linear(source: Field, field: Field, out: Field) -> None:
    depth, height, width = source.shape
    for z in range(out.shape[0]):
        for y in range(out.shape[1]):
            for x in range(out.shape[2]):
                fz, fy, fx = field[0, z, y, x], field[1, z, y, x], field[2, z, y, x]
                if not (0 <= fz <= depth - 1 and 0 <= fy <= height - 1 and 0 <= fx <= width - 1):
                    continue
                z0, y0, x0 = int(fz), int(fy), int(fx)
                z1, y1, x1 = min(z0 + 1, depth - 1), min(y0 + 1, height - 1), min(x0 + 1, width - 1)
                wz, wy, wx = fz - z0, fy - y0, fx - x0
                near = (source[z0, y0, x0] * (1 - wx) + source[z0, y0, x1] * wx) * (1 - wy)
                near += (source[z0, y1, x0] * (1 - wx) + source[z0, y1, x1] * wx) * wy
                far = (source[z1, y0, x0] * (1 - wx) + source[z1, y0, x1] * wx) * (1 - wy)
                far += (source[z1, y1, x0] * (1 - wx) + source[z1, y1, x1] * wx) * wy
                out[z, y, x] = near * (1 - wz) + far * wz


def source_box(warp: Warp, target: Box) -> Box:
    """The source voxels of `target` (a box in that of the deformation): hull of its field, rounded outwards.

    A linear field has its extremes in the corners of the coarse cells, so only the voxels next to them are evaluated.
    """
    positions = upsampled_positions(warp.coarse, warp.shape_vox)
    chosen = [_beside_cells(at[part]) for at, part in zip(positions, target.slices(), strict=True)]
    shifts = warp.section_shifts_vox
    if shifts is not None:
        chosen[0] = np.ones_like(chosen[0])
    values = field_at(warp.coarse, *(at[s][c] for at, s, c in zip(positions, target.slices(), chosen, strict=True)))
    if shifts is not None:
        values[1:] += shifts[target.slices()[0]].T[:, :, None, None]
    begin = [int(np.floor(axis.min())) for axis in values]
    end = [int(np.ceil(axis.max())) + 1 for axis in values]
    return Box((begin[0], begin[1], begin[2]), (end[0] - begin[0], end[1] - begin[1], end[2] - begin[2]))


def _beside_cells(at: Positions) -> npt.NDArray[np.bool_]:
    """First and last position in each cell of the coarse grid."""
    changes = np.diff(at.astype(np.int64)) != 0
    chosen: npt.NDArray[np.bool_] = np.append(True, changes) | np.append(changes, True)
    return chosen


def changed(raw: Raw, change: Change) -> Raw:
    """Raw after one change."""
    if isinstance(change, Contrast):
        return with_contrast(raw, change)
    if isinstance(change, Exponents):  # > 1 darkens, < 1 brightens
        return np.power(raw, change.values.astype(np.float32)[:, None, None])
    if isinstance(change, Blurring):
        return _with_blur(raw, change)
    if isinstance(change, Noise):
        noise = np.random.default_rng(change.seed).normal(0.0, change.std, raw.shape)
        noisy: Raw = np.clip(raw + noise, 0.0, 1.0).astype(np.float32)
        return noisy
    return damaged(raw, change)


def with_contrast(raw: Raw, contrast: Contrast) -> Raw:
    """Distances from the mean (of the patch, or of each section) scaled, then shifted, clipped to 0 and 1."""
    parts = [raw] if len(contrast.scales) == 1 else list(raw[:, None])
    changes = zip(parts, contrast.scales.tolist(), contrast.shifts.tolist(), strict=True)
    result: Raw = np.concatenate([p.mean() + (p - p.mean()) * scale + shift for p, scale, shift in changes])
    return np.clip(result, 0.0, 1.0, out=result)


def _with_blur(raw: Raw, blurring: Blurring) -> Raw:
    if not blurring.by_section:
        return blurred(raw, float(blurring.sigmas_vox[0])) if blurring.sigmas_vox[0] else raw
    result = raw.copy()
    for z in np.flatnonzero(blurring.sigmas_vox):
        result[z] = blurred(raw[z], float(blurring.sigmas_vox[z]))
    return result


def blurred(raw: Raw, sigma_vox: float | Sequence[float]) -> Raw:
    """Gaussian blur with one standard deviation, or one for z, y, x (0 = none); edge voxels are repeated outwards."""
    smooth: Raw = ndimage.gaussian_filter(raw, sigma_vox, mode="nearest", truncate=3.0)
    return np.clip(smooth, 0.0, 1.0, out=smooth)


def damaged(raw: Raw, damages: Damages) -> Raw:
    """Raw with its sections damaged according to `damages.what`.

    MISSING sections are black; LOW_CONTRAST ones keep their mean, and deviations from it are scaled by `how.contrast`;
    REPEATED ones show the section before them (the first shows the one after it); ARTIFACT ones are partly covered by
    another section of the patch, see `covering`.
    """
    result, what = raw.copy(), damages.what
    for z in np.flatnonzero(what):
        if what[z] == Damage.MISSING:
            result[z] = 0.0
        elif what[z] == Damage.LOW_CONTRAST:
            mean = raw[z].mean()
            result[z] = np.clip(mean + (raw[z] - mean) * np.float32(damages.contrast), 0.0, 1.0)
        elif what[z] == Damage.REPEATED:
            result[z] = raw[z - 1 if z else min(1, len(raw) - 1)]
        elif what[z] == Damage.ARTIFACT:
            alpha, content = covering(raw, damages.artifacts[int(z)])
            result[z] = raw[z] * (1 - alpha) + content * alpha
    return result


def covering(raw: Raw, covers: Artifact) -> tuple[Alpha, Raw]:
    """Opacity of an artefact, and the section it shows, mirrored and shifted so that it does not match; both (y, x)."""
    section = raw[covers.section, ::-1, ::-1]
    return opacity(covers, raw.shape[1:]), np.roll(section, covers.moved_vox, axis=(0, 1))
