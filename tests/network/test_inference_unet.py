"""The network as it runs on the CPU gives what the network of the training gives, but for rounding."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_network import shapes
from lsdflow_network.devices import cpu_computes_bf16
from lsdflow_network.inference_unet import InferenceUNet
from lsdflow_network.onednn import PackedConv, has_packed_convolutions
from lsdflow_network.unet import UNet
from lsdflow_network.winograd import WinogradConv


@pytest.fixture(autouse=True)
def onednn() -> None:
    """The locked torch has it; a torch without it must be noticed, not passed over."""
    assert has_packed_convolutions()


def a_network(*, fmaps: int = 4, increase: int = 7, factors=((1, 2, 2), (3, 3, 2)), kernel: int = 3) -> UNet:
    torch.manual_seed(3)
    spec = UNetSpec(
        in_channels=2, num_fmaps=fmaps, fmap_inc_factor=increase, downsample_factors=factors, kernel_size=kernel
    )
    network = UNet(spec, {"lsds": 10, "affs": 3}).eval()
    for module in network.modules():
        if isinstance(module, nn.Conv3d | nn.ConvTranspose3d):
            nn.init.normal_(module.bias, std=0.1)
    return network


def an_input(network: UNet, wanted: tuple[int, int, int]) -> torch.Tensor:
    spec = UNetSpec(in_channels=2, num_fmaps=1, fmap_inc_factor=1, downsample_factors=network.factors)
    size = shapes.nearest_valid_input_shapes(spec, wanted)[1]
    return torch.rand(1, 2, *size, generator=torch.Generator().manual_seed(4)) * 2 - 1


@pytest.mark.parametrize("depth", [3, 4, 5, 6, 7, 8, 9, 14])
def test_winograd_is_the_convolution_at_every_depth(depth: int) -> None:
    torch.manual_seed(depth)
    conv = nn.Conv3d(8, 5, 3)
    x = torch.randn(1, 8, depth, 6, 7).contiguous(memory_format=torch.channels_last_3d)
    with torch.inference_mode():
        wanted = torch.relu(conv(x))
        found = WinogradConv(conv.weight, conv.bias)(x)
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) < 1e-5
    assert float(wanted.max()) > 0.1


@pytest.mark.parametrize("factors", [((1, 2, 2), (3, 3, 2)), ((2, 2, 2),), ()])
def test_float32_differs_by_rounding_alone(factors) -> None:
    network = a_network(factors=factors)
    x = an_input(network, (40, 37, 45))
    with torch.no_grad():
        wanted = network(x)
    found = InferenceUNet(network, "float32")(x)
    for name in ("lsds", "affs"):
        assert found[name].shape == wanted[name].shape
        assert found[name].dtype == torch.float32
        assert float((found[name] - wanted[name]).abs().max()) < 2e-5
        levels = [np.floor(v[name].numpy() * 255) for v in (found, wanted)]
        assert np.abs(levels[0] - levels[1]).max() <= 1
        assert (levels[0] != levels[1]).mean() < 1e-3


@pytest.mark.skipif(not cpu_computes_bf16(), reason="this CPU has no bf16")
def test_bf16_differs_by_its_own_rounding() -> None:
    network = a_network()
    x = an_input(network, (40, 37, 45))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        eager = network(x)
    with torch.no_grad():
        exact = network(x)
    found = InferenceUNet(network, "bf16")(x)
    for name in ("lsds", "affs"):
        mine, other = ((v[name] - exact[name]).abs().mean() for v in (found, eager))
        assert float(mine) < 1.5 * float(other)
        assert float(mine) > 0


def test_the_same_input_gives_the_same_bits_whatever_was_evaluated_before() -> None:
    network = a_network()
    x = an_input(network, (40, 37, 45))
    one = InferenceUNet(network, "float32")
    first = one(x)["affs"].clone()
    one(torch.flip(x, (2,)))
    assert torch.equal(one(x)["affs"], first)
    assert torch.equal(InferenceUNet(network, "float32")(x)["affs"], first)


def test_a_tile_among_others_has_the_values_of_one_large_tile() -> None:
    network = a_network(factors=((2, 2, 2),))
    x = an_input(network, (52, 24, 24))
    step, context = 8, 16
    fitted = InferenceUNet(network, "float32")
    whole = fitted(x)["affs"]
    part = fitted(x[:, :, step : step + 32])["affs"]
    assert part.shape[2] == 32 - context
    difference = (part - whole[:, :, step : step + part.shape[2]]).abs().max()
    assert float(difference) < 2e-5


def test_a_kernel_of_one_is_not_made_winograd() -> None:
    network = a_network(kernel=1, factors=((2, 2, 2),))
    x = torch.rand(1, 2, 8, 8, 8)
    with torch.no_grad():
        assert torch.allclose(InferenceUNet(network, "float32")(x)["affs"], network(x)["affs"], atol=1e-6)


def test_packed_weights_are_used_for_inputs_of_other_shapes() -> None:
    conv = nn.Conv3d(3, 4, 3)
    packed = PackedConv(conv.weight.detach(), conv.bias.detach(), relu=True)
    with torch.inference_mode():
        for size in (5, 9):
            x = torch.randn(1, 3, size, size, size).contiguous(memory_format=torch.channels_last_3d)
            assert torch.allclose(packed(x), torch.relu(conv(x)), atol=1e-5)


def test_threads_that_meet_at_the_first_input_pack_the_weights_once(monkeypatch) -> None:
    """Packed twice: NotImplementedError, 'aten::to_mkldnn' with arguments from the 'MkldnnCPU' backend."""
    pack, packed_by = torch._C._nn.mkldnn_reorder_conv3d_weight, []

    def slowly(*given: Any) -> torch.Tensor:
        packed_by.append(threading.get_ident())
        time.sleep(0.05)
        return pack(*given)

    monkeypatch.setattr(torch._C._nn, "mkldnn_reorder_conv3d_weight", slowly)
    conv, x = nn.Conv3d(3, 4, 3), torch.randn(1, 3, 5, 5, 5).contiguous(memory_format=torch.channels_last_3d)
    packed, meeting = PackedConv(conv.weight.detach(), None, relu=False), threading.Barrier(4)

    def call(_number: int) -> torch.Tensor:
        meeting.wait()
        with torch.inference_mode():
            return packed(x)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(call, range(4)))
    assert len(packed_by) == 1
    assert all(torch.equal(one, found[0]) for one in found)


@pytest.mark.parametrize("factors", [((1, 2, 2), (3, 3, 2)), ((2, 2, 2),)])
def test_padded_channels_change_nothing_but_rounding(monkeypatch, factors) -> None:
    """As on a GPU in 16 bits; here in float32, where the sums can be compared."""
    network = a_network(factors=factors)
    x = an_input(network, (40, 37, 45))
    wanted = InferenceUNet(network, "float32")(x)
    monkeypatch.setattr(InferenceUNet, "_room", lambda _, channels: -(-channels // 16) * 16)
    found = InferenceUNet(network, "float32")(x)
    for name in ("lsds", "affs"):
        assert found[name].shape == wanted[name].shape
        assert float((found[name] - wanted[name]).abs().max()) < 2e-5


def test_logits_are_what_the_sigmoid_gets() -> None:
    network = a_network()
    x = an_input(network, (40, 37, 45))
    fitted = InferenceUNet(network, "float32")
    both = torch.sigmoid(fitted.logits(x, ("affs", "lsds")))
    values = fitted(x)
    # Some CPUs round the last bit of the sigmoid otherwise for values in another place of a vector.
    torch.testing.assert_close(both, torch.cat([values["affs"][0], values["lsds"][0]]), rtol=0, atol=2e-7)
