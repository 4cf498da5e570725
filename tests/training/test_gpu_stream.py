"""The stream of pipeline = "gpu", on the CPU: batch i is gunpowder's batch i."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

gp = pytest.importorskip("gunpowder")
torch = pytest.importorskip("torch")

from lsdflow_contract.arrays import MASK, MaskState  # noqa: E402
from lsdflow_contract.errors import BadData, ConfigError  # noqa: E402
from lsdflow_training.data.batches import batch_stream  # noqa: E402
from lsdflow_training.data.draw import Drawer  # noqa: E402
from lsdflow_training.data.patch import Patch  # noqa: E402
from lsdflow_training.data.pipeline import batch_request, make_keys, training_pipeline  # noqa: E402
from lsdflow_training.data.streams import gpu_stream  # noqa: E402
from lsdflow_training.testing import write_zarr2  # noqa: E402

CPU = torch.device("cpu")


def gunpowder_batches(prepared, keys, count: int):
    settings = prepared.settings
    pipeline, request = training_pipeline(keys, settings, prepared.sources), batch_request(keys, settings)
    with batch_stream(pipeline, request, seed=settings.seed, first=1, num_workers=0, cache_size=4) as stream:
        return [next(stream) for _ in range(count)]


def device_patches(prepared, keys, count: int, first: int = 1, stride: int = 1, **options) -> list[Patch]:
    settings = dataclasses.replace(prepared.settings, **options)
    with gpu_stream(keys, settings, prepared.sources, first=first, stride=stride, device=CPU) as stream:
        return [next(stream) for _ in range(count)]


def three_states(prepared) -> None:
    """Ignored, trained and background voxels side by side."""
    states = np.full((40, 40, 40), MaskState.TRAIN, np.uint8)
    states[:, :, 26:] = MaskState.IGNORE
    states[:, 28:, :] = MaskState.BACKGROUND
    volume = prepared.sources[0].volume
    write_zarr2(volume.path, MASK.dataset, states, volume.voxel_size_nm, (0.0, 0.0, 0.0))


def with_frequent_slips(prepared):
    how = dataclasses.replace(prepared.settings.augmentation, slip_probability=0.2, shift_probability=0.1)
    return dataclasses.replace(prepared, settings=dataclasses.replace(prepared.settings, augmentation=how))


@pytest.mark.parametrize(
    ("voxel_size_nm", "elastic", "options"),
    [
        ((8.0, 8.0, 8.0), 0.0, {}),
        ((8.0, 8.0, 8.0), 1.0, {}),
        ((40.0, 8.0, 8.0), 1.0, {"train_background": True}),
        ((8.0, 8.0, 8.0), 1.0, {"balance_labels": False, "grow_boundary_vox": 0, "lsd_downsample": 1}),
    ],
)
def test_patch_i_is_the_batch_i_of_gunpowder_with_every_augmentation(prepared, voxel_size_nm, elastic, options) -> None:
    """So place, volume, angles, displacements, slips, turns and intensities have gunpowder's distributions."""
    training = with_frequent_slips(prepared("mtlsd", None, voxel_size_nm, elastic_probability=elastic, **options))
    three_states(training)
    keys = make_keys()
    whole = 0
    for wanted, found in zip(gunpowder_batches(training, keys, 3), device_patches(training, keys, 3), strict=True):
        np.testing.assert_allclose(found.raw[0, 0], wanted[keys.raw].data, atol=1e-4 if elastic else 1e-6)
        moved = (found.mask.numpy() != wanted[keys.mask].data).mean()
        assert moved <= (2e-4 if elastic else 0), "a voxel half-way between two may fall to either"
        same_place = {"affs": keys.affs, "lsds": keys.lsds}
        for name, key in same_place.items():
            near = np.isclose(found.targets[name][0], wanted[key].data, atol=1e-5 if elastic else 2e-6, rtol=0)
            assert near.mean() >= (0.999 if elastic else 1)
        weights = {"affs": keys.affs_weight, "lsds": keys.lsds_weight}
        equal = [np.array_equal(found.weights[name][0], wanted[key].data) for name, key in weights.items()]
        whole += all(equal)
    assert whole >= (2 if elastic else 3), "weights are those of gunpowder, bit for bit"


