"""The judge of the histories sees every kind of violation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

JUDGE = Path(__file__).resolve().parents[1] / "judge.py"
FINE = {
    "row": "F2",
    "whole": True,
    "resumed": True,
    "detected": True,
    "equal": True,
    "torn": [],
    "redone": 0,
    "lost": [],
    "store": "mongo",
}
WRONG = {
    "whole": (False, "1 | 0 | 0 | 0 | 0"),
    "equal": (False, "1 | 0 | 0 | 0 | 0"),
    "torn": (["a"], "1 | 0 | 0 | 0 | 0"),
    "lost": ([["mark_done", 3]], "1 | 0 | 0 | 0 | 0"),
    "redone": (1, "0 | 1 | 0 | 0 | 0"),
    "detected": (False, "0 | 0 | 1 | 0 | 0"),
    "resumed": (False, "0 | 0 | 0 | 1 | 0"),
    "hung": (True, "0 | 0 | 0 | 0 | 1"),
}


def judged(tmp_path: Path, *faults: dict[str, object]) -> subprocess.CompletedProcess[str]:
    history = tmp_path / "history.jsonl"
    history.write_text("".join(json.dumps(fault) + "\n" for fault in faults))
    command = [sys.executable, str(JUDGE), "--summary", str(tmp_path / "summary.md"), str(history)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_history_without_violations_passes_and_is_counted(tmp_path: Path) -> None:
    done = judged(tmp_path, FINE, FINE, {"kind": "F20", "equal": True, "stage": "train-lsd", "seconds": None})
    assert done.returncode == 0
    *_, f2, f20, everything = done.stdout.splitlines()
    assert f2.endswith("| 2 | 2 | 0 | 0 | 0 | 0 | 0 | 0 |")
    assert f20.endswith("| 1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |")
    assert everything.endswith("| 3 | 2 | 0 | 0 | 0 | 0 | 0 | 0 |")
    summary = (tmp_path / "summary.md").read_text()
    assert "**3 faults, 0 violations**" in summary
    assert done.stdout in summary
    assert "zarr " in summary


@pytest.mark.parametrize("name", WRONG)
def test_each_violation_is_seen(tmp_path: Path, name: str) -> None:
    value, counted = WRONG[name]
    done = judged(tmp_path, FINE, {**FINE, name: value})
    assert done.returncode == 1
    assert f"| 2 | 2 | {counted} | 1 |" in done.stdout.splitlines()[2]
    assert "**2 faults, 1 violations**" in (tmp_path / "summary.md").read_text()


def test_an_empty_history_is_no_success(tmp_path: Path) -> None:
    assert judged(tmp_path).returncode == 1
