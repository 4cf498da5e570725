"""Problems that no stage sees alone: room on the disk for all that is to come, the table of the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lsdflow_contract.described import Described, DescribedVolume
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_launch import whole

MADE = DescribedVolume(
    where="raw.zarr",
    shape_vox=(100, 100, 100),
    voxel_size_nm=(8, 8, 8),
    offset_nm=(0, 0, 0),
    labelled=False,
    bytes_expected=1_000_000,
)
# Raw, affinities, fragments, segmentation: 1 + 3 + 0.4 + 0.4 bytes for each of 10^6 voxels.
NEEDED = 4_800_000


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    (tmp_path / "experiment.toml").write_text('[experiment]\nname = "a"\n')
    return load_experiment(tmp_path)


def problems(
    experiment: Experiment, free: float, patch: pytest.MonkeyPatch, described: Described | None = None
) -> list[dict[str, Any]]:
    """What is reported where `free` bytes are free and prepare describes these volumes (none: the target)."""
    patch.setattr(whole, "free_bytes", lambda _folder: int(free))
    return whole.whole_problems(experiment, {"target": MADE} if described is None else described)


def test_the_whole_chain_and_a_tenth_must_fit_on_the_disk(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problems(experiment, NEEDED * 1.1 + 1, monkeypatch) == []
    (told,) = problems(experiment, NEEDED * 1.1 - 1000, monkeypatch)
    assert (told["exit_code"], told["where"]) == (74, str(experiment.layout.root))
    assert told["hint"].startswith("free some space")


@pytest.mark.parametrize(
    ("override", "bytes_"), [("predict.roi.shape=1", 1e6), ("predict.store_lsds=true", NEEDED + 1e7)]
)
def test_the_estimate_counts_stored_lsds_and_ends_at_a_stage_that_writes_a_part(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch, override: str, bytes_: float
) -> None:
    loaded = load_experiment(experiment.path, [override])
    assert problems(loaded, bytes_ * 1.1 + 1, monkeypatch) == []
    assert len(problems(loaded, bytes_ * 1.1 - 1000, monkeypatch)) == 1


def test_what_was_begun_does_not_need_its_room_again(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in (experiment.layout.target_volume, experiment.layout.predictions("acrlsd", 7)):
        folder.mkdir(parents=True)
    assert problems(experiment, 800_000 * 1.1 + 1, monkeypatch) == []
    assert len(problems(experiment, 800_000 * 1.1 - 1000, monkeypatch)) == 1


def test_of_volumes_that_cannot_be_described_nothing_is_guessed(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problems(experiment, 0, monkeypatch, {}) == []


@pytest.mark.parametrize(("version", "codes"), [("0.3.0", [78]), ("0.3.0-tensorflow", [])])
def test_backend_tensorflow_needs_the_variant_of_the_image_where_images_run(
    experiment: Experiment, version: str, codes: list[int]
) -> None:
    loaded = load_experiment(experiment.path, ["train-acrlsd.backend=tensorflow"])
    experiment.layout.images_env.write_text(f"TRAIN_ACRLSD_IMAGE=lsdflow/train-acrlsd:{version}\n")
    assert [problem["exit_code"] for problem in whole.whole_problems(loaded, {}, in_images=True)] == codes
    assert whole.whole_problems(loaded, {}) == []


def test_a_mistake_in_the_table_of_the_cluster_is_told_beside_the_others(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_experiment(experiment.path, ["cluster.partition_gpus=gpu"])
    told = problems(loaded, 0, monkeypatch)
    assert [problem["exit_code"] for problem in told] == [78, 74]
    assert "did you mean 'partition_gpu'?" in told[0]["hint"]
