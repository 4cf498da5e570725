"""The mutex watershed is the one that is defined: strong edges first, a mutex is never broken."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from lsdflow_contract.arrays import AFFINITY_NEIGHBORHOOD
from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Vox3
from lsdflow_contract.testing import noisy_affinities_to, same_partition, voronoi_labels
from lsdflow_watershed.fragments import FragmentRules
from lsdflow_watershed.mutex import (
    Channel,
    MutexRules,
    extract_mutex_fragments,
    mutex_channels,
    mutex_watershed,
    remove_debris,
    usual_stride_vox,
)

OFFSETS = (*AFFINITY_NEIGHBORHOOD, (-2, 0, 0), (0, -3, 0), (0, 0, -3), (0, 2, -3), (-1, -2, 3))
BIASES = ([-0.5] * 8, [0.0] * 3 + [-1.0] * 5, [-0.2] * 3 + [-0.8] * 5)

Edge = tuple[float, int, bool, Vox3, Vox3]


def slow_mutex_watershed(
    affs: NDArray[np.uint8], channels: Sequence[Channel], mask: NDArray[np.uint8] | None, begin_vox: Vox3
) -> NDArray[np.int64]:
    """Slow reference: every edge is compared with all repelling ones that came before; 0 where nothing attracts."""
    shape = affs.shape[1:]
    edges = sorted(edges_of(affs, channels, mask, begin_vox))
    labels = np.arange(1, np.prod(shape) + 1).reshape(shape)
    repelled: list[tuple[Vox3, Vox3]] = []
    for _, _, repels, voxel, end in edges:
        one, other = labels[voxel], labels[end]
        parted = any({labels[a], labels[b]} == {one, other} for a, b in repelled)
        if one != other and not parted:
            if repels:
                repelled.append((voxel, end))
            else:
                labels[labels == other] = one
    attracted = np.zeros(shape, bool)
    for _, _, repels, voxel, end in edges:
        if not repels:
            attracted[voxel] = attracted[end] = True
    return np.where(attracted, labels, 0)


def edges_of(
    affs: NDArray[np.uint8], channels: Sequence[Channel], mask: NDArray[np.uint8] | None, begin_vox: Vox3
) -> list[Edge]:
    """Minus strength, channel, whether it repels, and both voxels: what decides the order, in this order."""
    found: list[Edge] = []
    shape = affs.shape[1:]
    for number, channel in enumerate(channels):
        for voxel in product(*map(range, shape)):
            end = tuple(v + o for v, o in zip(voxel, channel.offset_vox, strict=True))
            counts = all((b + v) % s == 0 for b, v, s in zip(begin_vox, voxel, channel.stride_vox, strict=True))
            inside = all(0 <= e < n for e, n in zip(end, shape, strict=True))
            if not (counts and inside) or (mask is not None and not (mask[voxel] and mask[end])):
                continue
            weight = round(int(affs[(number, *voxel)]) / 255 + channel.bias, 9)
            if weight != 0:
                found.append((-abs(weight), number, weight < 0, voxel, end))  # type: ignore[arg-type]
    return found


def some_affinities(seed: int, shape: tuple[int, ...], count: int) -> NDArray[np.uint8]:
    """Few grey levels, so that many edges are equally strong, or all of them."""
    generator = np.random.default_rng(seed)
    levels = int(generator.choice([2, 4, 16, 256]))
    return (generator.integers(0, levels, (count, *shape)) * 255 // (levels - 1)).astype(np.uint8)


@pytest.mark.parametrize("seed", range(30))
def test_fragments_equal_the_slow_reference(seed: int) -> None:
    generator = np.random.default_rng(seed)
    shape = tuple(generator.integers(1, 8, 3).tolist())
    count = int(generator.integers(3, 9))
    affs = some_affinities(seed, shape, count)
    z, y, x = generator.integers(1, 4, 3).tolist()
    strides = [(1, 1, 1)] * 3 + [((z, y, x) if seed % 2 else (1, 1, 1))] * 5
    channels = [Channel(OFFSETS[n], BIASES[seed % 3][n], strides[n]) for n in range(count)]
    mask = (generator.random(shape) > 0.2).astype(np.uint8) if seed % 5 == 0 else None
    z, y, x = generator.integers(0, 9, 3).tolist()
    found = mutex_watershed(affs, channels, mask, (z, y, x))
    assert same_partition(found, slow_mutex_watershed(affs, channels, mask, (z, y, x)))
    first = np.unique(found[found > 0], return_index=True)
    assert first[0].tolist() == list(range(1, len(first[0]) + 1))
    assert np.all(np.diff(first[1]) > 0), "numbers go by first voxels"


@pytest.mark.parametrize("shape", [(0, 3, 3), (1, 1, 1), (1, 1, 5)])
def test_boxes_without_an_edge_have_no_fragments(shape: tuple[int, int, int]) -> None:
    affs = np.full((4, *shape), 255, np.uint8)
    found = mutex_watershed(affs, mutex_channels((*AFFINITY_NEIGHBORHOOD, (0, 0, -9)), (), ()))
    assert found.shape == shape
    assert found.max(initial=0) == (1 if shape[2] == 5 else 0)


def test_a_weak_wall_is_not_crossed_where_far_voxels_repel_each_other() -> None:
    """Two cells whose membrane has a hole: near affinities alone make them one, far ones hold them apart."""
    affs = np.full((4, 1, 8, 20), 255, np.uint8)
    affs[2, 0, :, 10] = 100
    affs[2, 0, 4, 10] = 200
    affs[3] = 255
    affs[3, 0, :, 10:14] = 0
    far = (0, 0, -4)
    near_only = mutex_watershed(affs[:3], mutex_channels(AFFINITY_NEIGHBORHOOD, (), ()))
    assert near_only.max() == 1
    found = mutex_watershed(affs, mutex_channels((*AFFINITY_NEIGHBORHOOD, far), (), ()))
    assert np.array_equal(found[0], np.where(np.arange(20) < 10, 1, 2) * np.ones((8, 1), int))


def test_cells_are_found_in_noisy_affinities() -> None:
    labels = voronoi_labels((20, 24, 28), 12, seed=1)
    neighborhood = (*AFFINITY_NEIGHBORHOOD, (-3, 0, 0), (0, -3, 0), (0, 0, -3))
    affs = noisy_affinities_to(labels, neighborhood)
    found = mutex_watershed(affs, mutex_channels(neighborhood, (), [(2, 2, 2)]))
    pairs, counts = np.unique(np.stack([found.ravel(), labels.ravel()]), axis=1, return_counts=True)
    most = sum(counts[pairs[0] == fragment].max() for fragment in np.unique(pairs[0]))
    assert most > 0.97 * labels.size
    assert found.max() < 0.1 * labels.size


def test_many_mutexes_of_large_clusters_are_kept_while_the_set_of_them_grows() -> None:
    """Each slab of a comb repels all others: as many mutexes as there are pairs, each asked for again and again."""
    affs = np.zeros((3 + 30, 1, 6, 62), np.uint8)
    affs[1] = 255
    neighborhood = (*AFFINITY_NEIGHBORHOOD, *((0, 0, -far) for far in range(2, 32)))
    affs[2] = 200
    found = mutex_watershed(affs, mutex_channels(neighborhood, (), ()))
    wanted = slow_mutex_watershed(affs, mutex_channels(neighborhood, (), ()), None, (0, 0, 0))
    assert same_partition(found, wanted)
    assert found.max() == 31


def test_sections_stay_apart_in_xy() -> None:
    affs = np.full((4, 5, 6, 7), 255, np.uint8)
    channels = mutex_channels((*AFFINITY_NEIGHBORHOOD, (-2, 0, 0)), (), ())
    found = extract_mutex_fragments(affs, None, FragmentRules(fragments_in_xy=True), MutexRules(channels), (0, 0, 0))
    assert np.array_equal(found[:, 0, 0], np.arange(1, 6))
    assert (found == found[:, :1, :1]).all()


def test_debris_and_weak_fragments_are_cleared_and_sure_ones_joined() -> None:
    affs = np.full((3, 1, 4, 9), 255, np.uint8)
    affs[2, :, :, 5] = 90
    affs[1:, 0, 0, 8] = 0
    affs[1, 0, 1, 8] = 0
    affs[2, 0, 1:, 8] = 100
    channels = mutex_channels(AFFINITY_NEIGHBORHOOD, (), ())

    def made(smallest: int = 0, **rules: float) -> NDArray[np.uint32]:
        return extract_mutex_fragments(affs, None, FragmentRules(**rules), MutexRules(channels, smallest), (0, 0, 0))

    assert np.unique(made(), return_counts=True)[1].tolist() == [1, 20, 12, 3]
    assert np.unique(made(4), return_counts=True)[1].tolist() == [4, 20, 12]
    assert np.unique(made(filter_fragments=0.84), return_counts=True)[1].tolist() == [4, 20, 12]
    assert np.unique(made(epsilon_agglomerate=0.7), return_counts=True)[1].tolist() == [1, 35]
    assert remove_debris(made(), 100).max() == 0


def test_the_usual_stride_is_as_long_along_every_axis() -> None:
    assert usual_stride_vox((8.0, 8.0, 8.0)) == (4, 4, 4)
    assert usual_stride_vox((40.0, 4.0, 4.0)) == (1, 4, 4)
    assert usual_stride_vox((8.0, 4.0, 4.0)) == (2, 4, 4)


def test_bias_and_strides_are_those_given_or_as_published() -> None:
    far = (*AFFINITY_NEIGHBORHOOD, (0, 0, -5))
    assert [c.bias for c in mutex_channels(AFFINITY_NEIGHBORHOOD, (), ())] == [-0.5] * 3
    assert [c.bias for c in mutex_channels(far, (), ())] == [0, 0, 0, -1]
    assert [c.bias for c in mutex_channels(far, (-0.25,), ())] == [-0.25] * 4
    assert [c.bias for c in mutex_channels(far, (-0.1, -0.2, -0.3, -0.4), ())] == [-0.1, -0.2, -0.3, -0.4]
    assert [c.stride_vox for c in mutex_channels(far, (), ())] == [(1, 1, 1)] * 4
    assert [c.stride_vox for c in mutex_channels(far, (), [(1, 4, 4)])] == [(1, 1, 1)] * 3 + [(1, 4, 4)]
    assert [c.stride_vox for c in mutex_channels(far, (), [(2, 2, 2)] * 4)] == [(2, 2, 2)] * 4
    with pytest.raises(ConfigError, match="as many values") as caught:
        mutex_channels(far, (-0.1, -0.2), ())
    assert caught.value.where == "watershed.mutex_bias"
    with pytest.raises(ConfigError) as caught:
        mutex_channels(far, (), [(2, 2, 2)] * 3)
    assert caught.value.where == "watershed.mutex_strides"
