"""Augmentation in the whole pipeline: shifted sections, the profile for thick sections, the same in every process."""

from __future__ import annotations

import dataclasses
import random
from typing import get_args

import numpy as np
import pytest

gp = pytest.importorskip("gunpowder")

from lsdflow_contract.arrays import RAW  # noqa: E402
from lsdflow_contract.errors import ConfigError  # noqa: E402
from lsdflow_contract.experiment import ExperimentTable, load_experiment  # noqa: E402
from lsdflow_training.augmentation.nodes import elastic_augment  # noqa: E402
from lsdflow_training.config import AffinityTrainingConfig  # noqa: E402
from lsdflow_training.data.batches import batch_seed, batch_stream, seeded  # noqa: E402
from lsdflow_training.data.pipeline import (  # noqa: E402
    batch_request,
    labels_padding_vox,
    make_keys,
    training_pipeline,
    validation_pipeline,
)
from lsdflow_training.profiles import PROFILES, SNEMI3D  # noqa: E402
from lsdflow_training.resolve import resolve_settings  # noqa: E402
from lsdflow_training.testing import write_zarr2  # noqa: E402
from lsdflow_training.trainer import Trainer  # noqa: E402

KEYS = make_keys()
SNEMI = (30.0, 6.0, 6.0)
THIN = {"downsample_factors": [[1, 2, 2]], "input_shape_vox": [20, 28, 28], "predict_input_shape_vox": [20, 32, 32]}
INTENSITIES = {
    "intensity_per_section": True,
    "gamma": [0.8, 1.25],
    "noise_probability": 0.5,
    "blur_probability": 0.3,
    "missing_section_probability": 0.2,
    "low_contrast_probability": 0.2,
    "artifact_probability": 0.2,
    "repeated_section_probability": 0.2,
}
SHIFTED = {"elastic_probability": 1.0, "slip_probability": 0.2, "shift_probability": 0.2, "max_misalign_vox": 4}


def batches(training, count: int, workers: int = 0) -> list[gp.Batch]:
    pipeline = training_pipeline(KEYS, training.settings, training.sources)
    request = batch_request(KEYS, training.settings)
    with batch_stream(pipeline, request, seed=0, first=1, num_workers=workers, cache_size=2) as stream:
        return [next(stream) for _ in range(count)]


def field_of(published, slip: float, shift: float, far: int, seed: int, sections: int = 40) -> np.ndarray:
    """Shift of each section, (sections, 2) voxels y, x."""
    how = dataclasses.replace(
        published, slip_probability=slip, shift_probability=shift, max_misalign_vox=far, rotation_max_rad=0.0,
        jitter_sigma_vox=(0.0, 0.0, 0.0), elastic_probability=1.0,
    )  # fmt: skip
    random.seed(seed)
    np.random.seed(seed)
    node = elastic_augment(how, jitter=True)
    field = node._ElasticAugment__create_transformation((sections, 16, 16))
    grid = np.array(np.meshgrid(range(sections), range(16), range(16), indexing="ij"))
    return (field - grid)[1:, :, 8, 8].T


def test_slipped_sections_are_shifted_alone_and_shifted_ones_with_all_that_follow(prepared) -> None:
    how = prepared("affinities").settings.augmentation
    slips = np.concatenate([field_of(how, 0.3, 0.0, 5, seed) for seed in range(10)])
    aside = np.abs(slips).max(axis=1) > 0.5
    assert 0.2 < aside.mean() < 0.4
    assert np.abs(slips).max() == pytest.approx(5, abs=0.01)
    shifts = field_of(how, 0.0, 0.1, 5, 3)
    steps = np.abs(np.diff(shifts, axis=0)).max(axis=1)
    assert 0 < (steps > 0.5).sum() < 12
    assert steps.max() <= 5.01
    assert np.abs(shifts[-1]).max() > 0.5, "what comes after a shift stays aside"
    assert not field_of(how, 0.0, 0.0, 5, 0).round(3).any()


