"""One description of augmentation, two executors: arrays on the CPU and tensors on a device give the same values."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

gp = pytest.importorskip("gunpowder")
torch = pytest.importorskip("torch")

from lsdflow_contract.testing import membrane_raw, voronoi_labels  # noqa: E402
from lsdflow_training.augmentation import cpu  # noqa: E402
from lsdflow_training.augmentation import device as on_device  # noqa: E402
from lsdflow_training.augmentation.description import Dice, Noise  # noqa: E402
from lsdflow_training.augmentation.nodes import elastic_augment, intensity_nodes  # noqa: E402
from lsdflow_training.settings import Augmentation  # noqa: E402

SHAPE = (14, 40, 44)
ALL = Augmentation(
    elastic_probability=1.0,
    control_point_spacing_vox=(4, 20, 20),
    jitter_sigma_vox=(0.0, 2.0, 2.0),
    rotation_max_rad=1.5,
    slip_probability=0.3,
    shift_probability=0.3,
    max_misalign_vox=3,
    subsample=8,
    intensity_scale=(0.8, 1.2),
    intensity_shift=(-0.1, 0.1),
    anisotropic=True,
    intensity_per_section=True,
    gamma=(0.5, 2.0),
    noise_probability=1.0,
    blur_probability=0.5,
    missing_section_probability=0.2,
    low_contrast_probability=0.2,
    artifact_probability=0.2,
    repeated_section_probability=0.2,
)
CHANGES = ("Blur", "Gamma", "IntensityAugment", "NoiseAugment", "DamagedSections")


def a_patch() -> np.ndarray:
    return membrane_raw(voronoi_labels(SHAPE, 12, 0), 0).astype(np.float32) / 255


@pytest.mark.gpu
@pytest.mark.parametrize("sections", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_the_same_on_both(name: str, sections: bool, device) -> None:
    how = dataclasses.replace(ALL, anisotropic=sections, intensity_per_section=sections)
    (node,) = (node for node in intensity_nodes(gp.ArrayKey("RAW"), how) if type(node).__name__ == name)
    raw = a_patch()
    for seed in range(1, 5):
        change = node.drawn(SHAPE, seed, Dice.of(seed))
        array = cpu.changed(raw, change)
        tensor = on_device.changed(torch.from_numpy(raw).to(device), change).cpu().numpy()
        if isinstance(change, Noise):  # other random numbers of the same distribution
            inner = (raw > 0.3) & (raw < 0.7)
            for result in (array, tensor):
                noise = (result - raw)[inner]
                assert noise.std() == pytest.approx(change.std, rel=0.1)
                assert abs(noise.mean()) < 0.1 * change.std
        else:
            np.testing.assert_allclose(tensor, array, atol=1e-5)


@pytest.mark.gpu
def test_noise_follows_from_its_seed_differs_between_voxels_and_stays_within_0_and_1(device) -> None:
    grey = np.full(SHAPE, 0.5, np.float32)
    grey[0], grey[1] = 0, 1
    raw = torch.from_numpy(grey).to(device)
    for noisy in (
        [cpu.changed(grey, Noise(0.05, seed)) for seed in (1, 1, 2)],
        [on_device.changed(raw, Noise(0.05, seed)).cpu().numpy() for seed in (1, 1, 2)],
    ):
        np.testing.assert_array_equal(noisy[0], noisy[1])
        assert (np.min(noisy), np.max(noisy)) == (0, 1)
        sections = np.reshape([noisy[0], noisy[2]], (2 * SHAPE[0], -1))
        between = np.corrcoef(sections)[~np.eye(len(sections), dtype=bool)]
        assert abs(between).max() < 0.2


@pytest.mark.gpu
def test_a_deformation_has_the_same_field_on_both(device) -> None:
    for jitter in (False, True):
        warp = elastic_augment(ALL, jitter).draw(SHAPE, Dice.of(1))
        np.testing.assert_allclose(
            on_device.fine_field(warp, torch.device(device)).cpu(), cpu.fine_field(warp), atol=1e-4
        )


def test_every_change_of_the_pipeline_is_compared() -> None:
    assert tuple(type(node).__name__ for node in intensity_nodes(gp.ArrayKey("RAW"), ALL)) == CHANGES
