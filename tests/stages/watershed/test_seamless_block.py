"""Fragments named by their seeds: blocks that see the same basin give it the same voxels and the same id."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Box, Geometry, Vox3
from lsdflow_contract.graph import RagNodes
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_watershed.block_fragments import BlockPlace, BlockRules, seamless_fragments_of_block
from lsdflow_watershed.blocking import plan_blocks
from lsdflow_watershed.config import WatershedConfig
from lsdflow_watershed.distance import inside_mask, squared_distance
from lsdflow_watershed.fragments import FragmentRules, extract_fragments, seeded_fragments
from lsdflow_watershed.ids import check_voxel_range, number_seeds, seed_ids
from lsdflow_watershed.nodes import partial_nodes
from lsdflow_watershed.seeds import label_seeds

RULES = BlockRules(FragmentRules(min_seed_distance_vox=5), voxels_per_block=1)
GRID = Geometry((40.0, 8.0, 8.0), (100.0, 0.0, 40.0), (30, 44, 52))


def blockwise(
    affs: NDArray[np.uint8], block_vox: Vox3, context_vox: Vox3, rules: BlockRules = RULES
) -> tuple[NDArray[np.uint64], list[RagNodes]]:
    ids = np.zeros(affs.shape[1:], np.uint64)
    nodes = []
    for block in BlockPlan(GRID.box, block_vox, context_vox).blocks():
        read = block.read.intersect(GRID.box)
        place = BlockPlace(block.number, block.write, read)
        seen = affs[(slice(None), *read.slices())]
        ids[block.write.slices()], rows = seamless_fragments_of_block(seen, None, place, rules, GRID)
        nodes.append(rows)
    return ids, nodes


@pytest.mark.parametrize("in_xy", [False, True])
@pytest.mark.parametrize("block_vox", [(30, 44, 52), (16, 16, 16), (7, 44, 13), (30, 11, 5)])
def test_with_context_over_the_whole_volume_every_block_shape_gives_the_same_ids(
    affs: NDArray[np.uint8], block_vox: Vox3, in_xy: bool
) -> None:
    rules = BlockRules(FragmentRules(fragments_in_xy=in_xy, min_seed_distance_vox=5), voxels_per_block=1)
    wanted, _ = blockwise(affs, (64, 64, 64), (0, 0, 0), rules)
    found, _ = blockwise(affs, block_vox, (60, 60, 60), rules)
    assert np.array_equal(found, wanted)
    assert np.unique(wanted).size > 20


def test_with_little_context_most_voxels_have_the_ids_of_one_shot(affs: NDArray[np.uint8]) -> None:
    wanted, _ = blockwise(affs, (64, 64, 64), (0, 0, 0))
    found, _ = blockwise(affs, (16, 16, 16), (10, 10, 10))
    assert (found == wanted).mean() > 0.9
    cut, _ = blockwise(affs, (16, 16, 16), (0, 0, 0))
    assert (cut == wanted).mean() < (found == wanted).mean()


def test_an_id_is_the_place_of_the_first_voxel_of_the_seed(affs: NDArray[np.uint8]) -> None:
    ids, _ = blockwise(affs, (64, 64, 64), (0, 0, 0))
    distance = squared_distance(inside_mask(affs, in_xy=False), in_xy=False)
    seeds = label_seeds(distance, 5, in_xy=False).ravel()
    wanted = {int(np.flatnonzero(seeds == s)[0]) + 1 for s in np.unique(seeds) if s}
    assert set(np.unique(ids).tolist()) == wanted
    first_voxels = np.array(sorted(wanted)) - 1
    assert np.array_equal(ids.ravel()[first_voxels], first_voxels + 1), "a seed lies in its own fragment"


def test_nodes_of_all_blocks_add_up_to_the_voxels_and_centres_of_the_volume(affs: NDArray[np.uint8]) -> None:
    ids, parts = blockwise(affs, (16, 16, 16), (60, 60, 60))
    rows = RagNodes.concatenate(parts)
    assert len(rows) > len(np.unique(rows.id)), "some fragments lie in several blocks"
    for name in np.unique(ids):
        voxels = np.argwhere(ids == name)
        own = rows.id == name
        assert rows.size_vox[own].sum() == len(voxels)
        center = np.average(rows.center_nm[own], axis=0, weights=rows.size_vox[own])
        wanted = np.array(GRID.offset_nm) + voxels.mean(axis=0) * np.array(GRID.voxel_size_nm)
        np.testing.assert_allclose(center, wanted)
    for part in parts:
        assert (np.diff(part.id.astype(np.int64)) > 0).all()


def test_a_part_has_rows_only_for_what_it_holds() -> None:
    numbers = np.array([[[0, 2, 2], [4, 0, 0]]], np.uint32)
    ids = np.array([0, 10, 20, 30, 40], np.uint64)
    nodes = partial_nodes(numbers, ids, (5, 0, 0), Geometry((1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (9, 9, 9)))
    assert nodes.id.tolist() == [20, 40]
    assert nodes.size_vox.tolist() == [2, 1]
    assert nodes.center_nm.tolist() == [[5, 0, 1.5], [5, 1, 0]]


def test_no_fragments_outside_the_mask_and_none_without_voxels(affs: NDArray[np.uint8]) -> None:
    mask = np.ones(affs.shape[1:], np.uint8)
    mask[:, 20:] = 0
    place = BlockPlace(0, GRID.box, GRID.box)
    ids, nodes = seamless_fragments_of_block(affs, mask, place, RULES, GRID)
    assert np.array_equal(ids > 0, mask > 0)
    assert np.array_equal(nodes.id, np.unique(ids)[1:])


def test_bad_sections_are_cleared_or_copied(affs: NDArray[np.uint8]) -> None:
    place = BlockPlace(0, GRID.box, GRID.box)
    rules = BlockRules(RULES.fragments, 1, frozenset({4, 5}), "copy")
    ids, _ = seamless_fragments_of_block(affs, None, place, rules, GRID)
    assert np.array_equal(ids[4], ids[3])
    assert np.array_equal(ids[5], ids[6])


def test_weak_fragments_are_cleared(affs: NDArray[np.uint8]) -> None:
    all_of_them, _ = seeded_fragments(affs, None, FragmentRules(min_seed_distance_vox=5))
    kept, _ = seeded_fragments(affs, None, FragmentRules(min_seed_distance_vox=5, filter_fragments=0.8))
    assert np.unique(kept).size < np.unique(all_of_them).size
    assert np.array_equal(kept[kept > 0], all_of_them[kept > 0])


def test_seeds_are_numbered_by_their_first_voxel() -> None:
    seeds = np.array([[[0, 7, 3], [3, 0, 7]], [[0, 1, 0], [0, 0, 0]]], np.uint32)
    numbers, first = number_seeds(seeds)
    assert numbers.tolist() == [[[0, 1, 2], [2, 0, 1]], [[0, 3, 0], [0, 0, 0]]]
    assert first.tolist() == [1, 2, 7]
    assert number_seeds(np.zeros((2, 2, 2), np.uint32))[1].tolist() == []


def test_ids_at_the_far_end_of_a_huge_volume_are_exact() -> None:
    shape = (2**20, 2**21, 2**21)
    read = Box((2**20 - 2, 2**21 - 2, 2**21 - 2), (2, 2, 2))
    assert seed_ids(np.array([0, 7]), read, shape).tolist() == [
        0,
        ((2**20 - 2) * 2**21 + 2**21 - 2) * 2**21 + 2**21 - 1,
        2**62,
    ]
    check_voxel_range(read, shape)


@pytest.mark.parametrize(
    ("total", "shape", "word"),
    [
        (Box((0, 0, 0), (9, 9, 9)), (2**21, 2**21, 2**21), "64 bits"),
        (Box((0, 0, -1), (9, 9, 9)), (20, 20, 20), "outside"),
        (Box((0, 0, 15), (9, 9, 9)), (20, 20, 20), "outside"),
    ],
)
def test_volumes_without_room_for_ids_are_refused(total: Box, shape: Vox3, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        check_voxel_range(total, shape)


def test_fragments_are_those_of_the_published_flood_but_for_ties(affs: NDArray[np.uint8]) -> None:
    rules = FragmentRules(min_seed_distance_vox=5, boundary="distance")
    published = extract_fragments(affs, None, rules)
    found, _ = seeded_fragments(affs, None, rules)
    assert np.unique(found).size == np.unique(published).size
    names = np.zeros(int(published.max()) + 1, found.dtype)
    seeds = label_seeds(squared_distance(inside_mask(affs, in_xy=False), in_xy=False), 5, in_xy=False)
    names[published[seeds > 0]] = found[seeds > 0]
    assert (names[published] == found).mean() > 0.95


@pytest.mark.proves("WSD-13")
@pytest.mark.parametrize(("table", "edges"), [({}, (15, 48, 48)), ({"id_mode": "blocks"}, (10, 32, 32))])
def test_without_a_setting_seamless_blocks_see_further(table: dict[str, str], edges: Vox3) -> None:
    plan = plan_blocks(WatershedConfig.model_validate(table), GRID.box, (26.7, 8.0, 8.0))
    assert plan.context_vox == edges
    given = WatershedConfig.model_validate({**table, "context": "7 vox"})
    assert plan_blocks(given, GRID.box, (26.7, 8.0, 8.0)).context_vox == (7, 7, 7)
