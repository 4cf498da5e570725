"""A picture of the largest segments in 3-D: labels on a lattice, visible from a corner, shaded by depth.

Of a volume that is too large to be read for a picture, only the box in its middle is drawn; the caption names it.

1. The largest labels of the lattice are kept; of each, the points at its surface.
2. Points are turned into the view (orthographic; z up, x to the right) and put on pixels about as large as a lattice
   cell; the nearest one stays: a map of labels and a map of depths.
3. Both maps are enlarged smoothly, label by label, so that outlines are curves and not steps.
4. Light from the upper left on the slope of the depth, haze with the distance, a dark line where one neurite ends.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from lsdflow_contract.geometry import Box, Nm3, Vox3
from lsdflow_evaluate.lattice import strided
from lsdflow_evaluate.report.data import Neurites
from lsdflow_evaluate.report.figures import ScaleBar, colours_of_ids, hex_colour, png_uri, scale_bar
from lsdflow_runtime.io.volumes import Volume

MOST_NEURITES = 10
# A box of 512 voxels along each axis is read in a few seconds.
MOST_VOXELS = 512**3
LATTICE_POINTS = 200
AZIMUTH_DEG, ELEVATION_DEG = 32.0, 24.0
LIGHT = np.array([-0.45, 0.6, 0.66])  # right, up, towards the eye
WIDTH_PX = 720
HAZE = 0.45
SMOOTHING_PX = 0.8
CUBIC_MICROMETRE_NM3 = 1e9

Floats = NDArray[np.float64]
Labels = NDArray[np.uint64]
Colours = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class View:
    """Directions of the picture in z, y, x: `right`, `up` and `away` from the eye, unit lengths."""

    right: Floats
    up: Floats
    away: Floats


def largest_neurites(segmentation: Volume) -> Neurites | None:
    """The ten largest segments of a volume, or of the box in its middle; None if there is no label."""
    box = readable_box(segmentation.box, MOST_VOXELS)
    voxel_nm = segmentation.geometry.voxel_size_nm
    step = lattice_step(box.shape_vox, voxel_nm, LATTICE_POINTS)
    labels = strided(segmentation.read, segmentation.chunk_shape_vox, box, step)
    ids = largest_labels(labels, MOST_NEURITES)
    if not ids:
        return None
    spacing = cast(Nm3, tuple(s * v for s, v in zip(step, voxel_nm, strict=True)))
    visible = picture_of_neurites(labels, spacing, ids, view_from())
    return visible if box == segmentation.box else replace(visible, part=str(box))


def readable_box(box: Box, most_voxels: int) -> Box:
    """The box itself, or the one in its middle with `most_voxels`: the longest axes are cut first."""
    shape = list(box.shape_vox)
    while math.prod(shape) > most_voxels:
        longest = max(range(3), key=lambda axis: shape[axis])
        others = math.prod(n for axis, n in enumerate(shape) if axis != longest)
        second = sorted(shape)[1]
        shape[longest] = max(min(second, shape[longest] - 1), most_voxels // others, 1)
    begin = [b + (n - s) // 2 for b, n, s in zip(box.begin_vox, box.shape_vox, shape, strict=True)]
    return Box(cast(Vox3, tuple(begin)), cast(Vox3, tuple(shape)))


def lattice_step(shape_vox: Vox3, voxel_nm: Nm3, points: int) -> Vox3:
    """Voxels between lattice points, so that points are equally far apart in nm and at most `points` along an axis."""
    longest_nm = max(n * v for n, v in zip(shape_vox, voxel_nm, strict=True))
    spacing_nm = max(longest_nm / points, *voxel_nm)
    return cast(Vox3, tuple(max(1, math.ceil(spacing_nm / v - 1e-9)) for v in voxel_nm))


def largest_labels(labels: Labels, most: int) -> tuple[tuple[int, int], ...]:
    """(label, points) of the `most` largest labels, largest first, of equal ones the smaller; 0 is no label."""
    ids, counts = np.unique(labels, return_counts=True)
    ids, counts = ids[ids > 0], counts[ids > 0]
    order = np.lexsort((ids, -counts))[:most]
    return tuple((int(ids[i]), int(counts[i])) for i in order)


def view_from(azimuth_deg: float = AZIMUTH_DEG, elevation_deg: float = ELEVATION_DEG) -> View:
    """The view from `azimuth_deg` around z, `elevation_deg` above the xy plane; 0, 0: y goes into the picture."""
    a, e = np.radians(azimuth_deg), np.radians(elevation_deg)
    right = np.array([0.0, np.sin(a), np.cos(a)])
    away = np.array([-np.sin(e), np.cos(e) * np.cos(a), -np.cos(e) * np.sin(a)])
    up = np.array([np.cos(e), np.sin(e) * np.cos(a), -np.sin(e) * np.sin(a)])
    return View(right, up, away)


def surface_points(labels: Labels, label: int) -> NDArray[np.int64]:
    """Indices (n, 3) of the points of a label that have a neighbour of another one, or the end of the lattice."""
    mask = labels == label
    box = ndimage.find_objects(mask.astype(np.uint8))
    if not box:
        return np.zeros((0, 3), np.int64)
    cut = mask[box[0]]
    inner = ndimage.binary_erosion(cut, border_value=0)
    first = np.array([s.start for s in box[0]])
    return np.asarray(np.argwhere(cut & ~inner) + first, np.int64)


def picture_of_neurites(
    labels: Labels, spacing_nm: Nm3, ids: tuple[tuple[int, int], ...], view: View, colours: Colours | None = None
) -> Neurites:
    """The picture of the labels `ids` (label, points), lattice points `spacing_nm` apart.

    colours: RGB uint8 (n, 3); by default those that the labels have in every picture.
    """
    if colours is None:
        colours = colours_of_ids(np.array([label for label, _ in ids], np.uint64))
    shape_nm = np.array(labels.shape) * np.array(spacing_nm)
    pixel_nm = max(spacing_nm)
    corners_nm = np.array([[z, y, x] for z in (0, 1) for y in (0, 1) for x in (0, 1)]) * shape_nm
    flat = np.stack([-(corners_nm @ view.up), corners_nm @ view.right], axis=1) / pixel_nm
    first = flat.min(axis=0) - 2
    shape = np.ceil(flat.max(axis=0) - first + 3).astype(int)
    nearest, depth = np.full(shape, -1), np.full(shape, np.inf)
    for number, (label, _) in enumerate(ids):
        points = (surface_points(labels, label) + 0.5) * np.array(spacing_nm)
        _project(points, number, view, pixel_nm, first, nearest, depth)
    enlarge = max(1, round(WIDTH_PX / shape[1]))
    return Neurites(
        pixels=_shaded(nearest, depth / pixel_nm, colours, enlarge),
        ids=tuple(label for label, _ in ids),
        volumes_nm3=tuple(points * math.prod(spacing_nm) for _, points in ids),
        corners=(flat - first) * enlarge,
        farthest=int((corners_nm @ view.away).argmax()),
        pixel_nm=pixel_nm / enlarge,
    )


def _project(
    points_nm: Floats,
    number: int,
    view: View,
    pixel_nm: float,
    first: Floats,
    nearest: NDArray[np.int64],
    depth: Floats,
) -> None:
    """Put points on the pixels around them; each pixel keeps the depth and the number of the nearest point."""
    rows = -(points_nm @ view.up) / pixel_nm - first[0]
    columns = points_nm @ view.right / pixel_nm - first[1]
    away = points_nm @ view.away
    for down, across in ((-0.35, -0.35), (-0.35, 0.35), (0.35, -0.35), (0.35, 0.35)):
        r, c = np.floor(rows + down).astype(int), np.floor(columns + across).astype(int)
        visible = np.full(depth.shape, np.inf)
        np.minimum.at(visible, (r, c), away)
        nearer = visible < depth
        depth[nearer], nearest[nearer] = visible[nearer], number


def _shaded(nearest: NDArray[np.int64], depth: Floats, colours: Colours, enlarge: int) -> NDArray[np.uint8]:
    """RGBA of the maps, each pixel `enlarge` times as large; depth in pixels of the maps."""
    if not (nearest >= 0).any():
        return np.zeros((nearest.shape[0] * enlarge, nearest.shape[1] * enlarge, 4), np.uint8)
    shares, depths = _enlarged(nearest, depth, len(colours), enlarge)
    best = shares.argmax(axis=0)
    cover = np.clip((shares.sum(axis=0) - 0.5) * enlarge + 0.5, 0, 1)
    visible = np.take_along_axis(depths, best[None], axis=0)[0]
    down, across = np.gradient(visible)
    slope = np.stack([across, -down, np.ones_like(visible)], axis=-1)
    light = np.clip((slope / np.linalg.norm(slope, axis=-1, keepdims=True)) @ (LIGHT / np.linalg.norm(LIGHT)), 0, 1)
    inside = visible[cover > 0.5]
    near, far = (float(inside.min()), float(inside.max())) if inside.size else (0.0, 1.0)
    haze = HAZE * np.clip((visible - near) / max(far - near, 1e-6), 0, 1)
    bright = (0.34 + 0.72 * light) * np.where(_ends(best, visible, enlarge), 0.45, 1.0)
    rgb = colours[best].astype(np.float64) * bright[..., None]
    rgb = rgb * (1 - haze[..., None]) + 128.0 * haze[..., None]
    return np.dstack([np.clip(rgb, 0, 255), 255 * cover]).round().astype(np.uint8)


def _enlarged(nearest: NDArray[np.int64], depth: Floats, labels: int, enlarge: int) -> tuple[Floats, Floats]:
    """(labels, rows, columns) share of each label, and its depth carried on smoothly beyond its edge."""
    shares, depths = [], []
    rows, columns = (_enlarging(length, enlarge) for length in nearest.shape)
    for number in range(labels):
        mask = (nearest == number).astype(np.float64)
        known = np.where(mask > 0, depth, 0.0)
        weight = ndimage.gaussian_filter(mask, 1.2)
        carried = ndimage.gaussian_filter(known, 1.2) / np.maximum(weight, 1e-9)
        far = float(known.max())
        smooth = ndimage.gaussian_filter(mask, SMOOTHING_PX)
        shares.append(rows @ smooth @ columns.T)
        smooth_depth = np.where(weight > 1e-4, carried, far)
        depths.append(rows @ smooth_depth @ columns.T * enlarge)
    return np.array(shares), np.array(depths)


def _enlarging(length: int, enlarge: int) -> Floats:
    """(length * enlarge, length): cubic splines through the points of an axis. One product for each axis does what
    ndimage.zoom does of the whole map, in a tenth of the time."""
    return np.asarray(ndimage.zoom(np.eye(length), (enlarge, 1), order=3, grid_mode=True, mode="nearest"), np.float64)


def _ends(best: NDArray[np.int64], visible: Floats, enlarge: int) -> NDArray[np.bool_]:
    """Where a neurite ends in front of another one, or of a far part of itself: the pixel in front."""
    lines = np.zeros(best.shape, bool)
    step = 2.5 * enlarge
    for axis in (0, 1):
        for shift in (1, -1):
            behind = np.roll(visible, shift, axis) - visible
            lines |= (behind > step) | ((np.roll(best, shift, axis) != best) & (behind > 0))
    return lines


@dataclass(frozen=True)
class Scene:
    """The 3-D view: a picture over the edges of its box (SVG path data in its pixels, behind it and in front of it), a
    scale bar, and colour, id and volume of each neurite."""

    uri: str
    width: int
    height: int
    behind: str
    before: str
    bar: ScaleBar
    neurites: tuple[tuple[str, str, str], ...]
    alt: str
    caption: str


def scene_of(neurites: Neurites) -> Scene:
    """The 3-D view of the largest segments."""
    height, width = neurites.pixels.shape[:2]
    edges: dict[bool, list[str]] = {True: [], False: []}
    for first, second in itertools.combinations(range(8), 2):
        # Corners that differ in one bit are joined; edges at the farthest corner are behind the picture.
        if (first ^ second).bit_count() == 1:
            (r0, c0), (r1, c1) = neurites.corners[first], neurites.corners[second]
            edges[neurites.farthest in (first, second)].append(f"M{c0:.1f} {r0:.1f}L{c1:.1f} {r1:.1f}")
    colours = colours_of_ids(np.array(neurites.ids, np.uint64))
    listed = tuple(
        (hex_colour(colour), str(label), f"{volume / CUBIC_MICROMETRE_NM3:.3g} µm³")
        for colour, label, volume in zip(colours.tolist(), neurites.ids, neurites.volumes_nm3, strict=True)
    )
    largest = f"the {len(listed)} largest segments" if len(listed) > 1 else "the only segment"
    where = f"the box in its middle, {neurites.part}" if neurites.part else "the whole segmentation"
    return Scene(
        uri=png_uri(neurites.pixels),
        width=width,
        height=height,
        behind="".join(edges[True]),
        before="".join(edges[False]),
        bar=scale_bar(width * neurites.pixel_nm),
        neurites=listed,
        alt=f"3-D view of {largest} in {where}",
        caption=f"{largest.capitalize()} of {where}; z points up.",
    )
