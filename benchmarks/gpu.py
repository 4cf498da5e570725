"""What one GPU does: prediction, training, LSD targets, as a table. Refuses where there is no CUDA.

    .venv/blocks/bin/python benchmarks/gpu.py predict       `make bench-gpu` does all
    .venv/training/bin/python benchmarks/gpu.py train       [--device cpu --tiny]: the same on a toy, to try the script

predict: raw u8 in main memory -> u8 outputs in main memory. LSD: one tile. AcrLSD: one block with its LSDs around it,
as predict's worker does it in one pass. Each precision and tile is compared with float32 (TF32 off) on the same
device, for one tile of the smallest size; everything else is measured at the default precision.
train: iterations of forward, backward and optimiser on patches on the device. data: patches and iterations
with each data pipeline, and how long training waits for patches. ranks: what the means of several processes cost with
one process (gpu_one_rank.py). Networks have random weights, which cost what trained ones cost.
--network FOLDER --volume A.zarr: a trained network on real raw, so its distance from float32 counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from gpu_machine import describe, print_head, print_row, require_device

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.geometry import Box
from lsdflow_network.chain import chain_shapes
from lsdflow_network.composition import AcrLsd
from lsdflow_network.devices import cpu_computes_bf16
from lsdflow_network.precision import memory_format
from lsdflow_network.shapes import nearest_valid_input_shapes, output_shape_vox
from lsdflow_network.unet import UNet

COLUMNS = ("what", "precision", "size", "rate", "goal", "against float32")


@dataclass(frozen=True)
class Sizes:
    """How large everything is."""

    fmaps: int
    increase: int
    factors: tuple[int, ...]
    tiles: tuple[int, ...]
    block: int
    train_lsd: int
    train_acrlsd: int
    labels: int
    volume: int
    iterations: int
    rounds: int

    def spec(self, channels: int) -> UNetSpec:
        """The U-Net with so many input channels."""
        factors = tuple((f, f, f) for f in self.factors)
        return UNetSpec(
            in_channels=channels, num_fmaps=self.fmaps, fmap_inc_factor=self.increase, downsample_factors=factors
        )

    def cube(self, edge: int) -> tuple[int, int, int]:
        """The smallest input of at least this edge."""
        return nearest_valid_input_shapes(self.spec(1), (edge, edge, edge))[1]


PUBLISHED = Sizes(12, 6, (2, 2, 3), (196, 268, 364), 504, 196, 304, 152, 480, 40, 3)
TINY = Sizes(2, 2, (2,), (24, 32), 16, 28, 60, 24, 64, 1, 1)


@dataclass(frozen=True)
class Line:
    """A row of the table."""

    what: str
    precision: str
    size: str
    rate: str
    goal: str
    parity: str


def precisions_of(device: str, *of_gpus: str) -> tuple[str, ...]:
    """What is measured on a device: 16 bits only where networks can run in them (CPUs with AVX2 only cannot)."""
    sixteen_bits = device != "cpu" or cpu_computes_bf16()
    return ("float32", "tf32", *(("bf16", *of_gpus) if sixteen_bits else ()))


def predict_lines(device: str, sizes: Sizes, folder: Path) -> Iterator[Line]:
    """Prediction: every precision at every tile; a tile that does not fit is reported."""
    from network_data import make_network

    from lsdflow_predict.evaluation import prepare_torch

    prepare_torch()
    make_network(folder, (sizes.fmaps, sizes.increase, sizes.factors, sizes.cube(sizes.tiles[0])[0]))
    make_network(folder / "affs", (sizes.fmaps, sizes.increase, sizes.factors, sizes.cube(sizes.tiles[0])[0]), "acrlsd")
    for what, work, goal in (("LSD net", lsd_tile, 120), ("AcrLSD", acrlsd_block, 50)):
        for tile in sizes.tiles:
            exact = None
            compared = what == "LSD net" and tile == sizes.tiles[0]
            for precision in inference_precisions(device) if compared else ("auto",):
                named = (what, precision, f"input {sizes.cube(tile)[0]}")
                try:
                    with multiplied_in(precision):
                        rate, values = measured(work(device, sizes, folder, tile, precision), sizes.rounds, device)
                except torch.OutOfMemoryError:
                    yield Line(*named, "does not fit", "", "")
                    continue
                exact = values if exact is None and precision == "float32" else exact
                reached = f"{goal} {'yes' if rate >= goal else 'NO'}"
                parity = "" if exact is None else levels_apart(values, exact)
                yield Line(*named, f"{rate:.3g} Mvoxel/s", reached, parity)


def inference_precisions(device: str) -> tuple[str, ...]:
    """What predict can be set to on a device, float32 first."""
    found = precisions_of(device, "fp16")
    return found if device != "cpu" else tuple(p for p in found if p not in ("tf32", "fp16"))


@contextmanager
def multiplied_in(precision: str) -> Iterator[None]:
    """With TF32 allowed for this precision alone."""
    allowed = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False


def stored_in(precision: str) -> Any:
    """The precision of a training: TF32 is float32 that is multiplied otherwise."""
    return "float32" if precision == "tf32" else precision


def lsd_tile(device: str, sizes: Sizes, folder: Path, tile: int, precision: str) -> Callable[[], Any]:
    """One tile of the LSD network, bytes to bytes."""
    from lsdflow_network.inference import load_predictor

    predictor = load_predictor(bundle_in(folder), device=device, precision=precision)
    raw = random_raw(sizes.cube(tile))
    return lambda: predictor.grey_levels(raw, None, ("lsds",))[0].cpu().numpy()


def acrlsd_block(device: str, sizes: Sizes, folder: Path, tile: int, precision: str) -> Callable[[], Any]:
    """One block of affinities with the LSDs around it, kept on the device."""
    from lsdflow_network.inference import load_predictor
    from lsdflow_predict.blocks import LsdSource, TileCache, Window, predict_box
    from lsdflow_predict.evaluation import Finite
    from lsdflow_predict.tiling import affinity_grid, lsd_grid

    lsd = load_predictor(bundle_in(folder), device=device, precision=precision)
    affinity = load_predictor(bundle_in(folder / "affs"), device=device, precision=precision)
    largest = output_shape_vox(sizes.spec(1), sizes.cube(tile))
    region = Box((0, 0, 0), (sizes.block,) * 3)
    affinities = affinity_grid(sizes.spec(11), region, largest, region.shape_vox)
    lsds = lsd_grid(sizes.spec(1), affinities, largest, region.shape_vox)
    inputs = affinities.tiling.inputs_hull(region)
    around = lsds.tiling.inputs_hull(inputs)
    raw = random_raw(around.shape_vox)

    def work() -> Any:
        seen = Window(around, raw.to(device))
        source = LsdSource(lsds.tiling, lsd.grey_levels, TileCache(0), device)
        finite: list[Finite] = []
        values, _ = source.read(inputs, seen, finite)
        return (
            predict_box(
                affinities.tiling,
                region,
                list(affinities.tiling.indices_touching(region)),
                network=affinity.grey_levels,
                outputs={"affs": 3},
                raw=Window(inputs, seen.crop(inputs)),
                lsds=Window(inputs, values),
                finite=finite,
            )
            .cpu()
            .numpy()
        )

    return work


def train_lines(device: str, sizes: Sizes, _folder: Path) -> Iterator[Line]:
    """Training iterations of the published shapes, and LSD targets on the device."""
    for what, edge, goal in (("train LSD", sizes.train_lsd, 20.0), ("train AcrLSD", sizes.train_acrlsd, 6.7)):
        for precision in precisions_of(device, "fp16"):
            with multiplied_in(precision):
                step = training_step(device, sizes, edge, stored_in(precision), chain=what == "train AcrLSD")
                seconds = seconds_of(step, sizes.rounds, device)
            reached = f"{goal} {'yes' if 1 / seconds >= goal else 'NO'}"
            yield Line(what, precision, f"input {edge}", f"{1 / seconds:.3g} it/s", reached, "")
    yield targets_line(device, sizes)


def data_lines(device: str, sizes: Sizes, folder: Path) -> Iterator[Line]:
    """Training with its data pipeline, of the published shapes."""
    from gpu_pipeline import pipeline_rows
    from network_data import make_network

    edge = sizes.cube(sizes.train_lsd)[0]
    make_network(folder, (sizes.fmaps, sizes.increase, sizes.factors, edge))
    network = {
        "num_fmaps": sizes.fmaps,
        "fmap_inc_factor": sizes.increase,
        "downsample_factors": [[f, f, f] for f in sizes.factors],
        "input_shape_vox": [edge] * 3,
        "sigma": f"{8 * (10 if sizes is PUBLISHED else 3)} nm",
    }
    for what, size, rate, goal in pipeline_rows(device, folder, network, sizes.volume, sizes.iterations):
        yield Line(what, "auto", size, rate, goal, "")


def rank_lines(device: str, sizes: Sizes, _folder: Path) -> Iterator[Line]:
    """Training in a group of one process, shared in every way."""
    from gpu_one_rank import one_rank_rows

    edge = sizes.cube(sizes.train_lsd)[0]
    rows = one_rank_rows(device, sizes.spec(1), (edge, edge, edge), sizes.iterations)
    for what, precision, rate, against in rows:
        yield Line(what, precision, f"input {edge}", rate, "", against)


def training_step(device: str, sizes: Sizes, edge: int, precision: Any, *, chain: bool) -> Callable[[], Any]:
    """Forward, backward and optimiser on one patch."""
    from lsdflow_training.data.patch import Patch
    from lsdflow_training.step import Gradients, train_step

    where, shape = torch.device(device), sizes.cube(edge)
    name, channels = ("affs", 3) if chain else ("lsds", 10)
    trained = UNet(sizes.spec(11 if chain else 1), {name: channels})
    network: torch.nn.Module = trained
    output = output_shape_vox(sizes.spec(1), shape)
    if chain:
        network = AcrLsd(UNet(sizes.spec(1), {"lsds": 10}), sizes.spec(1), trained, sizes.spec(11))
        output = chain_shapes(sizes.spec(1), sizes.spec(11), shape).output_vox
    network = network.to(where).to(memory_format=memory_format(where))  # type: ignore[call-overload]
    raw = torch.rand(1, 1, *shape, device=where).contiguous(memory_format=memory_format(where))
    target = {name: torch.rand(1, channels, *output, device=where)}
    patch = Patch(raw, target, {name: torch.ones_like(target[name])})
    optimizer = torch.optim.Adam(trained.parameters(), lr=1e-4)
    gradients = Gradients(scaler=torch.amp.GradScaler(where.type) if precision == "fp16" else None)
    return lambda: train_step(network, optimizer, [patch], precision, gradients=gradients)


def targets_line(device: str, sizes: Sizes) -> Line:
    """LSD targets of one training sample, against the reference on the CPU."""
    from lsdflow_contract.testing import voronoi_labels
    from lsdflow_training.targets.lsd import local_shape_descriptors
    from lsdflow_training.targets.lsd_torch import lsd_targets_torch

    labels = voronoi_labels((sizes.labels,) * 3, 42, seed=0)
    context = sizes.labels // 5
    roi = Box((context,) * 3, (sizes.labels - 2 * context,) * 3)
    there = torch.from_numpy(labels.astype(np.int64)).to(device)
    sigma_nm = 8.0 * context / 3
    seconds = seconds_of(lambda: lsd_targets_torch(there, sigma_nm, (8, 8, 8), roi), sizes.rounds, device)
    found = lsd_targets_torch(there, sigma_nm, (8, 8, 8), roi).cpu().numpy()
    wanted = local_shape_descriptors(labels, sigma_nm, (8, 8, 8), roi)
    rate = f"{1 / seconds:.3g} samples/s"
    return Line("LSD targets", "float32", f"roi {roi.shape_vox[0]}", rate, "", f"{np.abs(found - wanted).max():.1e}")


def measured(work: Callable[[], Any], rounds: int, device: str) -> tuple[float, Any]:
    """(Mvoxel of output per second, the output)."""
    values = work()
    return float(np.prod(values.shape[1:])) / seconds_of(work, rounds, device) / 1e6, values


def seconds_of(work: Callable[[], Any], rounds: int, device: str) -> float:
    """Median seconds of one run, after a first one; the device has finished before the clock is read."""
    found = []
    for _ in range(rounds + 1):
        begin = time.perf_counter()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return statistics.median(found[1:])


def levels_apart(values: Any, exact: Any) -> str:
    """How far outputs are from those in float32."""
    apart = np.abs(values.astype(np.int16) - exact)
    return f"levels: max {apart.max()}, mean {apart.mean():.4f}"


def bundle_in(folder: Path) -> Path:
    """The bundle that make_network left."""
    return next((folder / "network").glob("*/weights.safetensors")).parent


def random_raw(shape: tuple[int, ...]) -> torch.Tensor:
    """Raw u8."""
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def given_lines(device: str, folder: Path, volume: Path) -> Iterator[Line]:
    """A trained network on real raw: every precision at its own tile, the default precision at larger ones."""
    import zarr

    from lsdflow_network.inference import load_predictor
    from lsdflow_predict.evaluation import prepare_torch

    raw = torch.from_numpy(np.asarray(zarr.open_array(volume / "volumes" / "raw", mode="r")[...]))
    bundle = load_predictor(folder).bundle
    own, largest = max(bundle.predict_input_shape_vox), min(raw.shape)
    tiles = [own, *(tile for tile in (196, 244) if own < tile <= largest)]
    exact = None
    for tile in tiles:
        shape = nearest_valid_input_shapes(bundle.unet, (tile,) * 3)[0] or bundle.predict_input_shape_vox
        seen = raw[tuple(slice(n) for n in shape)]
        for precision in inference_precisions(device) if tile == own else ("auto",):
            prepare_torch(precision)
            predictor = load_predictor(folder, device=device, precision=precision)
            work = partial(_levels_of, predictor, seen, tuple(bundle.outputs))
            rate, values = measured(work, 5, device)
            exact = values if exact is None else exact
            parity = levels_apart(values, exact) if tile == own else ""
            yield Line(folder.name, precision, f"input {shape[0]}", f"{rate:.3g} Mvoxel/s", "", parity)


def _levels_of(predictor: Any, raw: Any, names: tuple[str, ...]) -> Any:
    return predictor.grey_levels(raw, None, names)[0].cpu().numpy()


PARTS = {"predict": predict_lines, "train": train_lines, "data": data_lines, "ranks": rank_lines}


def main(arguments: list[str]) -> None:
    """Measure some parts, and print a table of each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--network", type=Path, help="a bundle of mode mtlsd or affinities, with --volume")
    parser.add_argument("--volume", type=Path, help="a zarr container with volumes/raw")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a toy, to try the script")
    options = parser.parse_args(arguments)
    if not set(options.parts) <= set(PARTS) or bool(options.network) != bool(options.volume):
        parser.error(f"parts: {', '.join(PARTS)}; --network and --volume go together")
    require_device(options.device)
    print(describe(options.device))
    if options.network:
        print_head(f"predict: {options.network.name}", COLUMNS)
        for line in given_lines(options.device, options.network, options.volume):
            print_row((line.what, line.precision, line.size, line.rate, line.goal, line.parity))
    for part in options.parts:
        print_head(part, COLUMNS)
        with TemporaryDirectory(prefix="lsdflow-gpu-") as scratch:
            for line in PARTS[part](options.device, TINY if options.tiny else PUBLISHED, Path(scratch)):
                print_row((line.what, line.precision, line.size, line.rate, line.goal, line.parity))


if __name__ == "__main__":
    main(sys.argv[1:])
