"""The optional environment is the training environment and what TensorFlow adds to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tensorflow as tf

from lsdflow_network.devices import gpu_count
from lsdflow_training import resolve

STAGES = Path(__file__).resolve().parents[2] / "stages"


def _pins(lock: Path) -> set[str]:
    return set(re.findall(r"^([a-z0-9._-]+==[^ ;\\]+)", lock.read_text(), re.MULTILINE))


def test_the_lock_of_tensorflow_adds_to_that_of_training_and_changes_nothing_in_it() -> None:
    tensorflow, training = _pins(STAGES / "_tensorflow" / "cpu.lock"), _pins(STAGES / "train-lsd" / "cpu.lock")
    assert training <= tensorflow
    assert "tensorflow-cpu==2.21.0" in tensorflow - training


def test_the_gpus_of_a_training_are_those_that_its_backend_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind, kind])
    assert gpu_count(tmp_path, framework="tensorflow") == 2
    assert gpu_count(tmp_path) == 0, "torch of this environment is the build for CPUs"
    monkeypatch.setattr(resolve, "gpu_count", lambda framework: 2 if framework == "tensorflow" else 0)
    assert (resolve.choose_device("auto", "tensorflow"), resolve.choose_device("auto", "torch")) == ("cuda", "cpu")
