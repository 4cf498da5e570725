"""U-Nets of other programs: other upsampling, kernels, last feature maps. The usual one stays what it was."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.errors import ConfigError
from lsdflow_network import shapes
from lsdflow_network.inference_unet import InferenceUNet
from lsdflow_network.unet import UNet

FLAT, CUBE = (1, 3, 3), (3, 3, 3)
VARIANTS = {
    "more maps before the heads": {"num_fmaps_out": 5},
    "keep": {"upsampling": "keep"},
    "repeat": {"upsampling": "repeat"},
    "flat kernels": {"kernels_down": ((FLAT, FLAT), (FLAT, CUBE), (CUBE, CUBE)), "kernels_up": ((FLAT,), (CUBE, FLAT))},
    "all": {"num_fmaps_out": 7, "upsampling": "repeat", "kernels_up": ((CUBE, FLAT), (FLAT, FLAT))},
}


def a_spec(**changes) -> UNetSpec:
    factors = ((1, 2, 2), (3, 3, 3))
    return UNetSpec(in_channels=1, num_fmaps=3, fmap_inc_factor=9, downsample_factors=factors, **changes)


def a_network(spec: UNetSpec) -> UNet:
    torch.manual_seed(1)
    network = UNet(spec, {"lsds": 10, "affs": 3}).eval()
    for module in network.modules():
        if isinstance(module, nn.Conv3d | nn.ConvTranspose3d):
            nn.init.normal_(module.bias, std=0.1)
    return network


@pytest.mark.proves("NET-10")
@pytest.mark.parametrize("name", VARIANTS)
def test_its_shapes_are_the_computed_ones_and_its_form_for_cpus_gives_the_same(name: str) -> None:
    spec = a_spec(**VARIANTS[name])
    network = a_network(spec)
    shape = shapes.nearest_valid_input_shapes(spec, (40, 34, 34))[1]
    x = torch.rand(1, 1, *shape, generator=torch.Generator().manual_seed(2)) * 2 - 1
    with torch.inference_mode():
        wanted = network(x)["affs"]
    assert tuple(wanted.shape[2:]) == shapes.output_shape_vox(spec, shape)
    found = InferenceUNet(network, "float32")(x)["affs"]
    assert float(wanted.std()) > 0.01
    assert float((found - wanted).abs().max()) < 2e-5


@pytest.mark.parametrize("name", ["keep", "repeat", "flat kernels"])
def test_its_tiles_on_the_step_grid_agree(name: str) -> None:
    spec = a_spec(**VARIANTS[name]).model_copy(update={"fmap_inc_factor": 2})
    network, step = a_network(spec), shapes.tile_step_vox(spec)
    small = shapes.smallest_input_shape_vox(spec)
    large = tuple(n + s for n, s in zip(small, step, strict=True))
    raw = torch.randn(1, 1, *large)
    with torch.inference_mode():
        whole = network(raw)["affs"]
        part = network(raw[..., step[0] :, step[1] :, step[2] :])["affs"]
    assert float((whole[..., step[0] :, step[1] :, step[2] :] - part).abs().max()) < 1e-5


def test_a_transposed_convolution_that_keeps_the_channels_has_no_relu() -> None:
    network = a_network(a_spec(upsampling="keep"))
    assert network.up[0].up.out_channels == 27
    with torch.no_grad():
        assert float(network.up[0](torch.ones(1, 27, 2, 2, 2)).min()) < 0


def test_the_usual_network_is_written_as_it_always_was() -> None:
    usual = {
        "in_channels": 1,
        "num_fmaps": 3,
        "fmap_inc_factor": 9,
        "downsample_factors": ((1, 2, 2), (3, 3, 3)),
        "kernel_size": 3,
        "convs_per_level": 2,
    }
    assert a_spec().model_dump() == usual
    for changes in VARIANTS.values():
        written = a_spec(**changes)
        assert set(written.model_dump()) == {*usual, *changes}
        assert UNetSpec.model_validate_json(written.model_dump_json()) == written


@pytest.mark.parametrize("kernels", [{"kernels_down": ((CUBE,),)}, {"kernels_up": ((CUBE,), ())}])
def test_kernels_for_other_levels_than_it_has_are_refused(kernels) -> None:
    with pytest.raises(ValidationError, match="at least one each"):
        a_spec(**kernels)


def test_an_even_kernel_is_refused() -> None:
    with pytest.raises(ConfigError, match="even kernel"):
        shapes.context_vox(a_spec(kernels_up=((CUBE,), ((1, 2, 1),))))
