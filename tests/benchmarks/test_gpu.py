"""The GPU benchmark says what it cannot measure, and its toy form works on the CPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lsdflow_network.devices import cpu_computes_bf16

# For one tile of the smaller size; all else is measured at the default. A CPU has no tf32 and no fp16.
PRECISIONS = {"float32", *(["bf16"] if cpu_computes_bf16() else [])}
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks/gpu.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_the_toy_predicts_at_every_precision_and_tile() -> None:
    found = run("predict", "--device", "cpu", "--tiny")
    assert found.returncode == 0, found.stderr
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in found.stdout.splitlines() if "voxel/s" in line]
    places = {(what, precision, size) for what, precision, size, *_ in rows}
    assert {precision for _, precision, _ in places} == {*PRECISIONS, "auto"}
    assert len(places) == len(rows) == len(PRECISIONS) + 3
    assert {what for what, _, _ in places} == {"LSD net", "AcrLSD"}
    for _, precision, _, rate, _, parity in rows:
        assert float(rate.split()[0]) > 0
        assert (parity == "levels: max 0, mean 0.0000") == (precision == "float32")


def test_without_cuda_it_refuses_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = run("predict")
    assert found.returncode != 0
    assert found.stdout == ""
    assert len(found.stderr.splitlines()) == 1
    assert "no CUDA device" in found.stderr
