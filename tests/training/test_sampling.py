"""Which volumes are drawn, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsdflow_contract.errors import BadData, ConfigError, MissingInput
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_training.config import TrainingConfig
from lsdflow_training.data.volumes import (
    TrainingVolume,
    chosen_volumes,
    common_voxel_size,
    open_training_volume,
    prepared_probabilities,
)
from lsdflow_training.testing import micro_volume


def _prepared(**probabilities: float) -> Manifest:
    volumes = {f"training/{name}": {"probability": p} for name, p in probabilities.items()}
    writer = Writer(stage="prepare", version="0")
    facts = {"volumes": {**volumes, "target": {"shape_vox": [1, 1, 1]}}}
    return Manifest(writer=writer, key="k", config={}, inputs={}, outputs={}, facts=facts, identity="i")


def test_probabilities_are_those_of_prepare_and_the_target_is_not_drawn() -> None:
    assert prepared_probabilities(_prepared(a=0.9, b=0.1)) == {"a": 0.9, "b": 0.1}


def test_a_volume_that_prepare_no_longer_names_is_not_drawn(tmp_path: Path) -> None:
    layout = ExperimentLayout(tmp_path)
    for name in ("kept", "dropped"):
        micro_volume(layout.training_volume(name))
    assert [v.name for v in chosen_volumes(layout, TrainingConfig(), ["kept"])] == ["kept"]
    with pytest.raises(ConfigError):
        chosen_volumes(layout, TrainingConfig(volumes=("dropped",)), ["kept"])


def test_no_training_volume_at_all_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="run prepare"):
        chosen_volumes(ExperimentLayout(tmp_path), TrainingConfig(), [])


def _volumes(folder: Path, *sizes: tuple[float, float, float]) -> list[TrainingVolume]:
    for i, size in enumerate(sizes):
        micro_volume(folder / f"v{i}.zarr", voxel_size_nm=size)
    return [open_training_volume(folder / f"v{i}.zarr") for i in range(len(sizes))]


def test_volumes_of_one_voxel_size_have_it_in_common(tmp_path: Path) -> None:
    assert common_voxel_size(_volumes(tmp_path, (40.0, 4.0, 4.0), (40.0, 4.0, 4.0))) == (40.0, 4.0, 4.0)


@pytest.mark.proves("DAT-13")
@pytest.mark.parametrize("other", [(30.0, 4.0, 4.0), (40.0, 5.0, 4.0), (40.0, 4.0, 4.5)])
def test_volumes_of_different_voxel_sizes_are_refused_and_no_stage_is_said_to_resample(
    tmp_path: Path, other: tuple[float, float, float]
) -> None:
    volumes = _volumes(tmp_path, (40.0, 4.0, 4.0), (40.0, 4.0, 4.0), other)
    with pytest.raises(BadData) as refused:
        common_voxel_size(volumes)
    text = refused.value.message()
    assert "v2.zarr" in text
    assert str(list(other)) in text
    assert "in prepare" not in text
    assert "before prepare" in text
