"""profile_steps: what is recorded, and that nothing else changes."""

from __future__ import annotations

import dataclasses
import gzip
import json
import logging
from pathlib import Path

import pytest

pytest.importorskip("gunpowder")
pytest.importorskip("torch")

from lsdflow_contract.checkpoint import bundle_folder
from lsdflow_network.bundle import load_bundle, tensors_equal
from lsdflow_training.run import Training
from lsdflow_training.trainer import train


def run(made: Training, folder: Path, **schedules) -> None:
    settings = dataclasses.replace(made.settings, schedules=dataclasses.replace(made.settings.schedules, **schedules))
    train(settings, made.sources, folder, made.key)


def profiles(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "profile").iterdir())


def losses(folder: Path) -> list[list[str]]:
    rows = [row.split(",") for row in (folder / "loss.csv").read_text().splitlines()]
    return [[row[0], row[1], row[4]] for row in rows]


def test_a_profile_is_written_and_changes_no_bit_and_no_key(prepared, tmp_path, caplog) -> None:
    options = {"schedule": "constant", "validation_fraction": 0.3}
    plain, profiled = prepared("affinities", **options), prepared("affinities", profile_steps=2, **options)
    assert plain.key == profiled.key
    with caplog.at_level(logging.INFO):
        for made, name in ((plain, "plain"), (profiled, "profiled")):
            run(made, tmp_path / name, max_iteration=6)
    assert losses(tmp_path / "plain") == losses(tmp_path / "profiled")
    weights = [load_bundle(bundle_folder(tmp_path / n / "checkpoints", 6))[1] for n in ("plain", "profiled")]
    assert tensors_equal(*weights)
    assert not (tmp_path / "plain" / "profile").exists()
    assert profiles(tmp_path / "profiled") == ["steps_3_to_4_rank0.json.gz"]
    with gzip.open(tmp_path / "profiled" / "profile" / "steps_3_to_4_rank0.json.gz") as file:
        names = {event.get("name") for event in json.load(file)["traceEvents"]}
    assert {"ProfilerStep#2", "ProfilerStep#3"} <= names
    assert any("conv" in name for name in names if name)
    assert "aten::" in caplog.text


def test_a_run_that_is_too_short_leaves_what_there_is(prepared, tmp_path) -> None:
    made = prepared("affinities", profile_steps=50)
    run(made, tmp_path / "t", max_iteration=4)
    assert profiles(tmp_path / "t") == ["steps_3_to_4_rank0.json.gz"]
    run(made, tmp_path / "t", max_iteration=6)  # these two are its warm-up
    assert profiles(tmp_path / "t") == ["steps_3_to_4_rank0.json.gz"]