def axis_of_z(batch: gp.Batch) -> int:
    """Along which axis of the patch raw rises or falls, where it is within the volume."""
    raw, trained = batch[KEYS.raw], batch[KEYS.mask].data > 0
    seen = raw.crop(batch[KEYS.mask].spec.roi).data
    rises = []
    for axis in range(3):
        here, there = (
            np.take(trained, span, axis) for span in (range(1, seen.shape[axis]), range(seen.shape[axis] - 1))
        )
        rises.append(bool((np.abs(np.diff(seen, axis=axis))[here & there] > 1e-4).any()))
    assert rises.count(True) == 1
    return rises.index(True)


@pytest.mark.proves("TLS-06")
@pytest.mark.parametrize(("voxel_size_nm", "axes"), [(SNEMI, {0}), ((8.0, 8.0, 8.0), {0, 1, 2})])
def test_thick_sections_are_never_transposed_along_z_and_cubic_voxels_are(prepared, voxel_size_nm, axes) -> None:
    training = prepared("affinities", voxel_size_nm=voxel_size_nm, elastic_probability=0.0)
    volume = training.sources[0].volume
    sections = np.broadcast_to(np.arange(60, 180, 3, dtype=np.uint8)[:, None, None], (40, 40, 40))
    write_zarr2(volume.path, RAW.dataset, sections, volume.voxel_size_nm, (0.0, 0.0, 0.0))
    assert {axis_of_z(batch) for batch in batches(training, 24)} == axes


