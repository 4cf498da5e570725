"""What predict does with one block: the tiles that touch it are evaluated and assembled.

One pass (LSDs in memory) and two passes (LSDs stored) differ only in where the LSDs of the affinity network come from:
both get the grey levels of the same LSD tiles, so both give the same bits. Windows and tiles are tensors. Where the GPU
has room for the raw and the LSDs of a block, bytes go there once and come back once.

torch takes seconds to load: only processes that compute blocks or measure tiles import this module.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsdflow_contract.arrays import LSDS
from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.errors import BadData, ConfigError
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_network import shapes
from lsdflow_network.inference import Predictor, load_predictor
from lsdflow_network.out_of_memory import does_not_fit, is_out_of_memory
from lsdflow_predict.config import PredictConfig
from lsdflow_predict.inputs import Inputs
from lsdflow_predict.resources import cache_bytes, choose_window_device, window_bytes
from lsdflow_predict.tiling import Each, Index3, TiledNetwork, TileGrid, Tiling, assemble, crop_to_cell, hull
from lsdflow_runtime.blocks import Block
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput
from lsdflow_runtime.io.volumes import Volume

U8 = npt.NDArray[np.uint8]
# Raw u8, LSDs u8 or none, names of outputs -> their grey levels u8, and whether they are all finite (a bool there).
Network = Callable[[Tensor, Tensor | None, Sequence[str]], tuple[Tensor, Tensor]]
# An evaluation (its output box), and whether its values are finite: asked once a block, because that waits for it.
Finite = tuple[Box, Tensor]

LOG = logging.getLogger("lsdflow.predict")
# Of 255; fp16 differs from float32 by 0.03 to 0.05 on average, bf16 by 0.2 to 0.4 (benchmarks/RESULTS_GPU.md).
LARGEST_MEAN_LEVELS = 1.0
COMPARED_VOX = 196

# Of glibc's malloc.h: from which size on memory is mapped, and how much free memory is kept.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1
_LARGEST_INT = 2**31 - 1


def affinity_blocks(
    inputs: Inputs,
    stored_lsds: Volume | None,
    mask: Volume | None,
    *,
    outputs: dict[str, int],
    config: PredictConfig,
    device: str,
    threads: int = 1,
) -> BlockFunction:
    """Load the networks and return the function of a block: its `outputs` (name -> channels), u8, 0 outside the mask.

    stored_lsds: the LSDs that the first of two passes has stored. If there are none, an LSD network computes them for
    each block and they stay in memory. Networks are evaluated on the torch device `device`; on a CPU so many tiles at
    a time, each by one of the `threads`.
    """
    affinities = inputs.affinities
    lsds = None if stored_lsds is not None else inputs.lsds
    tiling = affinities.grid.tiling
    worker = Device(device, window_bytes(affinities.grid, None if inputs.lsds is None else inputs.lsds.grid), threads)
    network = load_network(affinities.folder, device, config.precision)
    source = None if lsds is None else _lsd_source(lsds, config, worker)

    def predict_block(block: Block) -> BlockOutput:
        """Predict the write ROI of a block: u8 arrays (channels, z, y, x) by name, and counts for the manifest."""
        box = block.write
        inside = None if mask is None else mask.read(box, outside="zero")
        tiles = tiles_inside(tiling, box, inside)
        facts = {"blocks_outside_mask": int(not tiles), "tiles": len(tiles)}
        if not tiles:
            zeros = np.zeros((sum(outputs.values()), *box.shape_vox), np.uint8)
            return BlockOutput(arrays=_by_name(zeros, outputs), facts=facts)
        seen = hull(tiling.input(index) for index in tiles)
        raw_box = seen if source is None else source.tiling.inputs_hull(seen)
        raw = worker.window(raw_box, inputs.raw.read(raw_box, outside=config.outside))
        stored = None if stored_lsds is None else worker.window(seen, stored_lsds.read(seen))
        finite: list[Finite] = []
        with worker.computing():
            raw, lsd_window = worker.upload(raw), None if stored is None else worker.upload(stored)
            if source is not None:
                values, facts["lsd_tiles"] = source.read(seen, raw, finite, worker.each)
                lsd_window = Window(seen, values)
            own = outputs if lsd_window is None else {"affs": outputs["affs"]}
            levels = predict_box(
                *(tiling, box, tiles), network=network, outputs=own, raw=raw, lsds=lsd_window, finite=finite,
                each=worker.each,
            )  # fmt: skip
            if lsd_window is not None and "lsds" in outputs:
                levels = torch.cat([levels, _pasted(lsd_window, box)])
            arrived = worker.download(levels, finite)
        found = arrived()
        if inside is not None:
            found = np.where(inside[None] > 0, found, np.uint8(0))
        return BlockOutput(arrays=_by_name(found, outputs), facts=facts)

    return predict_block


def lsd_blocks(
    raw: Volume,
    lsds: TiledNetwork,
    mask: Volume | None,
    affinities: TileGrid,
    *,
    config: PredictConfig,
    device: str,
    threads: int = 1,
) -> BlockFunction:
    """Load the LSD network and return the function of a block of the first pass: its LSDs, u8 (10, z, y, x).

    They are 0 in blocks that no affinity tile with a voxel inside the mask needs.
    """
    worker = Device(device, window_bytes(lsds.grid, lsds.grid), threads)
    source = _lsd_source(lsds, config, worker)

    def is_needed(box: Box) -> bool:
        """True unless the mask is 0 wherever an affinity tile could use LSDs of this box."""
        # A tile whose input meets the box owns voxels at most one input shape away from it.
        near = box.grow(affinities.tiling.input_vox).intersect(affinities.region)
        return mask is None or bool(mask.read(near, outside="zero").any())

    def predict_block(block: Block) -> BlockOutput:
        """Predict the LSDs of the write ROI of a block, u8 (10, z, y, x)."""
        if not is_needed(block.write):
            zeros = np.zeros((LSDS.channels, *block.write.shape_vox), np.uint8)
            return BlockOutput(arrays={"lsds": zeros}, facts={"blocks_outside_mask": 1})
        seen = source.tiling.inputs_hull(block.write)
        window = worker.window(seen, raw.read(seen, outside=config.outside))
        finite: list[Finite] = []
        with worker.computing():
            levels, computed = source.read(block.write, worker.upload(window), finite, worker.each)
            arrived = worker.download(levels, finite)
        return BlockOutput(arrays={"lsds": arrived()}, facts={"blocks_outside_mask": 0, "lsd_tiles": computed})

    return predict_block


@dataclass(frozen=True)
class Window:
    """A tensor u8 (..., z, y, x) and the box it covers."""

    box: Box
    values: Tensor

    def crop(self, box: Box) -> Tensor:
        """The values of `box`, which must be inside."""
        return self.values[(..., *box.slices(self.box.begin_vox))]


class Device:
    """The device of a worker. A GPU computes one block after the other, while others are read and written.

        thread 1   read | queue |    wait, copy    | write
        thread 2          read  | queue |            wait, copy    | write
        GPU             | block 1 ==============| block 2 =========|

    Only queueing is exclusive. A GPU does not wait for the host between two blocks: bytes come from and go to pinned
    memory, and a block is copied back by a stream of its own while the next one is computed.

    On a CPU, tiles are evaluated by `threads`, each of which is alone with its tile: the bits of oneDNN's convolutions
    depend on the number of threads that share one.
    """

    def __init__(self, device: str, window_bytes: int, threads: int = 1) -> None:
        self.device, self.windows = device, choose_window_device(device, window_bytes)
        self.is_gpu = device.startswith("cuda")
        self._queueing = threading.Lock()
        self.each: Each = map
        if threads > 1 and not self.is_gpu:
            self.each = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)).map

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Within the block, no other thread queues computations for a GPU."""
        if not self.is_gpu:
            torch.set_num_threads(1)
        with self._queueing if self.is_gpu else nullcontext(), torch.inference_mode():
            yield

    def window(self, box: Box, values: U8) -> Window:
        """Values of a box in main memory, from which a GPU copies without waiting."""
        tensor = torch.from_numpy(np.require(values, requirements=("C", "W")))
        return Window(box, tensor.pin_memory() if self.is_gpu else tensor)

    def upload(self, window: Window) -> Window:
        """The window where it is kept while its tiles are evaluated."""
        return Window(window.box, window.values.to(self.windows, non_blocking=True))

    def download(self, levels: Tensor, finite: list[Finite]) -> Callable[[], U8]:
        """A function that waits for the grey levels of a block and returns them in main memory.

        It raises BadData if an evaluation was not finite.
        """
        if not self.is_gpu:
            return lambda: _checked(levels, finite)
        computed = torch.cuda.current_stream(self.device).record_event()

        def arrived() -> U8:
            """Copy the levels once they are computed; the stream waits for this block only."""
            stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            stream.wait_event(computed)
            with torch.inference_mode(), torch.cuda.stream(stream):
                host = torch.empty(levels.shape, dtype=torch.uint8, pin_memory=True)
                host.copy_(levels, non_blocking=True)
                stream.synchronize()
                return _checked(host, finite)

        return arrived


