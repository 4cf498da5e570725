"""Which volumes are drawn, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_training.config import LsdTrainingConfig
from lsdflow_training.data.sampling import chosen_volumes, prepared_probabilities
from lsdflow_training.testing import micro_volume


def _prepared(**probabilities: float) -> Manifest:
    volumes = {f"training/{name}": {"probability": p} for name, p in probabilities.items()}
    writer = Writer(stage="prepare", version="0")
    facts = {"volumes": {**volumes, "target": {"shape_vox": [1, 1, 1]}}}
    return Manifest(writer=writer, key="k", config={}, inputs={}, outputs={}, facts=facts, identity="i")


def test_probabilities_are_those_of_prepare_and_the_target_is_not_drawn() -> None:
    assert prepared_probabilities(_prepared(a=0.9, b=0.1)) == {"a": 0.9, "b": 0.1}


def test_a_volume_that_prepare_no_longer_names_is_not_drawn(tmp_path: Path) -> None:
    for name in ("kept", "dropped"):
        micro_volume(tmp_path / f"{name}.zarr")
    assert [v.name for v in chosen_volumes(tmp_path, LsdTrainingConfig(), ["kept"])] == ["kept"]
    with pytest.raises(ConfigError):
        chosen_volumes(tmp_path, LsdTrainingConfig(volumes=("dropped",)), ["kept"])


def test_no_training_volume_at_all_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="run prepare"):
        chosen_volumes(tmp_path, LsdTrainingConfig(), [])
