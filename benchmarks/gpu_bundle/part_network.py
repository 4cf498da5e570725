"""The networks alone, from bytes in main memory to bytes in main memory, and where their time goes.

The published networks with random weights, at the default precision; bf16 and, at the smallest tile, float32 beside it.
"""

from __future__ import annotations

import functools
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bits import levels
from experiments import network, sizes_of
from gpu import Sizes, inference_precisions, levels_apart, measured, random_raw
from gpu_machine import print_head
from operators import Operation, Recorded
from part import Part
from torch.profiler import ProfilerActivity, profile

from lsdflow_contract.checkpoint import Kind
from lsdflow_network.inference import Predictor, load_predictor
from lsdflow_predict.evaluation import prepare_torch

LINES = 16  # of a table of operations or kernels
KINDS: tuple[Kind, ...] = ("lsd", "acrlsd")


@dataclass(frozen=True)
class Point:
    """A network at a precision and one of the tiles."""

    kind: Kind
    precision: str
    tile: int

    def __str__(self) -> str:
        return f"{self.kind} {self.precision} tile {self.tile}"


def points(device: str) -> list[Point]:
    """The rows, the most important first."""
    found = [Point(kind, "auto", tile) for tile in (1, 0, 2) for kind in KINDS]
    if "bf16" in inference_precisions(device):
        found.insert(2, Point("lsd", "bf16", 1))
    return [*found, Point("lsd", "float32", 0)]


def main() -> int:
    """Print the tables."""
    part = Part(__doc__)
    sizes = sizes_of(part)
    all_points = [point for point in points(part.device) if point.tile < len(sizes.tiles)]
    part.plan("matrix product", *map(str, all_points), *(f"{kind}: operations" for kind in KINDS))
    product = matrix_flop_per_s(part.device, 256 if part.tiny else 8192)
    print(f"\nA product of two matrices in bf16: {product / 1e12:.3g} Tflop/s", flush=True)
    part.did("matrix product")
    exact: dict[str, Any] = {}
    print_head("the network alone", ("network", "precision", "input", "Mvoxel/s", "GPU GiB", "against float32"))
    work = {str(point): partial(print_rate, point, part, sizes, exact) for point in all_points}
    failed = [part.attempt(str(point), work[str(point)]) for point in all_points[:3]]
    for kind in KINDS:
        failed.append(
            part.attempt(f"{kind}: operations", partial(print_operations, Point(kind, "auto", 1), part, sizes))
        )
    print_head("the network alone: other tiles", ("network", "precision", "input", "Mvoxel/s", "GPU GiB", "float32"))
    failed += [part.attempt(str(point), work[str(point)]) for point in all_points[3:]]
    return max(failed)


def print_rate(point: Point, part: Part, sizes: Sizes, exact: dict[str, Any]) -> None:
    """A row of the table of rates."""
    part.row(str(point), cells(point, part, sizes, exact))


def tile_of(point: Point, part: Part, sizes: Sizes) -> tuple[Callable[[], Any], Any, int]:
    """(What evaluates a tile, its precision, the edge of its input)."""
    prepare_torch(point.precision)
    predictor = loaded(network(part, point.kind), part.device, point.precision)
    shape = sizes.cube(sizes.tiles[point.tile])
    raw, lsds = random_raw(shape), None if point.kind == "lsd" else random_raw((10, *shape))
    if part.device.startswith("cuda"):
        raw, lsds = raw.pin_memory(), None if lsds is None else lsds.pin_memory()
    compute = levels(predictor)
    return lambda: compute(raw, lsds), predictor.precision, shape[0]


@functools.cache
def loaded(folder: Path, device: str, precision: str) -> Predictor:
    """A network on the device; a gigabyte of weights is read once."""
    return load_predictor(folder, device=device, precision=precision)


def cells(point: Point, part: Part, sizes: Sizes, exact: dict[str, Any]) -> list[Any]:
    """A row: the rate and the memory. exact: values by network and tile, compared with float32 once it is there."""
    cuda = part.device.startswith("cuda")
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    evaluate, precision, edge = tile_of(point, part, sizes)
    try:
        rate, values = measured(evaluate, sizes.rounds, part.device)
    except torch.OutOfMemoryError:
        return [point.kind, precision, edge, "does not fit", "", ""]
    gib = f"{torch.cuda.max_memory_reserved() / 2**30:.1f}" if cuda else ""
    parity = ""
    if point.kind == "lsd" and point.tile == 0:
        parity = levels_apart(exact["lsd"], values.numpy()) if point.precision == "float32" else ""
        exact["lsd"] = values.numpy()
    return [point.kind, precision, edge, f"{rate:.3g}", gib, parity and f"default: {parity}"]


def print_operations(point: Point, part: Part, sizes: Sizes) -> None:
    """Where the time of a tile goes: operations (one at a time, which is slower), then kernels (as they run)."""
    evaluate, precision, edge = tile_of(point, part, sizes)
    evaluate()
    with Recorded(timed=True) as recorded:
        evaluate()
    print_head(
        f"{point.kind} {precision} {edge}: operations, one at a time",
        ("operation", "inputs", "output", "calls", "ms", "share", "Tflop/s", "GB/s"),
    )
    for line in by_operation(recorded.calls)[:LINES]:
        part.row("", line, done=False)
    cuda = part.device.startswith("cuda")
    activities = [ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]
    with profile(activities=activities) as profiled:
        evaluate()
    kernels = [(_microseconds(event, cuda), event) for event in profiled.key_averages()]
    whole = sum(time for time, _ in kernels) or 1.0
    print_head(f"{point.kind} {precision} {edge}: kernels", ("kernel", "calls", "ms", "share"))
    for time, event in sorted((k for k in kernels if k[0]), key=lambda pair: -pair[0])[:LINES]:
        name = event.key.replace("|", "/")[:120]
        part.row("", [name, event.count, f"{time / 1e3:.2f}", f"{100 * time / whole:.0f} %"], done=False)
    part.did(f"{point.kind}: operations")


def by_operation(calls: list[Operation]) -> list[list[Any]]:
    """Rows of a table, the longest first; calls of the same shapes together."""
    groups: dict[tuple[str, str, str], list[Operation]] = defaultdict(list)
    for call in calls:
        groups[call.name, call.inputs, call.output].append(call)
    whole = sum(call.milliseconds for call in calls) or 1.0
    rows = []
    for (name, inputs, output), group in groups.items():
        ms = sum(call.milliseconds for call in group)
        per_s = 1e3 / max(ms, 1e-6)
        flop, moved = sum(c.flop for c in group) * per_s, sum(c.bytes for c in group) * per_s
        rates = (f"{flop / 1e12:.3g}" if flop else "", f"{moved / 1e9:.0f}")
        rows.append([name, inputs, output, len(group), f"{ms:.2f}", f"{100 * ms / whole:.0f} %", *rates])
    return sorted(rows, key=lambda row: -float(row[4]))


def _microseconds(event: Any, cuda: bool) -> float:
    """Of a kernel; on a CPU, of an operation. None for calls of the driver, which are events too."""
    return float(event.self_device_time_total if cuda else event.self_cpu_time_total)


def matrix_flop_per_s(device: str, edge: int) -> float:
    """Of a product of two square matrices of random numbers in bf16."""
    a, b = (torch.randn(edge, edge, device=device).to(torch.bfloat16) for _ in range(2))

    def ten_products() -> Any:
        return [a @ b for _ in range(10)][-1][None]

    return 10 * 2 * edge * 1e6 * measured(ten_products, 5, device)[0]


if __name__ == "__main__":
    sys.exit(main())
