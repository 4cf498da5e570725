"""Problems that no stage sees alone: room on the disk for all that is to come, the table of the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_launch import whole

MADE = {"shape_vox": [100, 100, 100], "bytes_expected": 1_000_000, "done": False}
# Raw, affinities, fragments, segmentation: 1 + 3 + 0.4 + 0.4 bytes for each of 10^6 voxels.
NEEDED = 4_800_000


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    (tmp_path / "experiment.toml").write_text('[experiment]\nname = "a"\n')
    return load_experiment(tmp_path)


def problems(experiment: Experiment, free: float, patch: pytest.MonkeyPatch, plan: Any = None) -> list[dict[str, Any]]:
    """What is told where `free` bytes are free and prepare answers with this plan."""
    patch.setattr(whole, "free_bytes", lambda _folder: int(free))

    def ask(stage: str, arguments: Sequence[str]) -> Any:
        assert (stage, arguments[0]) == ("prepare", "plan")
        return {"target": MADE} if plan is None else plan

    return whole.whole_problems(experiment, ask)


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


def test_where_prepare_cannot_plan_nothing_is_guessed(experiment: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems(experiment, 0, monkeypatch, {"exit_code": 65, "what": "no voxel size"}) == []


def test_a_mistake_in_the_table_of_the_cluster_is_told_beside_the_others(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_experiment(experiment.path, ["cluster.partition_gpus=gpu"])
    told = problems(loaded, 0, monkeypatch)
    assert [problem["exit_code"] for problem in told] == [78, 74]
    assert "did you mean 'partition_gpu'?" in told[0]["hint"]
