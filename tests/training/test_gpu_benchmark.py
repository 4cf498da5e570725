"""The training part of the GPU benchmark works on the CPU in its toy form."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lsdflow_network.devices import cpu_computes_bf16

PRECISIONS = ("float32", "tf32", *(("bf16", "fp16") if cpu_computes_bf16() else ()))
SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks/gpu.py"


def test_the_toy_trains_at_every_precision_and_makes_targets() -> None:
    command = [sys.executable, str(SCRIPT), "train", "--device", "cpu", "--tiny"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    rows = [[c.strip() for c in line.split("|")[1:-1]] for line in found.stdout.splitlines() if "/s |" in line]
    assert [row[:2] for row in rows[:-1]] == [
        [what, precision] for what in ("train LSD", "train AcrLSD") for precision in PRECISIONS
    ]
    assert float(rows[-1][5]) < 1e-4
    assert all(float(row[3].split()[0]) > 0 for row in rows)