def test_shifted_sections_move_raw_labels_and_mask_alike(prepared) -> None:
    """Membranes stay where the labels change: the raw of the micro volume is dark exactly at label 0."""
    training = prepared("affinities", grow_boundary_vox=0, **SHIFTED)
    how = dataclasses.replace(training.settings.augmentation, intensity_scale=(1.0, 1.0), intensity_shift=(0.0, 0.0))
    settings = dataclasses.replace(training.settings, augmentation=how)
    pipeline = training_pipeline(KEYS, settings, training.sources)
    contrast = []
    with gp.build(pipeline):
        for number in range(6):
            batch = pipeline.request_batch(seeded(batch_request(KEYS, settings), batch_seed(0, number)))
            margin = [(r - o) // 2 for r, o in zip(settings.shapes.raw_vox, settings.shapes.output_vox, strict=True)]
            raw = batch[KEYS.raw].data[tuple(slice(m, -m) for m in margin)]
            labels, known = batch[KEYS.labels].data, batch[KEYS.mask].data > 0
            edge = np.zeros(labels.shape, bool)
            edge[:, :, 1:] = labels[:, :, 1:] != labels[:, :, :-1]
            inside = ~edge & (labels > 0) & known
            if (edge & known).sum() > 20:
                contrast.append(raw[inside].mean() - raw[edge & known].mean())
    assert len(contrast) > 2
    assert min(contrast) > 0.1


def test_changed_intensities_leave_labels_mask_and_targets_alone(prepared) -> None:
    """Seeds continue from node to node, so the plain batch has the same nodes, all without effect."""
    training = prepared("mtlsd", voxel_size_nm=SNEMI, **THIN, **INTENSITIES, **SHIFTED)
    never = dict.fromkeys((k for k in INTENSITIES if k.endswith("probability")), 1e-12)
    plain = prepared(
        "mtlsd", voxel_size_nm=SNEMI, **THIN, **{**INTENSITIES, "gamma": [1.0, 1.0 + 1e-9], **never}, **SHIFTED
    )
    for a, b in zip(batches(training, 2), batches(plain, 2), strict=True):
        for key in (KEYS.labels, KEYS.mask, KEYS.lsds, KEYS.lsds_weight, KEYS.affs, KEYS.affs_weight):
            np.testing.assert_array_equal(a[key].data, b[key].data)
        assert not np.array_equal(a[KEYS.raw].data, b[KEYS.raw].data)
        assert -1 <= a[KEYS.raw].data.min() < a[KEYS.raw].data.max() <= 1


def test_an_augmented_batch_is_the_same_from_any_number_of_workers(prepared) -> None:
    training = prepared("affinities", voxel_size_nm=SNEMI, **THIN, **INTENSITIES, **SHIFTED)
    here = batches(training, 5)
    for workers in (1, 2):
        for a, b in zip(here, batches(training, 5, workers), strict=True):
            np.testing.assert_array_equal(a[KEYS.raw].data, b[KEYS.raw].data)
            np.testing.assert_array_equal(a[KEYS.affs_weight].data, b[KEYS.affs_weight].data)


def test_validation_patches_are_not_augmented(prepared) -> None:
    training = prepared("affinities", validation_fraction=0.5, **INTENSITIES)
    pipeline = validation_pipeline(KEYS, training.settings, training.sources[0])
    with gp.build(pipeline):
        request = batch_request(KEYS, training.settings, (22, 14, 14))
        one, other = (pipeline.request_batch(seeded(request, seed))[KEYS.raw].data for seed in (1, 2))
    np.testing.assert_array_equal(one, other)


def test_far_shifts_find_room_in_a_small_volume(prepared) -> None:
    """Labels are padded by as much as shifts can add up to; else some patches could not be cut at all."""
    near = prepared("affinities", voxel_size_nm=SNEMI, **THIN, elastic_probability=1.0)
    far = prepared(
        "affinities", voxel_size_nm=SNEMI, min_masked=0.05, elastic_probability=1.0, slip_probability=0.1,
        shift_probability=0.3, max_misalign_vox=10, **THIN,
    )  # fmt: skip
    assert labels_padding_vox(near.settings)[0] == labels_padding_vox(far.settings)[0]
    assert labels_padding_vox(far.settings)[1] > labels_padding_vox(near.settings)[1] + 10
    assert len(batches(far, 20)) == 20


def test_every_profile_that_an_experiment_can_name_is_there() -> None:
    assert set(PROFILES) == set(get_args(ExperimentTable.model_fields["profile"].annotation))


def test_the_profile_for_thick_sections_is_the_published_one_with_section_wise_augmentation(tmp_path) -> None:
    toml = tmp_path / "experiment.toml"
    toml.write_text('[experiment]\nprofile = "snemi3d"\n[compute]\ndevice = "cpu"\n')
    experiment = load_experiment(toml)
    config = experiment.table("train-acrlsd", AffinityTrainingConfig)
    settings = resolve_settings(experiment, config, "train-acrlsd", "mtlsd", voxel_size_nm=(30.0, 6.0, 6.0), lsd=None)
    assert (settings.shapes.raw_vox, settings.shapes.output_vox) == ((84, 268, 268), (48, 56, 56))
    assert settings.unet.downsample_factors == ((1, 3, 3), (1, 3, 3), (3, 3, 3))
    how = settings.augmentation
    assert how.anisotropic
    assert (how.slip_probability, how.shift_probability, how.max_misalign_vox) == (0.05, 0.05, 10)
    assert (how.missing_section_probability, how.low_contrast_probability, how.artifact_probability) == (
        0.03,
        0.01,
        0.03,
    )
    assert how.intensity_per_section
    assert set(SNEMI3D.augmentation) <= {field.name for field in dataclasses.fields(how)}
    assert not PROFILES["standard"].augmentation
    override = experiment.table("train-acrlsd", AffinityTrainingConfig).model_copy(update={"max_misalign_vox": 2})
    again = resolve_settings(experiment, override, "train-acrlsd", "mtlsd", voxel_size_nm=(30.0, 6.0, 6.0), lsd=None)
    assert again.augmentation == dataclasses.replace(how, max_misalign_vox=2)


def test_thick_sections_train_with_everything_switched_on(prepared, tmp_path) -> None:
    training = prepared("mtlsd", voxel_size_nm=SNEMI, **THIN, **SNEMI3D.augmentation)
    assert training.settings.augmentation.anisotropic
    result = Trainer(training.settings, training.sources, tmp_path / "training", "key", None).run()
    assert result.iteration == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"missing_section_probability": 0.6, "artifact_probability": 0.6}, "one way only"),
        ({"gamma": [2.0, 0.5]}, "smallest, largest"),
        ({"gamma": [0.0, 1.0]}, "greater than 0"),
        ({"noise_probability": 1.5}, "less than or equal to 1"),
        ({"max_misalign_vox": -1}, "greater than or equal to 0"),
    ],
)
def test_impossible_augmentation_is_refused(prepared, options, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        prepared("affinities", **options)
