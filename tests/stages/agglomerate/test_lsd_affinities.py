"""Affinities of faces from LSDs: those of a slow reference in any boxes; high where two fragments are one cell."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from lsdflow_agglomerate.lsd_affinities import lsd_affinities
from lsdflow_contract.arrays import quantise_u8
from lsdflow_contract.geometry import Box, Nm3
from lsdflow_contract.testing import voronoi_labels
from lsdflow_descriptors.label_descriptors import descriptors_of, radius_vox

SHAPE, SIZE, SIGMA = (12, 14, 16), (12.0, 8.0, 8.0), (20.0, 20.0, 20.0)
WHOLE = Box((0, 0, 0), SHAPE)
Face = tuple[NDArray[np.uint8], NDArray[np.bool_], NDArray[np.uint64]]


def described(labels: NDArray[np.uint64], sigma_nm: Nm3 = SIGMA) -> NDArray[np.float32]:
    """LSDs of all voxels."""
    return descriptors_of(labels, Box((0, 0, 0), labels.shape), sigma_nm, SIZE)


def affinities(labels: NDArray[np.uint64], predicted: NDArray[np.uint8], write: Box) -> NDArray[np.uint8]:
    """Of a box of the volume."""
    near = write.grow((1, 1, 1), (0, 0, 0)).intersect(Box((0, 0, 0), labels.shape))
    radius = radius_vox(SIGMA, SIZE)
    seen = np.pad(labels, [(r, r) for r in radius])[near.grow(radius).slices(tuple(-r for r in radius))]
    return lsd_affinities(seen, predicted[(slice(None), *near.slices())], (write, near), SIGMA, SIZE)


def slow_affinities(labels: NDArray[np.uint64], predicted: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Face by face: all descriptors are computed again with both fragments as one; NaN where there is no face."""
    seen, apart = predicted.astype(float) / 255, described(labels).astype(float)
    found = np.full((3, *labels.shape), np.nan)
    together: dict[tuple[int, int], NDArray[np.float64]] = {}
    for axis in range(3):
        for p in np.ndindex(labels.shape):
            q = tuple(c - (n == axis) for n, c in enumerate(p))
            if p[axis] == 0 or labels[p] == labels[q] or 0 in (labels[p], labels[q]):
                continue
            pair = (int(min(labels[p], labels[q])), int(max(labels[p], labels[q])))
            if pair not in together:
                together[pair] = described(np.where(labels == pair[1], np.uint64(pair[0]), labels)).astype(float)
            both = [
                sum(float(((own[(slice(None), *at)] - seen[(slice(None), *at)]) ** 2).sum()) for at in (p, q))
                for own in (apart, together[pair])
            ]
            gain = both[0] - both[1]
            found[(axis, *p)] = 0.5 + 0.5 * gain / (1 + abs(gain))
    return found


@pytest.fixture(scope="module")
def labels() -> NDArray[np.uint64]:
    """Ten cells, and voxels without any."""
    made = voronoi_labels(SHAPE, 10, 2)
    made[made == 4] = 0
    return made


@pytest.fixture(scope="module")
def predicted() -> NDArray[np.uint8]:
    """LSDs of another segmentation, with noise."""
    noise = np.random.default_rng(1).normal(0, 0.05, (10, *SHAPE))
    return quantise_u8(described(voronoi_labels(SHAPE, 6, 9)) + noise)


def test_every_face_has_the_affinity_of_the_slow_reference_and_all_else_255(
    labels: NDArray[np.uint64], predicted: NDArray[np.uint8]
) -> None:
    found, wanted = affinities(labels, predicted, WHOLE), slow_affinities(labels, predicted)
    faces = ~np.isnan(wanted)
    assert faces.sum() > 500
    assert np.abs(found[faces] / 255 - wanted[faces]).max() < 1.5 / 255
    assert (found[~faces] == 255).all()


@pytest.mark.parametrize("edges", [(5, 14, 16), (4, 5, 6), (1, 14, 3)])
def test_any_boxes_give_the_same_bits(
    labels: NDArray[np.uint64], predicted: NDArray[np.uint8], edges: tuple[int, int, int]
) -> None:
    whole, made = affinities(labels, predicted, WHOLE), np.zeros((3, *SHAPE), np.uint8)
    for begin in np.ndindex(*(-(-n // e) for n, e in zip(SHAPE, edges, strict=True))):
        at = Box(tuple(b * e for b, e in zip(begin, edges, strict=True)), edges).intersect(WHOLE)
        made[(slice(None), *at.slices())] = affinities(labels, predicted, at)
    assert np.array_equal(made, whole)


def faces_of(cells: NDArray[np.uint64], pieces: NDArray[np.uint64], found: NDArray[np.uint8]) -> Iterator[Face]:
    """Of all faces between pieces along an axis: affinity, whether both are of one cell, the two pieces."""
    for axis in range(3):
        upper = tuple(slice(1, None) if n == axis else slice(None) for n in range(3))
        lower = tuple(slice(None, -1) if n == axis else slice(None) for n in range(3))
        u, v = pieces[upper], pieces[lower]
        faces = u != v
        one_cell = (cells[upper] == cells[lower])[faces]
        yield found[axis][upper][faces], one_cell, np.stack([u[faces], v[faces]])


def test_pieces_of_one_cell_fit_together_and_two_cells_do_not() -> None:
    """The network saw cells; one of them was cut in two."""
    cells = voronoi_labels(SHAPE, 6, 3)
    halves = cells * np.uint64(2)
    halves[:, :, 8:] += np.uint64(1)
    found = affinities(halves, quantise_u8(described(cells)), WHOLE)
    faces = list(faces_of(cells, halves, found))
    within = np.concatenate([values[one_cell] for values, one_cell, _ in faces])
    between = np.concatenate([values[~one_cell] for values, one_cell, _ in faces])
    assert within.min() > 160
    assert np.median(between) < 90
    assert np.percentile(between, 95) < within.min()


def test_pairs_of_pieces_are_in_order_though_the_network_saw_cells_through_a_fog() -> None:
    """Noise, and what a network blurs: a pair of one cell nearly always scores better than one of two cells."""
    shape = (24, 28, 32)
    cells = voronoi_labels(shape, 12, 3)
    pieces = cells * np.uint64(1000) + voronoi_labels(shape, 30, 4)
    seen = described(cells) + np.random.default_rng(0).normal(0, 0.3, (10, *shape))
    found = affinities(pieces, quantise_u8(gaussian_filter(seen, (0, 1, 1, 1))), Box((0, 0, 0), shape))
    parts = zip(*faces_of(cells, pieces, found), strict=True)
    values, one_cell, ends = (np.concatenate(part, axis=-1) for part in parts)
    _, pair = np.unique(np.sort(ends, axis=0), axis=1, return_inverse=True)
    medians = np.array([np.median(values[pair == number]) for number in range(pair.max() + 1)])
    same = np.array([one_cell[pair == number].any() for number in range(pair.max() + 1)])
    assert min(same.sum(), (~same).sum()) > 100
    assert (medians[same][:, None] > medians[~same][None]).mean() > 0.88


def test_without_faces_there_is_nothing_to_say(predicted: NDArray[np.uint8]) -> None:
    for labels in (np.zeros(SHAPE, np.uint64), np.full(SHAPE, 7, np.uint64)):
        assert (affinities(labels, predicted, WHOLE) == 255).all()