def test_a_patch_has_the_same_bits_whatever_the_stride(prepared) -> None:
    training, keys = prepared("mtlsd", elastic_probability=0.7), make_keys()
    here, there = device_patches(training, keys, 5), device_patches(training, keys, 2, first=3, stride=2)
    for a, b in zip(here[2::2], there, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(a.tensors(), b.tensors(), strict=True))
    assert not torch.equal(here[0].raw, here[1].raw)


def test_an_error_of_the_draw_is_reported_by_the_stream(prepared, monkeypatch) -> None:
    from lsdflow_training.data import random_location

    monkeypatch.setattr(random_location, "MAX_TRIES", 50)
    training = prepared("affinities", elastic_probability=0.0)
    volume = training.sources[0].volume
    write_zarr2(volume.path, MASK.dataset, np.zeros((40, 40, 40), np.uint8), volume.voxel_size_nm, (0.0, 0.0, 0.0))
    with pytest.raises(BadData, match="no place found"):
        device_patches(training, make_keys(), 1)


class Unknown(gp.BatchFilter):
    """A node that the device does not know."""


def test_a_node_without_a_counterpart_on_the_device_is_refused_not_left_out(prepared) -> None:
    training, keys = prepared("affinities"), make_keys()
    pipeline = training_pipeline(keys, training.settings, training.sources)
    slab = gp.IntensityAugment(keys.raw, 0.9, 1.1, -0.1, 0.1, slab=(2, -1, -1))
    for node in (Unknown(), slab):
        with pytest.raises(ConfigError) as caught:
            Drawer(pipeline + node, keys, batch_request(keys, training.settings))
        assert caught.value.found == type(node).__name__


@pytest.mark.parametrize("anisotropic", [True, False])
def test_changed_intensities_are_those_of_the_gunpowder_pipeline(prepared, anisotropic: bool) -> None:
    voxel_size_nm = (30.0, 6.0, 6.0) if anisotropic else (8.0, 8.0, 8.0)
    thin = {"downsample_factors": [[1, 2, 2]], "input_shape_vox": [20, 28, 28], "predict_input_shape_vox": [20, 32, 32]}
    often = dict.fromkeys(("missing_section", "low_contrast", "artifact", "repeated_section"), 0.15)
    training = prepared(
        "affinities", None, voxel_size_nm, elastic_probability=0.0, intensity_per_section=anisotropic, gamma=[0.5, 2.0],
        blur_probability=0.5, **{f"{name}_probability": share for name, share in often.items()},
        **(thin if anisotropic else {}),
    )  # fmt: skip
    keys = make_keys()
    for wanted, found in zip(gunpowder_batches(training, keys, 3), device_patches(training, keys, 3), strict=True):
        np.testing.assert_allclose(found.raw[0, 0], wanted[keys.raw].data, atol=1e-5)
        np.testing.assert_array_equal(found.targets["affs"][0], wanted[keys.affs].data)


def test_noise_has_gunpowders_deviation_and_the_same_bits_again(prepared) -> None:
    quiet = prepared("affinities", elastic_probability=0.0, noise_probability=1e-12)
    noisy = prepared("affinities", elastic_probability=0.0, noise_probability=1.0, noise_std=0.05)
    keys = make_keys()
    here, plain = device_patches(noisy, keys, 2), device_patches(quiet, keys, 2)
    there = device_patches(noisy, keys, 2)
    for patch, same, without in zip(here, there, plain, strict=True):
        assert torch.equal(patch.raw, same.raw)
        middle = without.raw.abs() < 0.5
        assert (patch.raw - without.raw)[middle].std().item() == pytest.approx(2 * 0.05, rel=0.1)


def test_a_draw_is_not_changed_by_random_numbers_of_other_threads(prepared, monkeypatch) -> None:
    """MLflow's client, for example, draws from the numbers that all share."""
    training, keys = prepared("affinities", elastic_probability=1.0, noise_probability=0.5), make_keys()
    settings = training.settings
    drawer = Drawer(training_pipeline(keys, settings, training.sources), keys, batch_request(keys, settings))
    wanted = drawer.draw(7)
    for module in (random, np.random):
        for name in ("random", "seed", "randint", "normal", "uniform", "choice"):
            monkeypatch.setattr(module, name, lambda *_a, **_k: pytest.fail("numbers that all share"), raising=False)
    found = drawer.draw(7)
    assert found.boxes == wanted.boxes
    assert np.array_equal(found.steps[0].coarse, wanted.steps[0].coarse)
