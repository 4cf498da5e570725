"""How fast the stage predict is on one GPU: tile, block, cache and workers, beside eager torch and the roofline.

    step_predict.py [--device cpu --tiny] [--minutes 8]

Each row is a run of the stage on a synthetic volume, from raw on disk to verified affinities on disk, at the default
precision. Its rate
is that from the first block to the last: the start of the worker processes is left out. A network of mode mtlsd costs
what one of mode affinities costs. The roofline is what the multiplications of the network alone would take at the rate
of a large matrix product in bf16, which is measured here, without any voxel computed twice.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from eager_network import grey_levels
from gpu import PUBLISHED, TINY, Sizes, measured
from gpu_machine import Busy, describe, formatted, print_head, print_row, require_device
from scipy.ndimage import gaussian_filter
from torch.utils.flop_counter import FlopCounterMode

from lsdflow_contract.arrays import RAW
from lsdflow_contract.checkpoint import Kind
from lsdflow_contract.errors import ConfigError, InternalError, StageError
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_network.bundle import save_bundle
from lsdflow_network.shapes import output_shape_vox
from lsdflow_network.testing import untrained_bundle
from lsdflow_network.unet import UNet
from lsdflow_predict.stage import Predict
from lsdflow_runtime.io.volumes import OutputArray

VOXEL_NM = (8.0, 8.0, 8.0)
TARGET = "volumes/target.zarr"
COLUMNS = (
    "mode", "tile out", "block", "cache MB", "workers", "blocks", "Mvoxel/s", "with start", "of eager", "of roofline",
    "GPU busy %", "GPU GiB",
)  # fmt: skip
NETWORKS: dict[Kind, tuple[int, dict[str, int]]] = {
    "lsd": (1, {"lsds": 10}),
    "affinities": (1, {"affs": 3}),
    "acrlsd": (11, {"affs": 3}),
}


@dataclass(frozen=True)
class Point:
    """Settings of one run; a block of none is the stage's own choice."""

    mode: str
    tile: int
    block: int | None = None
    cache_mb: int = 1024
    workers: int = 2


@dataclass(frozen=True)
class Rates:
    """Mvoxel/s by mode, of what a run is compared with."""

    eager: dict[str, float]
    roofline: dict[str, float]


def points(sizes: Sizes, tiny: bool) -> Iterator[Point]:
    """The runs, the most important first: time may run out."""
    if tiny:
        for mode, cache_mb in (("acrlsd", 1024), ("acrlsd", 0), ("affinities", 1024)):
            yield Point(mode, sizes.tiles[0], cache_mb=cache_mb, workers=1)
        return
    base, *others = (sizes.tiles[1], sizes.tiles[0], *sizes.tiles[2:])
    for change in ({}, {"workers": 1}, {"workers": 4}, *({"tile": tile} for tile in others)):
        for mode in ("affinities", "acrlsd"):
            yield replace(Point(mode, base), **change)
    for change in ({"cache_mb": 0}, {"cache_mb": 8192}, {"block": 256}, {"block": 768}, {"workers": 8}):
        yield replace(Point("acrlsd", base), **change)


