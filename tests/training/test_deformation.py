"""The compiled loops of elastic deformation against scipy's, which gunpowder uses."""

import random

import numpy as np
import pytest

gp = pytest.importorskip("gunpowder")
augment = pytest.importorskip("augment")

from lsdflow_training.augmentation.cpu import gather_linear, gather_nearest, upsample_field  # noqa: E402
from lsdflow_training.augmentation.nodes import ElasticAugment  # noqa: E402


def a_field(shape: tuple[int, int, int], seed: int = 0) -> np.ndarray:
    grid = np.array(np.meshgrid(*(np.arange(n) for n in shape), indexing="ij"), np.float32)
    return grid + np.random.default_rng(seed).uniform(-2, 2, grid.shape).astype(np.float32)


def test_upsampling_is_that_of_scipy() -> None:
    coarse = np.random.default_rng(0).uniform(0, 30, (3, 4, 3, 5)).astype(np.float32)
    expected = augment.upscale_transformation(coarse, (17, 20, 24))
    fine = upsample_field(coarse, (17, 20, 24))
    inner = (slice(None), slice(1, -1), slice(1, -1), slice(1, -1))  # scipy may call the last point outside
    np.testing.assert_allclose(fine[inner], expected[inner], atol=1e-4)


def test_gathering_is_that_of_scipy() -> None:
    rng = np.random.default_rng(1)
    field = a_field((9, 10, 11))
    raw = rng.uniform(0, 1, (9, 10, 11)).astype(np.float32)
    labels = rng.integers(0, 9, (9, 10, 11)).astype(np.uint64)
    np.testing.assert_allclose(gather_linear(raw, field), augment.apply_transformation(raw, field), atol=1e-5)
    inside = np.all([(f >= 0) & (f <= n - 1) for f, n in zip(field, raw.shape, strict=True)], axis=0)
    expected = augment.apply_transformation(labels, field, interpolate=False)
    np.testing.assert_array_equal(gather_nearest(labels, field)[inside], expected[inside])


def test_ids_beyond_float64_survive() -> None:
    labels = np.array([2**60, 2**60 + 1], np.uint64).reshape(1, 1, 2)
    field = np.array(np.meshgrid([0], [0], [0, 1], indexing="ij"), np.float32)
    np.testing.assert_array_equal(gather_nearest(labels, field), labels)


@pytest.mark.parametrize("jitter", [(0, 0, 0), (2, 2, 2)])
def test_the_field_of_a_patch_is_the_one_gunpowder_draws(jitter: tuple[int, int, int]) -> None:
    """Same seed, same rotation, jitter, slips and shifts."""
    fields = []
    for kind in (gp.ElasticAugment, ElasticAugment):
        node = kind((8, 8, 8), jitter, (0, 1.5), prob_slip=0.2, prob_shift=0.2, max_misalign=2, subsample=4)
        random.seed(3)
        np.random.seed(3)
        fields.append(node._ElasticAugment__create_transformation((20, 22, 24)))
    np.testing.assert_allclose(fields[0][:, 1:-1, 1:-1, 1:-1], fields[1][:, 1:-1, 1:-1, 1:-1], atol=1e-3)
