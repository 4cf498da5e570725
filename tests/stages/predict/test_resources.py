"""Devices of workers, the memory that networks need, and the largest tile that fits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.errors import ConfigError
from lsdflow_contract.experiment import ComputeTable
from lsdflow_contract.geometry import Box
from lsdflow_network.costs import network_bytes, weights_of
from lsdflow_network.unet import UNet
from lsdflow_predict import resources
from lsdflow_predict.resources import (
    choose_device,
    choose_window_device,
    fitting_tile_edge,
    largest_tile_edge,
    share_of,
    threads_of,
)
from lsdflow_predict.stage import Predict
from lsdflow_predict.tiling import affinity_grid
from lsdflow_runtime.engine.block_task import Share


def a_spec(channels: int = 1, factors=((2, 2, 2), (1, 3, 3)), fmaps: int = 3, **variant) -> UNetSpec:
    return UNetSpec(in_channels=channels, num_fmaps=fmaps, fmap_inc_factor=2, downsample_factors=factors, **variant)


@pytest.mark.parametrize(
    ("wanted", "count", "devices"),
    [
        ("auto", 0, ["cpu", "cpu"]),
        ("auto", 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda", 2, ["cuda:0", "cuda:1"]),
        ("cuda:1", 2, ["cuda:1", "cuda:1"]),
        ("cpu", 2, ["cpu", "cpu"]),
    ],
)
def test_workers_take_the_gpus_in_turn(monkeypatch, wanted, count, devices):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert [choose_device(wanted, worker) for worker in range(len(devices))] == devices


@pytest.mark.parametrize(("wanted", "count"), [("cuda", 0), ("cuda:2", 2)])
def test_a_gpu_that_is_not_there(monkeypatch, wanted, count):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ConfigError, match=wanted):
        choose_device(wanted)


@pytest.mark.parametrize("channels", [1, 11])
@pytest.mark.parametrize("factors", [((2, 2, 2),), ((2, 2, 2), (1, 3, 3))])
@pytest.mark.parametrize("variant", [{}, {"upsampling": "keep", "num_fmaps_out": 5}, {"upsampling": "repeat"}])
def test_weights_are_those_of_the_network(channels: int, factors, variant) -> None:
    spec = a_spec(channels, factors, **variant)
    network = UNet(spec, {"affs": 3})
    kernels = [m.weight.numel() for m in network.modules() if isinstance(m, nn.Conv3d | nn.ConvTranspose3d)]
    assert weights_of(spec) == sum(kernels) - network.heads["affs"].weight.numel()


def test_the_tile_that_fits_grows_with_the_memory_and_fits() -> None:
    specs = [a_spec(11), a_spec(1)]
    edges = [fitting_tile_edge(specs, mega * 10**6) for mega in (0, 50, 500, 5000)]
    assert edges[0] == 0
    assert sorted(set(edges)) == edges
    assert all(edge % 6 == 0 for edge in edges)
    assert all(network_bytes(spec, (edges[2],) * 3) < 500e6 for spec in specs)


def test_workers_share_the_free_memory_of_their_gpu(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (4 * 10**9, 8 * 10**9))
    monkeypatch.setattr("lsdflow_predict.resources.gpu_count", lambda: 2)
    specs = [a_spec(11), a_spec(1)]
    assert largest_tile_edge(specs, "cuda:1", workers=8) == fitting_tile_edge(specs, 10**9) > 0
    assert largest_tile_edge(specs, "cuda:1", workers=1) == fitting_tile_edge(specs, 4 * 10**9)


@pytest.mark.parametrize(
    ("device", "gpus", "workers", "block_bytes", "share"),
    [
        ("cpu", 2, 5, 1, Share(5, 1)),
        ("auto", 0, 5, 1, Share(5, 1)),
        ("auto", 1, 5, 10**9, Share(1, 8)),  # one for each core, and two
        ("auto", 1, 1, 10**9, Share(1, 8)),
        ("cuda", 2, 5, 10**9, Share(2, 5)),
        ("cuda:1", 2, 5, 10**9, Share(1, 8)),
        ("auto", 1, 5, 20 * 10**9, Share(1, 2)),  # half of the memory
        ("auto", 1, 5, 10**12, Share(1, 1)),
    ],
)
def test_a_gpu_has_one_worker_with_as_many_blocks_as_cores_and_memory_allow(
    monkeypatch, device: str, gpus: int, workers: int, block_bytes: int, share: Share
) -> None:
    monkeypatch.setattr(resources, "gpu_count", lambda: gpus)
    monkeypatch.setattr(resources, "available_cores", lambda: 6)
    monkeypatch.setattr(resources, "memory_limit_bytes", lambda: 100 * 10**9)
    grid = affinity_grid(a_spec(), Box((0, 0, 0), (32, 32, 32)), (16, 16, 16), (16, 32, 32))
    assert share_of(ComputeTable(device=device, workers=workers), grid, block_bytes) == share


@pytest.mark.parametrize(("threads", "at_once"), [(1, 1), (4, 1), (5, 2), (16, 4)])
def test_each_thread_of_a_worker_on_a_cpu_has_a_tile(threads: int, at_once: int) -> None:
    grid = affinity_grid(a_spec(), Box((0, 0, 0), (32, 32, 32)), (16, 16, 16), (16, 32, 32))
    assert grid.tiles_per_block == 4
    compute = ComputeTable(device="cpu", workers=3, threads_per_worker=threads)
    assert share_of(compute, grid, 1) == Share(3, at_once)


def test_workers_without_a_block_give_their_threads_to_the_others(monkeypatch) -> None:
    monkeypatch.setattr(resources, "available_cores", lambda: 12)
    compute = ComputeTable(workers=8, threads_per_worker=2)
    assert [threads_of(compute, blocks) for blocks in (1, 2, 5, 8, 100)] == [12, 8, 2, 2, 2]


def test_windows_of_the_cpu_are_in_main_memory() -> None:
    assert choose_window_device("cpu", 10**15) == "cpu"


@pytest.mark.parametrize(("needed", "device"), [(10, "cuda:1"), (500, "cpu")])
def test_windows_are_on_the_gpu_where_it_has_room(monkeypatch, needed: int, device: str) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (1000, 2000))
    assert choose_window_device("cuda:1", needed) == device


def test_the_plan_reports_the_largest_tile_and_uses_the_one_of_the_experiment(make_experiment) -> None:
    experiment = make_experiment()
    before = Predict().plan(experiment.experiment())
    assert before["largest_tile_shape_that_fits_vox"] > 100
    assert before["tile_output_vox"] != [before["largest_tile_shape_that_fits_vox"]] * 3