@dataclass
class TileCache:
    """The tiles used last, up to `capacity_bytes`. The cache changes no value, only how often tiles are computed."""

    capacity_bytes: int
    _tiles: OrderedDict[Index3, tuple[Tensor, Finite]] = field(default_factory=OrderedDict)
    _bytes: int = 0
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def get(self, index: Index3, compute: Callable[[Index3], tuple[Tensor, Finite]]) -> tuple[Tensor, Finite]:
        """The tile `index` and whether it is finite, computed if it is not in the cache."""
        with self._changing:
            if index in self._tiles:
                self._tiles.move_to_end(index)
                return self._tiles[index]
        found = compute(index)
        with self._changing:
            if index not in self._tiles:
                self._tiles[index] = found
                self._bytes += found[0].nbytes
            while self._bytes > self.capacity_bytes:
                self._bytes -= self._tiles.popitem(last=False)[1][0].nbytes
        return found


@dataclass(frozen=True)
class LsdSource:
    """LSDs computed from raw, tile by tile; kept on `device`."""

    tiling: Tiling
    network: Network
    cache: TileCache
    device: str = "cpu"

    def read(self, box: Box, raw: Window, finite: list[Finite], each: Each = map) -> tuple[Tensor, int]:
        """LSDs (10, *box.shape) u8, and how many tiles were computed; all tiles of the box are added to `finite`.

        raw: a window that holds the inputs of these tiles.
        """
        computed: list[Index3] = []

        def compute(index: Index3) -> tuple[Tensor, Finite]:
            """The LSDs u8 (c, z, y, x) of one tile, cropped to the voxels that it owns."""
            computed.append(index)
            found: list[Finite] = []
            seen = raw.crop(self.tiling.input(index))
            output = grey_levels(self.network, seen, None, ("lsds",), self.tiling.output(index), found)
            return crop_to_cell(self.tiling, output).to(self.device).contiguous(), found[0]

        def tile(index: Index3) -> Tensor:
            """The LSDs of one tile. Blocks that share a tile which is not finite all fail."""
            values, is_finite = self.cache.get(index, compute)
            finite.append(is_finite)
            return values

        result = torch.zeros((LSDS.channels, *box.shape_vox), dtype=torch.uint8, device=self.device)
        return assemble(self.tiling, box, result, tile, each), len(computed)


