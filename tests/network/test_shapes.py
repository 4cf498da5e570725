"""The computed shapes are those of the real network, and tiles on the step grid agree."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.errors import ConfigError
from lsdflow_network import shapes
from lsdflow_network.chain import chain_input_for, chain_shapes, chain_tile_step_vox
from lsdflow_network.composition import AcrLsd
from lsdflow_network.unet import UNet

MALA = UNetSpec(in_channels=1, num_fmaps=12, fmap_inc_factor=6, downsample_factors=((2, 2, 2), (2, 2, 2), (3, 3, 3)))
MICRO = UNetSpec(in_channels=1, num_fmaps=2, fmap_inc_factor=2, downsample_factors=((2, 2, 2),))
ANISOTROPIC = UNetSpec(in_channels=1, num_fmaps=2, fmap_inc_factor=2, downsample_factors=((1, 3, 3), (2, 2, 2)))


def cube(size: int) -> tuple[int, int, int]:
    return (size, size, size)


@pytest.mark.proves("NET-01", "NET-04", "PRD-02")
@pytest.mark.parametrize(("size", "output"), [(196, 92), (268, 164), (304, 200), (364, 260)])
def test_published_shapes(size: int, output: int) -> None:
    assert shapes.output_shape_vox(MALA, cube(size)) == cube(output)
    assert shapes.context_vox(MALA) == cube(104)
    assert shapes.tile_step_vox(MALA) == cube(12)


@pytest.mark.proves("NET-06")
def test_published_acrlsd_chain() -> None:
    chain = chain_shapes(MALA, MALA, cube(304))
    assert (chain.lsds_vox, chain.affinity_input_vox, chain.output_vox) == (cube(200), cube(196), cube(92))
    assert chain_input_for(MALA, MALA, cube(196)) == cube(304)


@pytest.mark.proves("NET-05")
def test_indivisible_shape_is_refused_naming_both_neighbours() -> None:
    with pytest.raises(ConfigError) as caught:
        shapes.output_shape_vox(MALA, (200, 196, 196))
    assert "[196, 196, 196]" in caught.value.wanted
    assert "[208, 196, 196]" in caught.value.wanted


def test_too_small_shape_names_the_smallest() -> None:
    with pytest.raises(ConfigError) as caught:
        shapes.output_shape_vox(MICRO, cube(3))
    assert str(list(shapes.smallest_input_shape_vox(MICRO))) in caught.value.wanted


factor = st.tuples(*[st.integers(1, 3)] * 3)


@pytest.mark.proves("NET-04")
@settings(max_examples=25, deadline=None)
@given(
    factors=st.lists(factor, min_size=1, max_size=2),
    kernel=st.sampled_from([1, 3]),
    convs=st.integers(1, 2),
    extra=st.tuples(*[st.integers(0, 5)] * 3),
)
def test_computed_shape_is_the_real_one(factors, kernel, convs, extra) -> None:
    spec = UNetSpec(
        in_channels=1,
        num_fmaps=1,
        fmap_inc_factor=2,
        downsample_factors=tuple(factors),
        kernel_size=kernel,
        convs_per_level=convs,
    )
    z, y, x = (n + e for n, e in zip(shapes.smallest_input_shape_vox(spec), extra, strict=True))
    below, above = shapes.nearest_valid_input_shapes(spec, (z, y, x))
    assert below is not None
    for shape in (below, above):
        real = UNet(spec, {"affs": 1})(torch.zeros(1, 1, *shape))["affs"].shape[2:]
        assert shapes.output_shape_vox(spec, shape) == tuple(real)
        assert tuple(a - b for a, b in zip(shape, real, strict=True)) == shapes.context_vox(spec)


@pytest.mark.parametrize("spec", [MICRO, ANISOTROPIC])
def test_an_invalid_shape_really_fails_in_the_network(spec: UNetSpec) -> None:
    smallest = shapes.smallest_input_shape_vox(spec)
    invalid = (smallest[0], smallest[1] + 1, smallest[2])
    assert not shapes.is_valid_input(spec, invalid)


@pytest.mark.parametrize("spec", [MICRO, ANISOTROPIC])
@pytest.mark.parametrize("steps", [1, 2])
def test_tiles_on_the_step_grid_agree(spec: UNetSpec, steps: int) -> None:
    """Two tiles of different shapes, shifted by whole tile steps, give the same values where both have them."""
    torch.manual_seed(0)
    network = UNet(spec, {"affs": 3}).eval()
    step = [steps * s for s in shapes.tile_step_vox(spec)]
    wanted = [n + 2 * s + 8 for n, s in zip(shapes.smallest_input_shape_vox(spec), step, strict=True)]
    large = shapes.nearest_valid_input_shapes(spec, tuple(wanted))[1]
    small = tuple(n - s for n, s in zip(large, step, strict=True))
    raw = torch.randn(1, 1, *large)
    with torch.inference_mode():
        whole = network(raw)["affs"]
        part = network(raw[..., step[0] :, step[1] :, step[2] :])["affs"]
    assert tuple(part.shape[2:]) == shapes.output_shape_vox(spec, small)
    torch.testing.assert_close(whole[..., step[0] :, step[1] :, step[2] :], part, atol=1e-5, rtol=0)


def test_tiles_off_the_step_grid_do_not_agree() -> None:
    """Why the grid matters: a shift by one voxel changes the pooling windows."""
    torch.manual_seed(0)
    network = UNet(MICRO, {"affs": 3}).eval()
    raw = torch.randn(1, 1, 23, 22, 22)
    with torch.inference_mode():
        difference = network(raw[:, :, :22])["affs"][:, :, 1:] - network(raw[:, :, 1:])["affs"][:, :, :-1]
    assert difference.abs().max() > 1e-3


def test_the_acrlsd_chain_has_the_same_crop_for_every_input() -> None:
    lsd = UNetSpec(in_channels=1, num_fmaps=2, fmap_inc_factor=2, downsample_factors=((2, 2, 2), (3, 3, 3)))
    affinity = lsd.model_copy(update={"in_channels": 11})
    torch.manual_seed(0)
    chain = AcrLsd(UNet(lsd, {"lsds": 10}), lsd, UNet(affinity, {"affs": 3}), affinity).eval()
    step = chain_tile_step_vox(lsd, affinity)[0]
    size = chain_input_for(lsd, affinity, shapes.smallest_input_shape_vox(affinity))[0] + 2 * step
    raw = torch.randn(1, 1, *cube(size))
    with torch.inference_mode():
        whole, part = chain(raw)["affs"], chain(raw[..., step:, step:, step:])["affs"]
    torch.testing.assert_close(whole[..., step:, step:, step:], part, atol=1e-5, rtol=0)
