"""Tiles: phase, cover, balance, and that a block's shape does not matter."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.geometry import Box
from lsdflow_network import shapes
from lsdflow_predict.blocks import TileCache
from lsdflow_predict.resources import cache_bytes
from lsdflow_predict.tiling import (
    LARGEST_BLOCK_WITH_LSDS_VOX,
    Tiling,
    affinity_grid,
    assemble,
    block_of_cells,
    crop_to_cell,
    lsd_grid,
    plan_tiling,
)
from lsdflow_runtime.blocks import BlockPlan

# The published network: its step is 12, its context 52 on each side, its outputs are 8 + n * 12.
PUBLISHED = UNetSpec(
    in_channels=1, num_fmaps=12, fmap_inc_factor=6, downsample_factors=((2, 2, 2), (2, 2, 2), (3, 3, 3))
)

sizes = st.tuples(*[st.integers(1, 400)] * 3)
begins = st.tuples(*[st.integers(-300, 300)] * 3)


@given(begins, sizes, begins, st.integers(20, 200))
@settings(max_examples=60, deadline=None)
def test_every_tile_begins_on_the_pooling_grid_and_holds_its_cell(begin, shape, phase, largest):
    tiling = plan_tiling(PUBLISHED, Box(begin, shape), phase, (largest,) * 3)
    for index in ((0, 0, 0), (1, 2, 3)):
        output = tiling.output(index)
        assert all((b - p) % 12 == 0 for b, p in zip(output.begin_vox, phase, strict=True))
        assert output.contains(tiling.cell(index))
        assert tiling.input(index) == output.grow((52, 52, 52))
        assert tiling.input(index).shape_vox == tiling.input_vox
    assert tiling.output_vox == shapes.output_shape_vox(PUBLISHED, tiling.input_vox)


@given(begins, sizes, st.integers(32, 200))
@settings(max_examples=60, deadline=None)
def test_outputs_stay_within_the_largest_and_cells_are_balanced(begin, shape, largest):
    largest = 8 + 12 * ((largest - 8) // 12)
    tiling = plan_tiling(PUBLISHED, Box(begin, shape), (0, 0, 0), (largest,) * 3)
    for output, cell, extent, lead in zip(tiling.output_vox, tiling.cell_vox, shape, tiling.lead_vox, strict=True):
        assert output <= largest
        assert cell % 12 == 0
        assert cell - extent < 12
        fewest = math.ceil(extent / ((largest - lead) // 12 * 12))
        assert math.ceil(extent / cell) == fewest


def test_a_step_larger_than_the_largest_output_still_gives_one_step():
    assert plan_tiling(PUBLISHED, Box((0, 0, 0), (50, 50, 50)), (0, 0, 0), (8, 8, 8)).cell_vox == (12, 12, 12)


@given(st.tuples(*[st.integers(-12, 20)] * 3), st.tuples(*[st.integers(0, 20)] * 3))
@settings(max_examples=30, deadline=None)
def test_tiles_touching_a_box_are_those_whose_cell_shares_a_voxel(begin, shape):
    tiling = Tiling((3, -5, 7), (12, 6, 4), (1, 0, 2), (20, 8, 8), (4, 4, 4))
    box = Box(begin, shape)
    slow = [
        (z, y, x)
        for z in range(-2, 4)
        for y in range(-2, 8)
        for x in range(-5, 10)
        if not tiling.cell((z, y, x)).intersect(box).is_empty
    ]
    assert list(tiling.indices_touching(box)) == slow


def test_the_hull_of_inputs_holds_every_input_tightly():
    tiling = Tiling((0, 0, 0), (12, 12, 12), (3, 0, 1), (20, 20, 20), (4, 5, 6))
    box = Box((5, 12, 11), (20, 12, 2))
    inputs = [tiling.input(i) for i in tiling.indices_touching(box)]
    found = tiling.inputs_hull(box)
    assert all(found.contains(b) for b in inputs)
    assert found.begin_vox == tuple(np.min([b.begin_vox for b in inputs], axis=0))
    assert found.end_vox == tuple(np.max([b.end_vox for b in inputs], axis=0))


def _zeros(channels: int, box: Box) -> np.ndarray:
    return np.zeros((channels, *box.shape_vox), np.uint8)


def _tile_dependent(tiling: Tiling):
    """Values that differ from tile to tile and voxel to voxel, so that any mistake of place is found."""

    def evaluate(index):
        seed = abs(hash(index)) % 2**32
        output = np.random.default_rng(seed).integers(0, 255, (2, *tiling.output_vox)).astype(np.uint8)
        return crop_to_cell(tiling, output)

    return evaluate


@pytest.mark.parametrize("block", [(12, 12, 12), (24, 36, 12), (5, 7, 11), (60, 60, 60)])
def test_the_block_shape_changes_no_bit(block):
    tiling = plan_tiling(PUBLISHED, Box((5, 0, 7), (30, 33, 25)), (0, 0, 0), (20, 32, 20))
    region = Box((5, 0, 7), (30, 33, 25))
    whole = assemble(tiling, region, _zeros(2, region), _tile_dependent(tiling))
    assembled = np.zeros_like(whole)
    for z in range(0, 30, block[0]):
        for y in range(0, 33, block[1]):
            for x in range(0, 25, block[2]):
                box = Box((5 + z, y, 7 + x), block).intersect(region)
                values = assemble(tiling, box, _zeros(2, box), _tile_dependent(tiling))
                assembled[(slice(None), *box.slices(region.begin_vox))] = values
    assert np.array_equal(assembled, whole)


@pytest.mark.proves("NEW-11")
@pytest.mark.parametrize("gpu_bytes", [24_000_000_000, 80_000_000_000])
def test_one_pass_computes_each_lsd_tile_hardly_more_than_once(monkeypatch, gpu_bytes: int) -> None:
    """Of 1,024^3 voxels and the published networks, with the default cache of a GPU of 24 GB or 80 GB."""
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (gpu_bytes, gpu_bytes))
    affinities = affinity_grid(PUBLISHED, Box((0, 0, 0), (1024,) * 3), (164,) * 3, (LARGEST_BLOCK_WITH_LSDS_VOX,) * 3)
    lsds = lsd_grid(PUBLISHED, affinities, (164,) * 3, affinities.block_vox)
    nothing = torch.zeros((), dtype=torch.uint8)
    values, cache, computed = nothing.expand(10, *lsds.tiling.cell_vox), TileCache(cache_bytes(None, "cuda:0")), []

    def compute(index):
        computed.append(index)
        return values, (lsds.tiling.cell(index), nothing)

    for block in BlockPlan(affinities.region, affinities.block_vox).blocks():
        for index in lsds.tiling.indices_touching(affinities.tiling.inputs_hull(block.write)):
            cache.get(index, compute)
    assert lsds.tile_count <= len(computed) <= 1.15 * lsds.tile_count


def test_a_tile_without_values_stays_zero():
    tiling = Tiling((0, 0, 0), (4, 4, 4), (0, 0, 0), (4, 4, 4), (0, 0, 0))

    def evaluate(index):
        return None if index == (0, 0, 0) else np.ones((1, 4, 4, 4), np.uint8)

    box = Box((0, 0, 0), (4, 4, 8))
    found = assemble(tiling, box, _zeros(1, box), evaluate)
    assert found[..., :4].max() == 0
    assert found[..., 4:].min() == 1


@given(sizes, st.integers(1, 500))
@settings(max_examples=60, deadline=None)
def test_blocks_are_whole_cells_and_not_larger_than_needed(region, largest):
    block = block_of_cells((24, 24, 24), region, (largest,) * 3)
    for edge, extent in zip(block, region, strict=True):
        assert edge % 24 == 0
        assert edge <= max(24, largest)
        assert edge - extent < 24
