"""LSD targets of lsdflow against the package lsds: same labels, same voxels, one thread each, runs interleaved.

    .venv/training/bin/python benchmarks/lsd_targets.py [--volume FIB25.zarr] [--crops 3] [--quick]

Data: real FIB-25 labels, crops of 152^3 with descriptors wanted in the central 92^3 (one training sample of the
published networks: sigma 10 voxels, 30 voxels of context). Each round runs lsds and lsdflow on one crop, in turn
first; the ratio is taken within a round. Every round checks that the two agree: mean offset, variance and size
everywhere, Pearson coefficients wherever the object is thick enough for lsds' single precision, all to 1e-4. Unless
--quick, one crop is also compared in all channels and voxels with lsds' own code run in double precision.
"""

# ruff: noqa: E402  (threads are limited before numpy is imported)
from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import importlib
import importlib.metadata
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gunpowder as gp
import numpy as np
import numpy.typing as npt
import zarr

from lsdflow_contract.geometry import Box
from lsdflow_training.targets.lsd import local_shape_descriptors
from lsdflow_training.targets.lsd_cpu import warm_up

SHARED = Path(__file__).resolve().parents[2] / "shared/data/fib25/trvol-250-2.zarr"
DATASET = "volumes/labels/neuron_ids"
SIGMA_NM, VOXEL_SIZE_NM = 80.0, (8.0, 8.0, 8.0)
CROP_VOX, ROI = 152, Box((30, 30, 30), (92, 92, 92))
TOLERANCE = 1e-4
# lsds subtracts squares of coordinates (here up to 1216 nm) in float32: its covariances are off by some 0.2 nm^2. Its
# Pearson coefficients are good to TOLERANCE where the variance along each axis is this many sigma^2 or more
THICK = 0.2
BEGINS = [(0, 0, 0), (98, 98, 98), (49, 49, 49), (0, 98, 49), (98, 0, 98)]

Labels = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.floating[Any]]


@dataclass
class Row:
    """One comparison: seconds of both sides, round by round."""

    name: str
    lsds_s: list[float] = field(default_factory=list)
    lsdflow_s: list[float] = field(default_factory=list)
    worst: float = 0.0

    @property
    def ratios(self) -> list[float]:
        """How many times faster lsdflow was, per round."""
        return [a / b for a, b in zip(self.lsds_s, self.lsdflow_s, strict=True)]


def by_lsds(labels: Labels, downsample: int) -> Floats:
    """The descriptors by lsds."""
    module = importlib.import_module("lsd.train.local_shape_descriptor")
    descriptors: Floats = module.get_local_shape_descriptors(
        labels,
        (SIGMA_NM,) * 3,
        voxel_size=tuple(map(int, VOXEL_SIZE_NM)),
        roi=gp.Roi(ROI.begin_vox, ROI.shape_vox),
        downsample=downsample,
    )
    return descriptors


def by_lsdflow(labels: Labels, downsample: int) -> Floats:
    """The descriptors by lsdflow."""
    return local_shape_descriptors(labels, SIGMA_NM, VOXEL_SIZE_NM, ROI, downsample)


def by_lsds_in_double(labels: Labels) -> Floats:
    """lsds' own code, with float64 wherever it says float32."""

    class DoubleNumpy:
        float32 = np.float64

        def __getattr__(self, name: str) -> object:
            return getattr(np, name)

    module: Any = importlib.import_module("lsd.train.local_shape_descriptor")
    module.np = DoubleNumpy()
    try:
        return by_lsds(labels, downsample=1)
    finally:
        module.np = np


def timed(function: Callable[[], Floats]) -> tuple[float, Floats]:
    """Seconds and result."""
    begin = time.perf_counter()
    result = function()
    return time.perf_counter() - begin, result