def main() -> int:
    """Print the tables; 1 if a run failed for another reason than its settings."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a toy, to try the script")
    parser.add_argument("--minutes", type=float, default=8.0, help="no run begins that would end later")
    options = parser.parse_args()
    require_device(options.device)
    until = time.monotonic() + 60 * options.minutes
    sizes = TINY if options.tiny else PUBLISHED
    print(describe(options.device))
    rates = Rates(eager_rates(options.device, sizes), rooflines(options.device, sizes))
    longest, failed = 0.0, 0
    with TemporaryDirectory(prefix="lsdflow-gpu-") as scratch:
        made = make_experiment(Path(scratch), options.device, sizes, 48 if options.tiny else 768)
        print_head("predict: the stage, from disk to disk", COLUMNS)
        for point in points(sizes, options.tiny):
            begin = time.monotonic()
            named = [point.mode, point.tile, point.block or "", point.cache_mb, point.workers]
            if begin + longest > until:
                print_row([*named, "no time left"])
                continue
            try:
                print_row(row(made, point, sizes, options.device, rates))
            except ConfigError as error:  # it does not fit
                print_row([*named, explained(error)])
            except Exception as error:  # noqa: BLE001  the next settings may work; this row says what went wrong
                print_row([*named, explained(error)])
                failed = 1
            longest = max(longest, time.monotonic() - begin)
    return failed


def row(made: Path, point: Point, sizes: Sizes, device: str, rates: Rates) -> list[Any]:
    """A run of the stage, and what it reached."""
    tile = output_shape_vox(sizes.spec(1), sizes.cube(point.tile))[0]
    networks = made.parents[1] / "networks"
    settings = [
        f'experiment.mode="{point.mode}"',
        f'compute.runner="{"serial" if point.workers == 1 else "daisy"}"',
        f"compute.workers={point.workers}",
        f'predict.checkpoint="{networks / point.mode / "00000001"}"',
        f'predict.lsd_checkpoint="{networks / "lsd" / "00000001"}"',
        f'predict.tile_shape="{tile} vox"',
        f"predict.lsd_cache_mb={point.cache_mb}",
    ]
    if point.block is not None:
        settings.append(f'predict.block_shape="{point.block} vox"')
    experiment = load_experiment(made, settings)
    forget(experiment.layout)
    with Busy(device) as busy:
        Predict().run(experiment)
    task = Predict().last_pass(experiment)
    records = list(task.marks.records().values())
    span_s = max(r["finished"] for r in records) - min(r["finished"] - r["seconds"] for r in records)
    voxels = sum(task.plan.block(number).write.size for number in range(len(task.plan)))
    rate = voxels / span_s / 1e6
    facts = read_manifest(experiment.layout, "predict").facts
    if facts["blocks_executed"] != len(records):
        raise InternalError(
            "blocks of an earlier run were counted", wanted=len(records), found=facts["blocks_executed"]
        )
    whole = voxels / float(facts["seconds"]) / 1e6
    return [
        *(point.mode, tile, task.plan.block(0).write.shape_vox[0], point.cache_mb, point.workers, len(records)),
        *(f"{rate:.3g}", f"{whole:.3g}", f"{rate / rates.eager[point.mode]:.2f} x"),
        *(
            f"{100 * rate / rates.roofline[point.mode]:.0f} %",
            formatted(busy.percent, ".0f"),
            formatted(busy.gib, ".1f"),
        ),
    ]


def forget(layout: ExperimentLayout) -> None:
    """Delete what the run before left: blocks whose values do not depend on a setting would not be computed again."""
    for name in ("results", "store", "runs"):
        shutil.rmtree(layout.root / name, ignore_errors=True)
    layout.manifest("predict").unlink(missing_ok=True)


def make_experiment(folder: Path, device: str, sizes: Sizes, edge: int) -> Path:
    """A prepared experiment with networks of random weights beside it; returns its file."""
    for kind, (channels, outputs) in NETWORKS.items():
        spec = sizes.spec(channels)
        bundle = untrained_bundle(kind, spec, outputs, sizes.cube(sizes.tiles[0]))
        torch.manual_seed(0)
        save_bundle(folder / "networks" / kind, bundle, UNet(spec, outputs).state_dict())
    layout = ExperimentLayout(folder / "experiment")
    layout.root.mkdir()
    threads = max(1, torch.get_num_threads() // 4)
    text = f'[compute]\ndevice = "{device}"\nthreads_per_worker = {threads}\n'
    layout.experiment_toml.write_text(f"{text}[predict]\nallow_lsd_mismatch = true\n")
    grid = Geometry(VOXEL_NM, (0.0, 0.0, 0.0), (edge,) * 3)
    output = OutputArray(layout.root / TARGET, RAW, grid, grid.box, (min(edge, 256),) * 3)
    output.create({"key": "benchmark"})
    output.open().write(grid.box, smooth_noise(edge))
    facts = {"key": "k", "config": {}, "inputs": {}, "outputs": {"target": TARGET}, "identity": "raw"}
    Manifest(writer=Writer.of("prepare"), **facts).write(layout)
    return layout.experiment_toml


def smooth_noise(edge: int) -> Any:
    """Raw u8 as smooth as EM, from repeats of a piece."""
    piece = gaussian_filter(np.random.default_rng(0).standard_normal((min(edge, 128),) * 3).astype(np.float32), 1.5)
    grey = np.clip(127 + 60 * piece / piece.std(), 0, 255).astype(np.uint8)
    return np.tile(grey, (-(-edge // len(grey)),) * 3)[:edge, :edge, :edge]


def eager_rates(device: str, sizes: Sizes) -> dict[str, float]:
    """Mvoxel/s of plain eager torch at its best tile: float32 in memory, TF32 where torch takes it by itself.

    acrlsd: LSDs stored, then affinities, so that no LSD is computed twice.
    """
    print_head("predict: eager torch, one network, input in memory", ("channels", "input", "Mvoxel/s"))
    best: dict[int, float] = {}
    for channels, outputs in NETWORKS.values():
        if channels in best:
            continue
        network = UNet(sizes.spec(channels), outputs).to(device)
        weights = {name: value.detach() for name, value in network.state_dict().items()}
        for tile in sizes.tiles:
            shape = sizes.cube(tile)
            inputs = torch.rand(channels, *shape)
            try:
                rate, _ = measured(lambda: grey_levels(weights, inputs.to(device)).cpu(), sizes.rounds, device)  # noqa: B023
            except torch.OutOfMemoryError:
                print_row((channels, shape[0], "does not fit"))
                continue
            best[channels] = max(rate, best.get(channels, 0.0))
            print_row((channels, shape[0], f"{rate:.3g}"))
    return {"affinities": best[1], "acrlsd": 1 / (1 / best[1] + 1 / best[11])}


def rooflines(device: str, sizes: Sizes) -> dict[str, float]:
    """Mvoxel/s that the multiplications allow, at the largest tile."""
    peak = matrix_flops_per_s(device, 256 if sizes is TINY else 8192)
    print_head("predict: roofline", ("network", "flop per voxel", "bf16 matrix product, Tflop/s", "Mvoxel/s"))
    found: dict[str, float] = {}
    for kind, (channels, outputs) in NETWORKS.items():
        shape = sizes.cube(sizes.tiles[-1])
        with FlopCounterMode(display=False) as counted, torch.no_grad(), torch.device("meta"):
            network = UNet(sizes.spec(channels), outputs)
            network(torch.empty(1, channels, *shape))
        per_voxel = counted.get_total_flops() / float(np.prod(output_shape_vox(sizes.spec(channels), shape)))
        found[kind] = peak / per_voxel / 1e6
        print_row((kind, f"{per_voxel:.3g}", f"{peak / 1e12:.3g}", f"{found[kind]:.3g}"))
    found["acrlsd"] = 1 / (1 / found["lsd"] + 1 / found["acrlsd"])
    print_row(("lsd, then acrlsd", "", f"{peak / 1e12:.3g}", f"{found['acrlsd']:.3g}"))
    return found


def matrix_flops_per_s(device: str, edge: int) -> float:
    """Of a product of two square matrices of random numbers in bf16."""
    a, b = (torch.randn(edge, edge, device=device).to(torch.bfloat16) for _ in range(2))

    def ten_products() -> Any:
        return [a @ b for _ in range(10)][-1][None]

    values_per_s = 1e6 * measured(ten_products, 5, device)[0]
    return 10 * 2 * edge * values_per_s


def explained(error: BaseException) -> str:
    """What went wrong, for a cell."""
    text = error.message() if isinstance(error, StageError) else str(error)
    return f"{type(error).__name__}: {' '.join(text.split())[:400]}".replace("|", "/")


if __name__ == "__main__":
    sys.exit(main())
