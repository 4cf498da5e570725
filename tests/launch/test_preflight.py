"""Problems that no stage sees alone: room on the disk for all that is to come, the table of the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_launch import preflight
from lsdflow_launch.disk import FreeSpace

TO_COME = {"prepare": 1_000_000.0, "predict": 3_000_000.0, "watershed": 400_000.0, "evaluate": 0.0}
NEEDED = 4_400_000


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    (tmp_path / "experiment.toml").write_text('[experiment]\nname = "a"\n')
    return load_experiment(tmp_path)


def problems(
    experiment: Experiment, free: float, patch: pytest.MonkeyPatch, to_come: dict[str, float] = TO_COME
) -> list[dict[str, Any]]:
    """What is reported where `free` bytes are free."""
    patch.setattr(preflight, "free_space", lambda _folder: FreeSpace(int(free), None))
    return preflight.experiment_problems(experiment, to_come)


def test_the_whole_chain_and_a_tenth_must_fit_on_the_disk(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problems(experiment, NEEDED * 1.1 + 1, monkeypatch) == []
    (problem,) = problems(experiment, NEEDED * 1.1 - 1000, monkeypatch)
    assert (problem["exit_code"], problem["where"]) == (74, str(experiment.layout.root))
    assert problem["fix"].startswith("free some space")
    assert "evaluate" not in problem["wanted"]


def test_of_stages_that_cannot_be_described_nothing_is_guessed(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problems(experiment, 0, monkeypatch, {}) == []


@pytest.mark.parametrize(("version", "codes"), [("0.3.0", [78]), ("0.3.0-tensorflow", [])])
def test_backend_tensorflow_needs_the_variant_of_the_image_where_images_run(
    experiment: Experiment, version: str, codes: list[int]
) -> None:
    loaded = load_experiment(experiment.path, ["train-acrlsd.backend=tensorflow"])
    experiment.layout.images_env.write_text(f"TRAIN_ACRLSD_IMAGE=lsdflow/train-acrlsd:{version}\n")
    assert [problem["exit_code"] for problem in preflight.experiment_problems(loaded, {}, in_images=True)] == codes
    assert preflight.experiment_problems(loaded, {}) == []


def test_a_mistake_in_the_table_of_the_cluster_is_reported_with_the_others(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_experiment(experiment.path, ["cluster.partition_gpus=gpu"])
    found = problems(loaded, 0, monkeypatch)
    assert [problem["exit_code"] for problem in found] == [78, 74]
    assert "did you mean 'partition_gpu'?" in found[0]["fix"]
