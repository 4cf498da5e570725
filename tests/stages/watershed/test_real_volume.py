"""Real neurons: fragments from affinities that are derived from the truth of a FIB-SEM cube, with noise."""

from __future__ import annotations

from pathlib import Path

import mahotas
import numpy as np
import zarr
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt, gaussian_filter, maximum_filter

from lsdflow_contract.testing import same_partition
from lsdflow_watershed.fragments import FragmentRules, extract_fragments


def truth_affinities(labels: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Truth with its boundary grown by one voxel, smoothed, with shared, own and white noise."""
    generator = np.random.default_rng(0)
    cell = np.ones(labels.shape, bool)
    for axis in range(3):
        face = np.diff(labels, axis=axis) != 0
        for before in (1, 0):
            pad = [(before, 1 - before) if axis == a else (0, 0) for a in range(3)]
            cell &= ~np.pad(face, pad)
    inner = np.where(cell, labels, 0)
    clean = [(inner == np.roll(inner, 1, axis)) & cell for axis in range(3)]
    smooth = np.stack([gaussian_filter(channel.astype(np.float32), 1) for channel in clean])

    def correlated() -> NDArray[np.float32]:
        noise = gaussian_filter(generator.standard_normal(labels.shape).astype(np.float32), 3)
        return noise / noise.std()

    own = np.stack([correlated() for _ in range(3)])
    white = generator.standard_normal(smooth.shape).astype(np.float32)
    values = smooth + 0.15 * correlated() + 0.1 * own + 0.1 * white
    return (np.clip(values, 0, 1) * 255).astype(np.uint8)


def test_fragments_of_real_neurons_are_published_small_and_pure(shared_data: Path) -> None:
    cube = zarr.open_array(shared_data / "fib25" / "trvol-250-2.zarr" / "volumes/labels/neuron_ids", mode="r")
    labels = np.asarray(cube[40:120, 60:150, 60:150]).astype(np.uint64)
    affs = truth_affinities(labels)
    fragments = extract_fragments(affs, None, FragmentRules())

    distance = distance_transform_edt(affs.astype(np.float32).mean(axis=0) > 127.5)
    seeds, _ = mahotas.label(maximum_filter(distance, 10) == distance)
    assert same_partition(fragments, mahotas.cwatershed(distance.max() - distance, seeds))

    pairs, counts = np.unique(np.stack([fragments.ravel(), labels.ravel()]), axis=1, return_counts=True)
    best = np.zeros(int(fragments.max()) + 1, np.int64)
    np.maximum.at(best, pairs[0].astype(np.int64), counts)
    assert best.sum() / labels.size > 0.93, "fragments must hardly cross neurons"
    assert len(np.unique(fragments)) > len(np.unique(labels)) / 2
