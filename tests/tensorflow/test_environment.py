"""The optional environment is the training environment and what TensorFlow adds to it."""

from __future__ import annotations

import re
from pathlib import Path

STAGES = Path(__file__).resolve().parents[2] / "stages"


def _pins(lock: Path) -> set[str]:
    return set(re.findall(r"^([a-z0-9._-]+==[^ ;\\]+)", lock.read_text(), re.MULTILINE))


def test_the_lock_of_tensorflow_adds_to_that_of_training_and_changes_nothing_in_it() -> None:
    tensorflow, training = _pins(STAGES / "_tensorflow" / "cpu.lock"), _pins(STAGES / "train-lsd" / "cpu.lock")
    assert training <= tensorflow
    assert "tensorflow-cpu==2.21.0" in tensorflow - training
