"""What a training reports to Prometheus is what its loss.csv holds."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest

pytest.importorskip("gunpowder")
pytest.importorskip("torch")

from prometheus_client.parser import text_string_to_metric_families

from lsdflow_command.metrics import StageMetrics
from lsdflow_command.monitoring import monitored
from lsdflow_training.trainer import train


def test_iterations_rate_and_every_part_of_the_loss_are_those_of_the_curves(prepared, tmp_path: Path) -> None:
    training = prepared("mtlsd", schedule="constant", validation_fraction=0.4)
    settings = dataclasses.replace(
        training.settings, schedules=dataclasses.replace(training.settings.schedules, max_iteration=3)
    )
    with monitored("train-acrlsd", training.experiment) as monitor:
        train(settings, training.sources, tmp_path / "t", training.key)
        text = StageMetrics(monitor).text().decode()
    samples = {
        (sample.name, sample.labels.get("part", "")): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    rows = list(csv.DictReader((tmp_path / "t" / "loss.csv").open()))
    last = next(row for row in rows if row["iteration"] == "3" and row["loss"])
    assert samples["lsdflow_loss", ""].value == pytest.approx(float(last["loss"]), rel=1e-3)
    parts = {part: sample.value for (name, part), sample in samples.items() if name == "lsdflow_loss_part"}
    assert len(parts) >= 2
    assert sum(parts.values()) == pytest.approx(samples["lsdflow_loss", ""].value)
    assert (samples["lsdflow_work_done", ""].value, samples["lsdflow_work_planned", ""].value) == (3, 3)
    assert samples["lsdflow_work_done", ""].labels["unit"] == "iteration"
    assert samples["lsdflow_work_per_second", ""].value > 0
    assert samples["lsdflow_learning_rate", ""].value == pytest.approx(float(last["learning_rate"]), rel=1e-3)
    assert samples["lsdflow_patches_per_iteration", ""].value == 1
    validated = [float(row["validation_loss"]) for row in rows if row["validation_loss"]]
    assert samples["lsdflow_validation_loss", ""].value == pytest.approx(validated[-1], rel=1e-3)
    assert samples["lsdflow_gpu_reserved_bytes", ""].value >= 0
