"""The judge of the histories sees every kind of violation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

JUDGE = Path(__file__).resolve().parents[1] / "judge.py"
FINE = {"row": "F2", "whole": True, "resumed": True, "detected": True, "equal": True, "torn": [], "redone": 0}


def judged(tmp_path: Path, *faults: dict[str, object]) -> subprocess.CompletedProcess[str]:
    history = tmp_path / "history.jsonl"
    history.write_text("".join(json.dumps(fault) + "\n" for fault in faults))
    return subprocess.run([sys.executable, str(JUDGE), str(history)], capture_output=True, text=True, check=False)


def test_a_history_without_violations_passes_and_is_counted(tmp_path: Path) -> None:
    done = judged(tmp_path, FINE, FINE, {"kind": "F20", "equal": True})
    assert done.returncode == 0
    assert done.stdout.splitlines()[2:] == ["| F2 | 2 | 0 |", "| F20 | 1 | 0 |", "| all | 3 | 0 |"]


@pytest.mark.parametrize(
    "wrong",
    [{"whole": False}, {"resumed": False}, {"detected": False}, {"equal": False}, {"torn": ["a"]}, {"redone": 1}],
)
def test_each_violation_is_seen(tmp_path: Path, wrong: dict[str, object]) -> None:
    done = judged(tmp_path, FINE, {**FINE, **wrong})
    assert done.returncode == 1
    assert "| F2 | 2 | 1 |" in done.stdout


def test_an_empty_history_is_no_success(tmp_path: Path) -> None:
    assert judged(tmp_path).returncode == 1