def tiles_inside(tiling: Tiling, box: Box, mask: U8 | None) -> list[Index3]:
    """Tiles touching `box` that own a voxel inside the mask (z, y, x over the box); all of them without a mask."""
    indices = tiling.indices_touching(box)
    if mask is None:
        return list(indices)
    return [i for i in indices if mask[tiling.cell(i).intersect(box).slices(box.begin_vox)].any()]


def predict_box(
    tiling: Tiling,
    box: Box,
    tiles: Sequence[Index3],
    *,
    network: Network,
    outputs: dict[str, int],
    raw: Window,
    lsds: Window | None,
    finite: list[Finite],
    each: Each = map,
) -> Tensor:
    """Outputs (name -> channels) of `network` in `box`: grey levels (sum of channels, *box.shape), where raw is.

    tiles: those to evaluate, all others are 0; they are added to `finite`. raw, lsds: windows that hold the inputs of
    these tiles; lsds only for a network that takes them.
    """
    needed = set(tiles)

    def evaluate(index: Index3) -> Tensor | None:
        """The outputs u8 (c, z, y, x) of one tile, cropped to the voxels that it owns; None if not needed."""
        if index not in needed:
            return None
        seen = tiling.input(index)
        seen_lsds = None if lsds is None else lsds.crop(seen)
        levels = grey_levels(network, raw.crop(seen), seen_lsds, list(outputs), tiling.output(index), finite)
        return crop_to_cell(tiling, levels)

    result = torch.zeros((sum(outputs.values()), *box.shape_vox), dtype=torch.uint8, device=raw.values.device)
    return assemble(tiling, box, result, evaluate, each)


def grey_levels(
    network: Network, raw: Tensor, lsds: Tensor | None, names: Sequence[str], where: Box, finite: list[Finite]
) -> Tensor:
    """Outputs `names` of one evaluation as u8, (sum of channels, z, y, x), on the network's device.

    finite: this evaluation is added, for `require_finite`. Raises ConfigError if the tile does not fit in memory.
    """
    try:
        levels, is_finite = network(raw, lsds, names)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise does_not_fit(
            "the network does not fit in memory for one tile",
            error,
            f"tile {where}, output of the network {list(where.shape_vox)} vox",
            "make predict.tile_shape smaller",
        ) from error
    finite.append((where, is_finite))
    return levels


def require_finite(evaluations: Sequence[Finite]) -> None:
    """Raise BadData if an evaluation gave NaN or infinity, which every value of its tile may have come from."""
    if not evaluations:
        return
    finite = torch.stack([is_finite for _, is_finite in evaluations]).tolist()
    if not all(finite):
        raise BadData(
            "the network gives NaN or infinity",
            where=f"tile {evaluations[finite.index(False)][0]}",
            fix="the weights are broken (training diverged?): choose an earlier predict.checkpoint; if they are "
            'not, its values exceed the range of fp16: set predict.precision = "bf16" or "tf32"',
        )


