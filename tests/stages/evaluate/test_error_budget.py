"""The error budget: its parts against slow references, whatever the blocks, and the words about the largest part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lsdflow_contract.arrays import FRAGMENTS, LABELS
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.lut import lut_name, read_lut
from lsdflow_contract.testing import made, voronoi_labels
from lsdflow_evaluate.report.findings import budget_words, trained_words
from lsdflow_evaluate.scores.counting import BORDERS_VOX, without_border
from lsdflow_evaluate.scores.error_budget import at_best, shares
from lsdflow_metrics.contingency import contingency
from lsdflow_metrics.scores import score
from lsdflow_runtime.io.volumes import open_volume


def slow_without_border(truth: np.ndarray, border_vox: int) -> np.ndarray:
    """A voxel is left out if it is less than `border_vox` (in squares) from one beside another label in the plane."""
    kept, (depth, height, width) = truth.copy(), truth.shape

    def beside(z: int, y: int, x: int) -> bool:
        around = ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1))
        inside = [(j, i) for j, i in around if 0 <= j < height and 0 <= i < width]
        return any(truth[z, j, i] != truth[z, y, x] for j, i in inside)

    for z in range(depth):
        for y in range(height):
            for x in range(width):
                rows = range(max(0, y - border_vox + 1), min(height, y + border_vox))
                columns = range(max(0, x - border_vox + 1), min(width, x + border_vox))
                if any(beside(z, j, i) for j in rows for i in columns):
                    kept[z, y, x] = 0
    return kept


@pytest.mark.parametrize("border_vox", BORDERS_VOX)
def test_borders_are_those_of_the_slow_reference(border_vox: int) -> None:
    truth = voronoi_labels((4, 17, 19), 5, 1) + np.uint64(2**63)
    truth[1, :4] = 0
    assert np.array_equal(without_border(truth, border_vox), slow_without_border(truth, border_vox))


def test_sections_have_no_border_with_each_other() -> None:
    truth = np.ones((3, 6, 6), np.uint64)
    truth[1] = 2
    assert np.array_equal(without_border(truth, 3), truth)


def test_each_part_is_given_the_neuron_of_most_of_its_voxels() -> None:
    fragments = np.array([[[7, 7, 7, 8, 8, 8, 8, 0, 0, 9]]], np.uint64)
    truth = np.array([[[1, 1, 2, 2, 2, 3, 3, 3, 1, 1]]], np.uint64)
    best = np.array([[[1, 1, 1, 2, 2, 2, 2, 0, 0, 1]]], np.uint64)  # of 8, neurons 2 and 3 have the same: the lower
    found, wanted = at_best(contingency(fragments, truth)), contingency(best, truth)
    assert np.array_equal(found.labels, wanted.labels)
    assert np.array_equal(found.truths, wanted.truths)
    assert np.array_equal(found.voxels, wanted.voxels)


def test_parts_inside_one_neuron_each_cost_nothing_at_best() -> None:
    truth = voronoi_labels((6, 20, 20), 5, 2)
    pieces = truth * np.uint64(10) + (np.arange(20) // 7).astype(np.uint64)
    assert score(at_best(contingency(pieces, truth))).voi == 0
    assert score(contingency(pieces, truth)).voi > 0.5


def budget(voi: float, best: float, fragments: float, inside: float) -> dict[str, Any]:
    return {
        "voi": voi,
        "best_threshold": 0.58,
        "voi_at_best_threshold": best,
        "segments_at_best": best,
        "fragments_at_best": fragments,
        "without_borders": [{"border_vox": 2, "voi": inside, "fragments_at_best": inside}],
    }


@pytest.mark.proves("NEW-08")
def test_the_parts_add_up_to_the_voi() -> None:
    found = shares(budget(2.0, 1.7, 1.0, 0.4))
    assert found == pytest.approx({"threshold": 0.3, "agglomeration": 0.7, "borders": 0.6, "fragments": 0.4})
    assert sum(found.values()) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("numbers", "said"),
    [
        ((2.0, 1.0, 0.8, 0.5), "segment.threshold = 0.58"),
        ((2.0, 1.9, 0.8, 0.5), "Most is decided wrongly between fragments"),
        ((1.2, 1.1, 1.0, 0.2), "nothing to do for neurons"),
        ((2.0, 1.9, 1.8, 1.7), "Most is merged inside fragments"),
    ],
)
def test_the_largest_part_says_what_to_do(numbers: tuple[float, float, float, float], said: str) -> None:
    text = budget_words(budget(*numbers))
    assert said in text
    assert f"Of {numbers[0]:.2f} bits" in text


def test_without_a_budget_there_are_no_words() -> None:
    assert budget_words({}) == ""
    assert budget_words(budget(0.05, 0.04, 0.03, 0.0)) == ""


def test_the_budget_of_a_run_is_that_of_whole_volumes_whatever_the_blocks(
    make_experiment: Callable[..., Experiment], scores_now: Callable[[Experiment], dict[str, Any]]
) -> None:
    experiment = make_experiment("a")
    found, layout = scores_now(experiment)["error_budget"], experiment.layout
    volumes = (made(layout, "watershed"), FRAGMENTS.dataset), (layout.target_volume, LABELS.dataset)
    fragments, truth = (volume.read(volume.box) for volume in (open_volume(*named) for named in volumes))
    table, vois = contingency(fragments, truth), []
    for threshold in (0.1, 0.28, 0.29, 0.9):
        lut = read_lut(layout.luts / lut_name("hist_quant_75", threshold))
        vois.append(score(table.relabel(lut.fragments, lut.segments)).voi)
    assert found["voi_at_best_threshold"] == pytest.approx(min(vois))
    assert found["fragments_at_best"] == pytest.approx(score(at_best(table)).voi)
    for row in found["without_borders"]:
        kept = slow_without_border(truth, row["border_vox"])
        assert row["fragments_at_best"] == pytest.approx(score(at_best(contingency(fragments, kept))).voi)
    other = scores_now(make_experiment("a", 'evaluate.block_shape="5, 7, 9 vox"'))["error_budget"]
    assert other == found


def test_the_share_that_was_trained_on_is_said() -> None:
    said = trained_words({"share": 0.625, "volumes": ["a", "b"]})
    assert said.startswith("62% of the region that is scored was trained on (a, b)")
    assert trained_words({}) == trained_words({"share": 0.0, "volumes": []}) == ""
