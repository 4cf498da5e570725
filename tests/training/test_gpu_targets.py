"""Targets and weights on the device: bit for bit those of the nodes of gunpowder and lsdflow."""

from __future__ import annotations

import numpy as np
import pytest

gp = pytest.importorskip("gunpowder")
torch = pytest.importorskip("torch")

from gunpowder.nodes.add_affinities import seg_to_affgraph  # noqa: E402

from lsdflow_contract.geometry import Box  # noqa: E402
from lsdflow_training.data.device_volumes import to_device  # noqa: E402
from lsdflow_training.targets import boundaries  # noqa: E402
from lsdflow_training.targets.torch_targets import affinities, balanced, grow_boundary  # noqa: E402

OFFSETS = ((-1, 0, 0), (0, -1, 0), (0, 0, -1), (-3, 0, 0), (0, 2, -3))
OUTPUT = Box((4, 4, 4), (6, 7, 5))


def random_labels(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 5, (7, 8, 7))
    labels = coarse.repeat(2, 0).repeat(2, 1).repeat(2, 2)
    return labels.astype(np.uint64), rng.integers(0, 3, labels.shape).astype(np.uint8)


def cropped(volume: np.ndarray) -> np.ndarray:
    return volume[(slice(None), *OUTPUT.slices())]


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("only_xy", [True, False])
def test_boundaries_grow_as_on_the_cpu(steps: int, only_xy: bool) -> None:
    for seed in range(5):
        labels, mask = random_labels(seed)
        found = grow_boundary(torch.from_numpy(labels.astype(np.int16)), torch.from_numpy(mask), steps, only_xy)
        assert np.array_equal(found.numpy(), boundaries.grow_boundary(labels, mask, steps, only_xy))


@pytest.mark.proves("TAC-03")
def test_affinities_are_those_of_gunpowder() -> None:
    labels, mask = random_labels(0)
    affs, counted = affinities(torch.from_numpy(labels.astype(np.int32)), torch.from_numpy(mask > 0), OUTPUT, OFFSETS)
    assert np.array_equal(affs, cropped(seg_to_affgraph(labels.astype(np.int32), np.array(OFFSETS))))
    assert np.array_equal(counted, cropped(seg_to_affgraph((mask > 0).astype(np.int32), np.array(OFFSETS))))
    assert 0 < affs.mean() < 1
    assert 0 < counted.float().mean() < 1


def gunpowder_weights(affs: np.ndarray, counted: np.ndarray) -> np.ndarray:
    keys = [gp.ArrayKey(name) for name in ("AFFS_OF_TEST", "MASK_OF_TEST", "SCALES_OF_TEST")]
    spec = gp.ArraySpec(roi=gp.Roi((0, 0, 0), affs.shape[1:]), voxel_size=(1, 1, 1), interpolatable=False)
    request, batch = gp.BatchRequest(), gp.Batch()
    for key, data in zip(keys, (affs, counted), strict=False):
        batch[key] = gp.Array(data.astype(np.uint8), spec.copy())
    node = gp.BalanceLabels(keys[0], keys[2], mask=keys[1], slab=(3, -1, -1, -1) if len(affs) > 3 else None)
    node._spec = gp.ProviderSpec({key: spec.copy() for key in keys})
    return node.process(batch, request)[keys[2]].data


@pytest.mark.parametrize("channels", [3, 5])
def test_balanced_weights_are_those_of_gunpowder_to_the_bit(channels: int) -> None:
    rng = np.random.default_rng(3)
    shape = (channels, 6, 7, 5)
    for share in (0.5, 0.01, 0.999, 0.0, 1.0):
        for trained in (0.7, 0.0):
            affs, counted = rng.random(shape) < share, rng.random(shape) < trained
            found = balanced(torch.from_numpy(affs.astype(np.float32)), torch.from_numpy(counted))
            with np.errstate(divide="ignore", invalid="ignore"):
                assert np.array_equal(found.numpy(), gunpowder_weights(affs, counted))


def test_what_is_on_the_device_stays_when_its_source_is_overwritten() -> None:
    source = np.ones((2, 2, 2), np.uint8)
    there = to_device(source, torch.device("cpu"))
    source[...] = 7
    assert int(there.max()) == 1