def compare(row: Row, labels: Labels, lsds_downsample: int, lsdflow_downsample: int, lsds_first: bool) -> None:
    """One round; `row` receives the times and, if both computed the same, the largest difference."""
    sides = [
        ("lsds", lambda: by_lsds(labels, lsds_downsample)),
        ("lsdflow", lambda: by_lsdflow(labels, lsdflow_downsample)),
    ]
    done = {name: timed(function) for name, function in (sides if lsds_first else sides[::-1])}
    row.lsds_s.append(done["lsds"][0])
    row.lsdflow_s.append(done["lsdflow"][0])
    if lsds_downsample == lsdflow_downsample:
        row.worst = max(row.worst, difference(done["lsdflow"][1], done["lsds"][1]))
        check(row.worst, row.name)


def difference(own: Floats, reference: Floats) -> float:
    """Largest difference, leaving out Pearson coefficients of objects too thin for lsds' single precision."""
    smooth = [0, 1, 2, 3, 4, 5, 9]
    thick = (reference[3:6] >= THICK).all(axis=0)
    print(f"  Pearson coefficients compared in {thick.mean():.0%} of the voxels", flush=True)
    pearson = np.abs(own[6:9, thick] - reference[6:9, thick]).max(initial=0)
    return float(max(np.abs(own[smooth] - reference[smooth]).max(), pearson))


def check(found: float, where: str) -> None:
    """Stop if the two sides do not agree."""
    if found > TOLERANCE:
        raise SystemExit(f"{where}: lsdflow and lsds differ by {found:.2g} (allowed {TOLERANCE:g})")


def report(rows: list[Row]) -> None:
    """The table, in markdown."""
    names = ("lsds", "numpy", "scipy", "numba", "gunpowder")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    print(f"\nPython {platform.python_version()}, {versions}; {platform.machine()}, one thread each side\n")
    print("| comparison | rounds | lsds s | lsdflow s | ratio: median (min-max) | max difference |")
    print("|---|---|---|---|---|---|")
    for row in rows:
        lsds_s, lsdflow_s = statistics.median(row.lsds_s), statistics.median(row.lsdflow_s)
        ratio = f"{statistics.median(row.ratios):.0f} ({min(row.ratios):.0f}-{max(row.ratios):.0f})"
        worst = f"{row.worst:.1g}" if row.worst else "-"
        print(f"| {row.name} | {len(row.ratios)} | {lsds_s:.2f} | {lsdflow_s:.3f} | {ratio} | {worst} |")


def main() -> None:
    """Run the comparisons and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--volume", type=Path, default=SHARED, help="zarr with volumes/labels/neuron_ids, at least 152^3"
    )
    parser.add_argument("--crops", type=int, default=3, choices=range(1, len(BEGINS) + 1), help="rounds, one crop each")
    parser.add_argument("--quick", action="store_true", help="no comparison in double precision (saves minutes)")
    options = parser.parse_args()
    if not options.volume.is_dir():
        raise SystemExit(f"no {options.volume}: give a volume with --volume")
    volume: Any = zarr.open(str(options.volume / DATASET), mode="r")
    begin = time.perf_counter()
    warm_up()
    print(f"lsdflow compiles in {time.perf_counter() - begin:.1f} s, once per process (not part of the times below)")
    rows = [
        Row("full resolution, both"),
        Row("downsample 2, both"),
        Row("lsds downsample 2, lsdflow full resolution"),
    ]
    steps = [(1, 1), (2, 2), (2, 1)]
    for number, corner in enumerate(BEGINS[: options.crops]):
        labels: Labels = np.asarray(volume[tuple(slice(b, b + CROP_VOX) for b in corner)])
        print(f"crop at {corner}: {np.unique(labels[ROI.slices()]).size} labels in the output", flush=True)
        for row, (reference, own) in zip(rows, steps, strict=True):
            compare(row, labels, reference, own, lsds_first=number % 2 == 0)
        if number == 0 and not options.quick:
            worst = float(np.abs(by_lsdflow(labels, 1) - by_lsds_in_double(labels)).max())
            print(f"all channels, all voxels, against lsds in double precision: max difference {worst:.2g}", flush=True)
            check(worst, "double precision")
    report(rows)


if __name__ == "__main__":
    main()
