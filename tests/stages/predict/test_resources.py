"""Devices of workers, the memory that networks need, and the largest tile that fits."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.errors import ConfigError
from lsdflow_network.costs import network_bytes, weights_of
from lsdflow_network.unet import UNet
from lsdflow_predict.resources import choose_device, choose_window_device, fitting_tile_edge, largest_tile_edge
from lsdflow_predict.stage import Predict


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
