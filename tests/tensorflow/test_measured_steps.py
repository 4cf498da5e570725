"""Some steps of a training with TensorFlow are measured in a throw-away folder, by one process with one device."""

from __future__ import annotations

import pytest

tf = pytest.importorskip("tensorflow", reason="make setup-tensorflow installs it")

from lsdflow_contract.errors import ConfigError  # noqa: E402
from lsdflow_training import measured  # noqa: E402
from lsdflow_training.measured import measure_training  # noqa: E402


@pytest.mark.parametrize("processes", [1, 2])
def test_steps_are_done_elsewhere_and_the_experiment_stays_as_it_is(
    prepared, tmp_path, monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setattr(measured, "MOST_STEPS", 4)
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}')
    made = prepared("affinities", backend="tensorflow", max_iteration=1000, processes=processes)
    before = sorted(tmp_path.rglob("*"))
    steps = measure_training(made, tmp_path / "steps")
    assert (steps["iteration"], steps["device"]) == (4, "cpu")
    assert 0 < steps["it_per_s"] < 1000
    assert steps["peak_rss_mib"] > 100
    assert [path for path in sorted(tmp_path.rglob("*")) if tmp_path / "steps" not in (path, *path.parents)] == before


def test_what_tensorflow_does_not_have_here_is_refused_before_a_step(prepared, tmp_path) -> None:
    with pytest.raises(ConfigError, match="with torch only"):
        measure_training(prepared("affinities", backend="tensorflow", clip_gradient=1.0), tmp_path / "steps")
