"""Agreement across the faces of blocks is counted as one would count it voxel by voxel."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lsdflow_contract.arrays import SEGMENTATION
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box, Geometry, Vox3
from lsdflow_evaluate.report.findings import seams_words
from lsdflow_evaluate.self_consistency.seams import Agreement, Seams, seams_of
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.io.volumes import OutputArray, Volume

SHAPE: Vox3 = (16, 20, 13)
BLOCK: Vox3 = (8, 5, 6)


def volume_of(values: NDArray[np.uint64], folder: Path) -> Volume:
    shape = (values.shape[0], values.shape[1], values.shape[2])
    grid = Geometry((10.0, 10.0, 10.0), (0.0, 0.0, 0.0), shape)
    output = OutputArray(folder / "segmentation.zarr", SEGMENTATION, grid, grid.box, shape)
    output.create({"key": "made by the test"})
    volume = output.open()
    volume.write(grid.box, values)
    return volume


def slow_counts(values: NDArray[np.uint64], block: Vox3) -> tuple[Agreement, Agreement]:
    """One pair of voxels after another: those across faces, those across the middle of each block."""
    faces, inside = Agreement(), Agreement()
    for voxel in np.ndindex(values.shape):
        for axis in range(3):
            if voxel[axis] == 0:
                continue
            lower = tuple(i - (a == axis) for a, i in enumerate(voxel))
            one, other = int(values[voxel]), int(values[lower])
            if not (one and other):
                continue
            pair = Agreement(1, int(one == other))
            place = voxel[axis] % block[axis]
            length = min(block[axis], values.shape[axis] - (voxel[axis] - place))
            if place == 0:
                faces += pair
            if length > 1 and place == length // 2:
                inside += pair
    return faces, inside


def random_segments(seed: int) -> NDArray[np.uint64]:
    return np.random.default_rng(seed).integers(0, 3, SHAPE).astype(np.uint64)


@pytest.mark.parametrize("seed", range(3))
def test_faces_and_middles_are_those_of_a_slow_count(tmp_path: Path, seed: int) -> None:
    values = random_segments(seed)
    found = seams_of(volume_of(values, tmp_path), BlockPlan(Box((0, 0, 0), SHAPE), BLOCK))
    assert found is not None
    assert (found.faces, found.inside) == slow_counts(values, BLOCK)
    assert found.blocks == 2 * 4 * 3


@pytest.mark.proves("TRB-08")
def test_segments_that_end_at_every_face_leave_the_largest_gap_and_whole_ones_none(tmp_path: Path) -> None:
    plan = BlockPlan(Box((0, 0, 0), SHAPE), BLOCK)
    cut = np.zeros(SHAPE, np.uint64)
    for block in plan.blocks():
        cut[block.write.slices()] = block.number + 1
    for name, values, gap in (("cut", cut, 1.0), ("whole", np.ones(SHAPE, np.uint64), 0.0)):
        found = seams_of(volume_of(values, tmp_path / name), plan)
        assert found is not None
        assert found.as_dict()["gap"] == gap


def test_a_single_block_has_no_faces_and_background_no_pairs(tmp_path: Path) -> None:
    whole = BlockPlan(Box((0, 0, 0), SHAPE), SHAPE)
    assert seams_of(volume_of(random_segments(0), tmp_path / "a"), whole) is None
    empty = volume_of(np.zeros(SHAPE, np.uint64), tmp_path / "b")
    assert seams_of(empty, BlockPlan(Box((0, 0, 0), SHAPE), BLOCK)) is None


def test_a_part_of_the_blocks_is_sampled_where_there_are_many(tmp_path: Path) -> None:
    found = seams_of(
        volume_of(random_segments(1), tmp_path), BlockPlan(Box((0, 0, 0), SHAPE), (2, 2, 2)), most_blocks=10
    )
    assert found is not None
    assert 10 <= found.blocks < 20


def test_the_gap_is_a_difference_of_shares_and_the_report_names_both() -> None:
    found = Seams(Agreement(10, 4), Agreement(20, 15), 7).as_dict()
    assert found["gap"] == pytest.approx(0.35)
    _, words, state = seams_words({"seams": found})
    assert "40.00% of the neighbouring voxels on either side of a block's face" in words
    assert "75.00% in the middle of blocks (7 blocks sampled)" in words
    assert (words.split(":")[0], state) == ("Blocks show", "bad")
    for faces, said, how in ((745, "Blocks leave no trace", "good"), (735, "Blocks leave a faint trace", "")):
        alike = seams_words({"seams": Seams(Agreement(1000, faces), Agreement(200, 150), 7).as_dict()})
        assert (alike.text.split(".")[0], alike.state) == (said, how)


def test_faces_beyond_a_segmentation_of_a_part_are_left_out(tmp_path: Path) -> None:
    values = random_segments(2)
    wide = BlockPlan(Box((-8, 0, 0), (32, 20, 13)), BLOCK)
    found = seams_of(volume_of(values, tmp_path), wide)
    assert found is not None
    assert (found.faces, found.inside) == slow_counts(values, BLOCK)


def test_scores_and_page_report_seams(finished: Experiment) -> None:
    seams = json.loads((finished.layout.report / "scores.json").read_text())["seams"]
    assert 0 <= seams["faces"]["share"] <= 1
    assert seams["faces"]["pairs"] > 100
    assert "Seams." in (finished.layout.report / "index.html").read_text()
