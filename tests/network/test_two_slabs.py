"""Small patches are convolved as two slabs on the CPU; the values and the gradients are those of one patch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from lsdflow_contract.checkpoint import UNetSpec  # noqa: E402
from lsdflow_network import unet as module  # noqa: E402


@pytest.mark.parametrize("size", [(20, 20, 22), (22, 24, 20)])
def test_a_small_patch_gives_the_values_and_gradients_of_plain_convolutions(size, monkeypatch) -> None:
    spec = UNetSpec(in_channels=1, num_fmaps=4, fmap_inc_factor=2, downsample_factors=((2, 2, 2),))
    torch.manual_seed(1)
    network = module.UNet(spec, {"lsds": 10, "affs": 3})
    patch = torch.rand(1, 1, *size)
    batches: list[int] = []
    network.down[0].convs[1].register_forward_hook(lambda _m, inputs, _o: batches.append(inputs[0].shape[0]))

    def values_and_gradients():
        network.zero_grad()
        outputs = network(patch)
        sum(value.square().sum() for value in outputs.values()).backward()
        return outputs, [parameter.grad.clone() for parameter in network.parameters()]

    in_slabs, gradients = values_and_gradients()
    monkeypatch.setattr(module, "_torch_avoids_onednn", lambda _x: False)
    plain, plain_gradients = values_and_gradients()
    assert batches == [2, 1]
    for name, value in plain.items():
        torch.testing.assert_close(in_slabs[name], value)
    torch.testing.assert_close(gradients, plain_gradients, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("planes", [3, 4, 5, 8])
def test_an_odd_and_an_even_number_of_planes_come_out_whole(planes) -> None:
    conv = torch.nn.Conv3d(2, 3, 3)
    patch = torch.rand(1, 2, planes, 6, 7)
    torch.testing.assert_close(module._in_two_slabs(conv, patch), conv(patch))
