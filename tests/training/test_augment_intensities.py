"""Changes of intensities: gamma, noise, blur, damaged sections. What each does, how far, and that 0 is nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

gp = pytest.importorskip("gunpowder")

from lsdflow_contract.testing import membrane_raw, voronoi_labels  # noqa: E402
from lsdflow_training.augmentation.cpu import blurred, changed, covering, damaged  # noqa: E402
from lsdflow_training.augmentation.description import Damage, Damages, Exponents, draw_artifact  # noqa: E402
from lsdflow_training.augmentation.nodes import IntensityAugment, intensity_nodes  # noqa: E402
from lsdflow_training.settings import Augmentation  # noqa: E402

SHAPE = (12, 40, 44)
OFF = Augmentation(
    elastic_probability=0.0,
    control_point_spacing_vox=(4, 40, 40),
    jitter_sigma_vox=(0.0, 2.0, 2.0),
    rotation_max_rad=0.0,
    slip_probability=0.0,
    shift_probability=0.0,
    max_misalign_vox=0,
    subsample=8,
    intensity_scale=(1.0, 1.0),
    intensity_shift=(0.0, 0.0),
    anisotropic=True,
)
EACH = {
    "gamma": {"gamma": (0.5, 2.0)},
    "gamma of sections": {"gamma": (0.5, 2.0), "intensity_per_section": True},
    "noise": {"noise_probability": 1.0},
    "blur": {"blur_probability": 1.0},
    "blur of the patch": {"blur_probability": 1.0, "anisotropic": False},
    "missing": {"missing_section_probability": 0.5},
    "low contrast": {"low_contrast_probability": 0.5},
    "artefacts": {"artifact_probability": 0.5},
    "repeated": {"repeated_section_probability": 0.5},
}


def a_patch() -> np.ndarray:
    return membrane_raw(voronoi_labels(SHAPE, 12, 0), 0).astype(np.float32) / 255


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class Patch(gp.BatchProvider):
    """The same raw for every request, read-only: a node that writes into its input fails."""

    def __init__(self, key: gp.ArrayKey, raw: np.ndarray) -> None:
        self.key, self.raw = key, raw
        self.raw.setflags(write=False)

    def setup(self) -> None:
        roi = gp.Roi((0, 0, 0), self.raw.shape)
        self.provides(self.key, gp.ArraySpec(roi=roi, voxel_size=(1, 1, 1), interpolatable=True))

    def provide(self, request: gp.BatchRequest) -> gp.Batch:
        batch = gp.Batch()
        batch[self.key] = gp.Array(self.raw, self.spec[self.key].copy())
        return batch


def after(nodes: Sequence[gp.BatchFilter], key: gp.ArrayKey, seed: int) -> np.ndarray:
    """The patch after the nodes, as a batch of the seed."""
    pipeline = Patch(key, a_patch())
    for node in nodes:
        pipeline += node
    request = gp.BatchRequest(random_seed=seed)
    request[key] = gp.ArraySpec(roi=gp.Roi((0, 0, 0), SHAPE))
    with gp.build(pipeline):
        return pipeline.request_batch(request)[key].data


def augmented(seed: int = 1, **options) -> np.ndarray:
    """The patch after the nodes that these options switch on, as a batch of the seed."""
    how, key = dataclasses.replace(OFF, **options), gp.ArrayKey("RAW")
    return after([n for n in intensity_nodes(key, how) if not isinstance(n, IntensityAugment)], key, seed)


def changed_sections(result: np.ndarray) -> np.ndarray:
    return (result != a_patch()).any(axis=(1, 2))


def test_only_the_published_change_is_enabled_by_default() -> None:
    assert [type(node) for node in intensity_nodes(gp.ArrayKey("RAW"), OFF)] == [IntensityAugment]


@pytest.mark.parametrize("sections", [False, True])
def test_contrast_and_noise_are_those_of_gunpowder(sections: bool) -> None:
    how = dataclasses.replace(
        OFF, intensity_scale=(0.5, 1.5), intensity_shift=(-0.3, 0.3), intensity_per_section=sections,
        noise_probability=0.5, noise_std=0.1,
    )  # fmt: skip
    key, slab = gp.ArrayKey("RAW"), (1, -1, -1) if sections else None
    other = [gp.IntensityAugment(key, 0.5, 1.5, -0.3, 0.3, slab=slab), gp.NoiseAugment(key, p=0.5, var=0.1**2)]
    for seed in range(1, 7):
        # gunpowder changes its input, so it needs a copy; a seed depends on the number of nodes
        found, wanted = (
            after([gp.IntensityScaleShift(key, 1, 0), *nodes], key, seed)
            for nodes in (intensity_nodes(key, how), other)
        )
        np.testing.assert_allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("name", EACH)
def test_a_change_follows_from_the_seed_stays_within_0_and_1_and_changes_something(name: str) -> None:
    one = augmented(**EACH[name])
    assert one.dtype == np.float32
    assert one.shape == SHAPE
    assert 0 <= one.min() < one.max() <= 1
    np.testing.assert_array_equal(one, augmented(**EACH[name]))
    assert not np.array_equal(one, augmented(seed=2, **EACH[name]))
    assert not np.array_equal(one, a_patch())


@pytest.mark.parametrize("name", ["noise", "blur", "missing", "low contrast", "artefacts", "repeated"])
def test_a_probability_too_small_to_happen_changes_no_bit(name: str) -> None:
    (option,) = (key for key in EACH[name] if key.endswith("probability"))
    np.testing.assert_array_equal(augmented(**{option: 1e-12}), a_patch())


def test_gamma_is_a_power_within_its_range() -> None:
    raw = a_patch()
    inner = (raw > 0.1) & (raw < 0.9)
    found = [np.log(augmented(seed=s, **EACH["gamma"])[inner]) / np.log(raw[inner]) for s in range(8)]
    for exponents in found:
        assert np.ptp(exponents) < 1e-3
        assert 0.5 - 1e-3 <= exponents.mean() <= 2 + 1e-3
    assert np.ptp([e.mean() for e in found]) > 0.3
    sections = augmented(**EACH["gamma of sections"])
    at = [np.log(sections[z][inner[z]]).sum() / np.log(raw[z][inner[z]]).sum() for z in range(len(raw))]
    assert np.unique(np.round(at, 3)).size == len(raw)
    np.testing.assert_array_equal(changed(raw, Exponents(np.array([1.0]))), raw)


def test_noise_has_the_stated_standard_deviation_on_the_stated_share_of_patches() -> None:
    raw = a_patch()
    middle = (raw > 0.3) & (raw < 0.7)
    change = (augmented(noise_probability=1.0, noise_std=0.05) - raw)[middle]
    assert change.std() == pytest.approx(0.05, rel=0.1)
    assert abs(change.mean()) < 0.01
    noisy = [not np.array_equal(augmented(seed=s, noise_probability=0.3), raw) for s in range(60)]
    assert 0.1 < np.mean(noisy) < 0.5


def test_blur_spreads_a_voxel_as_far_as_its_sigma_says_and_keeps_what_is_flat() -> None:
    point = np.zeros((1, 41, 41), np.float32)
    point[0, 20, 20] = 1
    spread = blurred(point[0], 1.5)
    offsets = np.arange(41) - 20
    assert spread.sum() == pytest.approx(1, abs=1e-3)
    assert (spread.sum(axis=1) * offsets**2).sum() == pytest.approx(1.5**2, rel=0.05)
    np.testing.assert_allclose(blurred(np.full((5, 6, 7), 0.25, np.float32), 2.0), 0.25, atol=1e-6)


def test_sections_of_anisotropic_volumes_are_blurred_one_by_one() -> None:
    raw, result = a_patch(), augmented(blur_probability=0.5)
    assert 1 < changed_sections(result).sum() < len(raw) - 1
    for z in np.flatnonzero(changed_sections(result)):
        assert result[z].std() <= raw[z].std()
        assert result[z].mean() == pytest.approx(raw[z].mean(), abs=0.02)


def test_damage_comes_as_often_as_it_is_said_and_one_kind_at_a_time() -> None:
    options = {
        "missing_section_probability": 0.2,
        "low_contrast_probability": 0.2,
        "repeated_section_probability": 0.1,
    }
    raw, counts = a_patch(), np.zeros(4)
    before = np.roll(raw, 1, axis=0)
    before[0] = raw[1]
    for seed in range(40):
        result = augmented(seed=seed, **options)
        missing = (result == 0).all(axis=(1, 2))
        repeated = (result == before).all(axis=(1, 2))
        pale = changed_sections(result) & ~missing & ~repeated
        np.testing.assert_allclose(
            result[pale].std(axis=(1, 2)), raw[pale].std(axis=(1, 2)) * OFF.low_contrast_scale, rtol=0.01
        )
        counts += [missing.sum(), pale.sum(), repeated.sum(), (~changed_sections(result)).sum()]
    np.testing.assert_allclose(counts / counts.sum(), [0.2, 0.2, 0.1, 0.5], atol=0.07)


def test_low_contrast_keeps_the_mean_and_is_what_gunpowder_does() -> None:
    raw = a_patch()
    result = damaged(raw, Damages(np.full(len(raw), Damage.LOW_CONTRAST), 0.25, {}))
    np.testing.assert_allclose(result.mean(axis=(1, 2)), raw.mean(axis=(1, 2)), atol=1e-5)
    key = gp.ArrayKey("RAW")
    node = gp.DefectAugment(key, prob_missing=0, prob_low_contrast=1, contrast_scale=0.25)
    request = gp.BatchRequest(random_seed=1)
    request[key] = gp.ArraySpec(roi=gp.Roi((0, 0, 0), SHAPE))
    source = Patch(key, raw.copy())
    source.raw.setflags(write=True)
    pipeline = source + node
    with gp.build(pipeline):
        np.testing.assert_allclose(pipeline.request_batch(request)[key].data, result, atol=1e-5)


def test_an_artefact_covers_a_part_of_a_section_with_grey_levels_of_the_volume() -> None:
    raw = a_patch()
    raw[:6] = 0.0
    raw[6:] = 1.0
    for seed in range(20):
        alpha, content = covering(raw, draw_artifact(SHAPE, generator(seed)))
        assert 0 <= alpha.min() < alpha.max() <= 1
        assert 0 < (alpha > 0).mean() < 0.9
        assert set(np.unique(content)) <= {0.0, 1.0}
    what = np.zeros(len(raw), int)
    what[3] = Damage.ARTIFACT
    results = [damaged(raw, Damages(what, 1.0, {3: draw_artifact(SHAPE, generator(seed))})) for seed in range(8)]
    for result in results:
        np.testing.assert_array_equal(np.delete(result, 3, axis=0), np.delete(raw, 3, axis=0))
    assert any(result[3].any() for result in results)


def test_a_repeated_section_is_its_neighbour_before_any_damage() -> None:
    raw = a_patch()
    result = damaged(raw, Damages(np.array([4, 1, 4, 4] + [0] * 8), 1.0, {}))
    np.testing.assert_array_equal(result[[0, 2, 3]], raw[[1, 1, 2]])
    assert not result[1].any()
    one = raw[:1]
    np.testing.assert_array_equal(damaged(one, Damages(np.array([Damage.REPEATED]), 1.0, {})), one)
