"""The device of a worker: the same bits for any number of threads, one block after the other on a GPU, progress."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from lsdflow_command.interruption import interrupt_on_signals
from lsdflow_command.progress import REPORT
from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.errors import Interrupted
from lsdflow_network.inference_unet import InferenceUNet
from lsdflow_network.unet import UNet
from lsdflow_predict import worker_device
from lsdflow_predict.worker_device import Device

TILES = [(0, 0, 0), (0, 0, 1), (0, 1, 0)]


@pytest.fixture
def two_threads() -> Iterator[None]:
    """torch has two threads for a convolution, as it would without us."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_the_bits_of_a_tile_do_not_depend_on_the_threads_of_a_worker(two_threads: None) -> None:
    """With 16 maps, oneDNN adds in another order if two threads share a convolution."""
    spec = UNetSpec(in_channels=1, num_fmaps=16, fmap_inc_factor=4, downsample_factors=((2, 2, 2),))
    torch.manual_seed(0)
    network = InferenceUNet(UNet(spec, {"affs": 3}).eval(), "float32", torch.device("cpu"))
    raw = torch.rand(1, 1, 24, 24, 24)

    def of_a_worker(threads: int) -> list[Tensor]:
        torch.set_num_threads(2)
        device = Device("cpu", 0, threads)
        with device.computing():
            return list(device.each_of(len(TILES))(lambda _: network.logits(raw, ["affs"]), TILES))

    (wanted, *_) = of_a_worker(1)
    for threads in (1, 2, 3):
        assert all((found == wanted).all() for found in of_a_worker(threads))


@pytest.mark.parametrize(("name", "most"), [("cuda:0", 1), ("cpu", 3)])
def test_a_gpu_gets_the_work_of_one_block_at_a_time(monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1000, 1000))
    device, queueing, seen = Device(name, 0), [], []
    together = threading.Barrier(most)

    def queue(_: int) -> None:
        with device.computing():
            queueing.append(1)
            together.wait(10)
            time.sleep(0.1)  # long enough for another block to come in
            seen.append(len(queueing))
            together.wait(10)
            queueing.pop()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(queue, range(3)))
    assert seen == [most] * 3


def test_a_block_reports_the_share_of_its_tiles_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_device, "SECONDS_BETWEEN_NOTES", 0.0)
    shares: list[float] = []
    token = REPORT.set(shares.append)
    each = Device("cpu", 0, threads=2).each_of(5)
    found = [*each(str, TILES[:2]), *each(str, [(1, 0, 0), (1, 0, 1), (1, 1, 1)])]
    REPORT.reset(token)
    assert found == ["(0, 0, 0)", "(0, 0, 1)", "(1, 0, 0)", "(1, 0, 1)", "(1, 1, 1)"]
    assert shares == [0.2, 0.4, 0.6, 0.8, 1.0]


def test_a_worker_that_was_stopped_ends_after_the_tile() -> None:
    """Also in a thread, where no signal handler raises."""
    begun = []

    def tile(index: object) -> None:
        begun.append(index)
        time.sleep(0.2)

    def in_a_thread() -> None:
        with pytest.raises(Interrupted):
            list(Device("cpu", 0).each_of(3)(tile, TILES))

    def be_stopped(pool: ThreadPoolExecutor) -> None:
        running = pool.submit(in_a_thread)
        while not begun:
            time.sleep(0.01)
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            running.result()

    with ThreadPoolExecutor(1) as pool, interrupt_on_signals(), pytest.raises(Interrupted):
        be_stopped(pool)
    assert len(begun) == 1
