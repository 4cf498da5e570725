"""The augmentation of profile "standard" is the published one, number by number."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("gunpowder")

from lsdflow_contract.experiment import load_experiment
from lsdflow_training.augmentation.nodes import elastic_augment
from lsdflow_training.config import AffinityTrainingConfig
from lsdflow_training.resolve import resolve_settings
from lsdflow_training.settings import Augmentation

ISOTROPIC, THICK = (8.0, 8.0, 8.0), (40.0, 4.0, 4.0)


def _standard(folder: Path, voxel_size_nm: tuple[float, float, float]) -> Augmentation:
    toml = folder / "experiment.toml"
    toml.write_text('[experiment]\nprofile = "standard"\n[compute]\ndevice = "cpu"\n')
    experiment = load_experiment(toml)
    config = experiment.table("train-acrlsd", AffinityTrainingConfig)
    return resolve_settings(
        experiment, config, "train-acrlsd", "mtlsd", voxel_size_nm=voxel_size_nm, lsd=None
    ).augmentation


@pytest.mark.proves("TLS-07", "TLS-08")
@pytest.mark.parametrize("voxel_size_nm", [ISOTROPIC, THICK])
def test_the_standard_profile_has_the_published_values(tmp_path: Path, voxel_size_nm) -> None:
    how = _standard(tmp_path, voxel_size_nm)
    assert how.elastic_probability == 1.0
    assert how.rotation_max_rad == pytest.approx(math.pi / 2)
    assert how.subsample == 8
    assert (how.slip_probability, how.shift_probability, how.max_misalign_vox) == (0.01, 0.01, 1)
    assert how.intensity_scale == (0.9, 1.1)
    assert how.intensity_shift == (-0.1, 0.1)


@pytest.mark.proves("TLS-05")
@pytest.mark.parametrize(
    ("voxel_size_nm", "anisotropic", "spacing_vox", "jitter_vox"),
    [(ISOTROPIC, False, (40, 40, 40), (2, 2, 2)), (THICK, True, (4, 40, 40), (0, 2, 2))],
)
def test_control_points_and_jitter_of_the_standard_profile_are_the_published_ones(
    tmp_path: Path, voxel_size_nm, anisotropic: bool, spacing_vox, jitter_vox
) -> None:
    how = _standard(tmp_path, voxel_size_nm)
    assert how.anisotropic is anisotropic
    assert tuple(how.control_point_spacing_vox) == spacing_vox
    assert tuple(how.jitter_sigma_vox) == jitter_vox


@pytest.mark.proves("TLS-05", "TLS-07")
def test_the_first_deformation_only_rotates_and_the_second_one_also_jitters_and_misaligns(tmp_path: Path) -> None:
    how = _standard(tmp_path, ISOTROPIC)
    first, second = elastic_augment(how, jitter=False), elastic_augment(how, jitter=True)
    for node in (first, second):
        assert (node.rotation_start, node.rotation_max_amount) == pytest.approx((0, math.pi / 2))
        assert tuple(node.control_point_spacing) == (40, 40, 40)
        assert node.subsample == 8
    assert (*first.jitter_sigma, first.prob_slip, first.prob_shift, first.max_misalign) == (0, 0, 0, 0, 0, 0)
    assert (*second.jitter_sigma, second.prob_slip, second.prob_shift, second.max_misalign) == (2, 2, 2, 0.01, 0.01, 1)
