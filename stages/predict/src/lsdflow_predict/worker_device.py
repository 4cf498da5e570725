"""The device of a worker: blocks go to it, are computed in order, and come back while the next one is computed."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsdflow_command.interruption import end_if_asked
from lsdflow_command.progress import REPORT
from lsdflow_contract.geometry import Box
from lsdflow_predict.evaluation import Finite, require_finite
from lsdflow_predict.resources import choose_window_device
from lsdflow_predict.tiling import Each, Index3

U8 = npt.NDArray[np.uint8]
SECONDS_BETWEEN_NOTES = 0.5


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
        self._each: Each = map
        if threads > 1 and not self.is_gpu:
            self._each = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)).map

    def each_of(self, tiles: int) -> Each:
        """A `map` for all tiles of a block, so many together, that reports how much of the block is done.

        It ends with Interrupted (75) if the worker was stopped.
        """
        report, done = REPORT.get(), itertools.count(1)
        noted = time.monotonic()

        def each(evaluate: Callable[[Index3], Any], indices: Sequence[Index3]) -> Iterator[Any]:
            """The results of `evaluate` in order."""
            nonlocal noted
            for result in self._each(evaluate, indices):
                end_if_asked()
                count, now = next(done), time.monotonic()
                if report is not None and now - noted > SECONDS_BETWEEN_NOTES:
                    noted = now
                    report(min(1.0, count / tiles))
                yield result

        return each

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


def _checked(levels: Tensor, finite: list[Finite]) -> U8:
    require_finite(finite)
    values: U8 = levels.numpy()
    return values
