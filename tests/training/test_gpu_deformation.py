"""Deformation on the device, against scipy and against the loops of the gunpowder pipeline."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numba")

from scipy import ndimage  # noqa: E402

from lsdflow_contract.geometry import Box  # noqa: E402
from lsdflow_training.augmentation import cpu  # noqa: E402
from lsdflow_training.augmentation.cpu import source_box  # noqa: E402
from lsdflow_training.augmentation.description import Region, Turn, Warp  # noqa: E402
from lsdflow_training.augmentation.device import apply_step, fine_field, gather_linear, nearest_places  # noqa: E402


def random_field(rng: np.random.Generator, shape, source) -> np.ndarray:
    """Positions anywhere in the source, none half-way between two voxels."""
    ends = np.array(source)[:, None, None, None] - 1
    field = rng.uniform(0, 1, (3, *shape)) * ends
    half = np.abs(field % 1 - 0.5) < 1e-3
    return (field + 0.01 * half).clip(0, ends).astype(np.float32)


@pytest.mark.parametrize("source", [(7, 9, 11), (1, 6, 5)])
def test_voxels_are_those_of_map_coordinates(source) -> None:
    rng = np.random.default_rng(0)
    field = random_field(rng, (5, 6, 7), source)
    raw, labels = rng.random(source, np.float32), rng.integers(0, 30_000, source, np.int16)
    found = gather_linear(torch.from_numpy(raw), torch.from_numpy(field)).numpy()
    np.testing.assert_allclose(found, ndimage.map_coordinates(raw, field, order=1), atol=2e-5)
    places = nearest_places(torch.from_numpy(field), torch.Size(source)).numpy()
    wanted = ndimage.map_coordinates(labels, field, order=0)
    assert np.array_equal(labels.ravel()[places].reshape(wanted.shape), wanted)


def random_warp(rng: np.random.Generator, shape=(20, 26, 31), shifts: bool = True) -> Warp:
    coarse_shape = tuple(max(1, n // 8) for n in shape)
    axes = (np.linspace(0, n - 1, m) for n, m in zip(shape, coarse_shape, strict=True))
    coarse = np.stack(np.meshgrid(*axes, indexing="ij")) + rng.normal(0, 2, (3, *coarse_shape))
    moved = rng.integers(-2, 3, (shape[0], 2)).astype(np.float32) if shifts else None
    return Warp(shape, coarse.astype(np.float32), moved)


@pytest.mark.parametrize("shifts", [True, False])
def test_the_source_box_is_the_hull_of_the_whole_field(shifts: bool) -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        warp = random_warp(rng, shifts=shifts)
        field = cpu.fine_field(warp)
        np.testing.assert_allclose(fine_field(warp, torch.device("cpu")).numpy(), field, atol=1e-4)
        begin = tuple(int(rng.integers(0, n - 4)) for n in warp.shape_vox)
        target = Box(begin, tuple(int(rng.integers(1, n - b + 1)) for n, b in zip(warp.shape_vox, begin, strict=True)))
        part = field[(slice(None), *target.slices())].reshape(3, -1)
        low, high = np.floor(part.min(1)).astype(int), np.ceil(part.max(1)).astype(int) + 1
        found = source_box(warp, target)
        assert found == Box.from_bounds(tuple(low.tolist()), tuple(high.tolist()))


def test_raw_labels_and_mask_are_cut_at_their_positions() -> None:
    rng = np.random.default_rng(2)
    warp = random_warp(rng)
    field = cpu.fine_field(warp)
    volume = rng.integers(0, 200, (40, 46, 51)).astype(np.float32)  # voxel 0 of it is voxel -10 of the box
    targets = {"raw": Box((2, 3, 4), (11, 12, 13)), "labels": Box((5, 0, 1), (9, 8, 7))}
    regions = {name: Region(target, (-10, -10, -10)) for name, target in targets.items()}
    whole = torch.from_numpy(volume)
    volumes = {"raw": whole, "labels": whole.to(torch.int32), "mask": whole.to(torch.uint8)}
    made = apply_step(Warp(warp.shape_vox, warp.coarse, warp.section_shifts_vox, regions), volumes)
    for name, order in (("raw", 1), ("labels", 0), ("mask", 0)):
        target = targets["raw" if name == "raw" else "labels"]
        at = field[(slice(None), *target.slices())] + 10
        np.testing.assert_allclose(made[name], ndimage.map_coordinates(volume, at, order=order), atol=0.02)


def test_a_turn_is_a_flip_and_a_transpose() -> None:
    volume = np.arange(24).reshape(2, 3, 4)
    found = apply_step(Turn((True, False, True), (2, 0, 1)), {"raw": torch.from_numpy(volume)})["raw"]
    assert np.array_equal(found, volume[::-1, :, ::-1].transpose(2, 0, 1))
