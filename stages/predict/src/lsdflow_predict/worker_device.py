"""The device of a worker: blocks go to it, are computed in order, and come back while the next one is computed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsdflow_contract.geometry import Box
from lsdflow_predict.evaluation import Finite, require_finite
from lsdflow_predict.resources import choose_window_device
from lsdflow_predict.tiling import Each

U8 = npt.NDArray[np.uint8]


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


def _checked(levels: Tensor, finite: list[Finite]) -> U8:
    require_finite(finite)
    values: U8 = levels.numpy()
    return values