def load_network(folder: Path, device: str, precision: str) -> Network:
    """The network of a bundle on its device. In 16 bits, its first evaluation is compared with float32.

    BadData if its weights are damaged.
    """
    predictor = load_predictor(folder, device=device, precision=precision)
    if predictor.precision in ("float32", "tf32"):
        return predictor.grey_levels
    compared = False

    def network(raw: Tensor, lsds: Tensor | None, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Evaluate a tile; before the first one, compare a corner of it."""
        nonlocal compared
        if not compared:
            require_parity(predictor, load_predictor(folder, device=device, precision="float32"), raw, lsds, names)
            compared = True
        return predictor.grey_levels(raw, lsds, names)

    return network


def require_parity(
    predictor: Predictor, exact: Predictor, raw: Tensor, lsds: Tensor | None, names: Sequence[str]
) -> None:
    """Compare the grey levels of a corner of a tile with those in float32; the difference is logged.

    Raises ConfigError if they differ by more than LARGEST_MEAN_LEVELS on average.
    """
    z, y, x = _comparable_vox(predictor.bundle.unet, raw.shape)
    seen, seen_lsds = raw[:z, :y, :x], None if lsds is None else lsds[:, :z, :y, :x]
    found, wanted = (p.grey_levels(seen, seen_lsds, names)[0].float() for p in (predictor, exact))
    apart = (found - wanted).abs()
    mean, most = float(apart.mean()), int(apart.max())
    LOG.info("%s differs from float32 by %.3f grey levels on average, %d at most", predictor.precision, mean, most)
    if not mean <= LARGEST_MEAN_LEVELS:
        raise ConfigError(
            f"this network cannot run in {predictor.precision}: its values differ from those in float32",
            where="predict.precision",
            wanted=f"at most {LARGEST_MEAN_LEVELS} grey levels on average",
            found=f"{mean:.2f}, at most {most}",
            fix='set predict.precision = "tf32" or "float32"',
        )


def seconds_per_tile(tiled: TiledNetwork, device: str, precision: str) -> float:
    """Seconds of one tile of a network on this machine's device (the second of two evaluations)."""
    network, bundle = load_network(tiled.folder, device, precision), tiled.bundle
    raw = torch.zeros(tiled.grid.tiling.input_vox, dtype=torch.uint8)
    lsds = raw.expand(LSDS.channels, *raw.shape) if bundle.unet.in_channels > 1 else None
    network(raw, lsds, list(bundle.outputs))
    started = time.monotonic()
    network(raw, lsds, list(bundle.outputs))
    return time.monotonic() - started


def prepare_torch(precision: str = "float32") -> None:
    """Make torch give the same bits in every process: one thread, deterministic kernels, TF32 only if named."""
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Let the next tile have the memory of the one before: requesting it from the kernel takes a third of the time."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # Not glibc: slower, not wrong.
    mallopt(_MMAP_THRESHOLD, _LARGEST_INT)
    mallopt(_TRIM_THRESHOLD, _LARGEST_INT)


def _comparable_vox(unet: UNetSpec, tile: torch.Size) -> Vox3:
    """The smallest valid input of at least COMPARED_VOX, or the whole tile."""
    wanted = min(tile[0], COMPARED_VOX), min(tile[1], COMPARED_VOX), min(tile[2], COMPARED_VOX)
    z, y, x = (min(n, m) for n, m in zip(tile, shapes.nearest_valid_input_shapes(unet, wanted)[1], strict=True))
    return z, y, x


def _lsd_source(lsds: TiledNetwork, config: PredictConfig, worker: Device) -> LsdSource:
    network = load_network(lsds.folder, worker.device, config.precision)
    cache = TileCache(cache_bytes(config.lsd_cache_mb, worker.windows))
    return LsdSource(lsds.grid.tiling, network, cache, worker.windows)


def _by_name(values: U8, outputs: dict[str, int]) -> dict[str, U8]:
    """Outputs one after the other (sum of channels, z, y, x) -> name: (channels, z, y, x)."""
    ends = np.cumsum(list(outputs.values()))
    return dict(zip(outputs, np.split(values, ends[:-1]), strict=True))


def _checked(levels: Tensor, finite: list[Finite]) -> U8:
    require_finite(finite)
    values: U8 = levels.numpy()
    return values


def _pasted(lsds: Window, box: Box) -> Tensor:
    """LSDs (10, *box.shape) of a window where it covers the box, 0 elsewhere."""
    result = torch.zeros((LSDS.channels, *box.shape_vox), dtype=torch.uint8, device=lsds.values.device)
    shared = lsds.box.intersect(box)
    result[(slice(None), *shared.slices(box.begin_vox))] = lsds.crop(shared)
    return result
