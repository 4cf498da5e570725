"""Merge scores are those of waterz asked for one threshold alone; a face is scored by its quantile."""

from __future__ import annotations

import numpy as np
import pytest
import waterz
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from lsdflow_agglomerate.merge_functions import WATERZ_NAMES
from lsdflow_agglomerate.scoring import dense_labels, score_edges
from lsdflow_contract.graph import RagEdges
from lsdflow_contract.testing import same_partition


def merged_below(fragments: NDArray[np.uint64], edges: RagEdges, threshold: float) -> NDArray[np.uint64]:
    """Fragments joined by the edges that score below the threshold."""
    ids = np.unique(fragments)
    chosen = edges.merge_score < threshold
    u, v = (np.searchsorted(ids, ends[chosen]) for ends in (edges.u, edges.v))
    graph = coo_matrix((np.ones(u.size), (u, v)), shape=(ids.size, ids.size))
    _, component = connected_components(graph, directed=False)
    lut = np.where(ids > 0, component + 1, 0).astype(np.uint64)
    return lut[np.searchsorted(ids, fragments)]


def waterz_alone(
    affs: NDArray[np.uint8], fragments: NDArray[np.uint64], merge_function: str, threshold: float
) -> NDArray[np.uint64]:
    """Slow reference: a fresh waterz run for one threshold, without merge history or region graph."""
    (segmentation,) = waterz.agglomerate(
        affs.astype(np.float32) / 255,
        [threshold],
        fragments=fragments.copy(),
        scoring_function=WATERZ_NAMES[merge_function],
        discretize_queue=256,
    )
    return segmentation


@pytest.mark.parametrize("merge_function", WATERZ_NAMES)
def test_segments_at_every_threshold_are_those_of_a_waterz_run_at_that_threshold(
    affs: NDArray[np.uint8], labels: NDArray[np.uint64], merge_function: str
) -> None:
    """waterz 0.10.1, asked for several thresholds and the region graph, gets the later ones wrong: we never do that.

    Thresholds are multiples of 1/256: waterz sorts scores into 256 queues, and takes those of one queue unsorted.
    """
    edges = score_edges(affs, labels, (merge_function,))[merge_function]
    counts = set()
    for threshold in np.array([2, 3, 5, 8, 16, 32, 64, 96, 128, 192]) / 256:
        wanted = waterz_alone(affs, labels, merge_function, float(threshold))
        assert same_partition(merged_below(labels, edges, float(threshold)), wanted)
        counts.add(len(np.unique(wanted)))
    assert len(counts) > 2, "the thresholds must cover some range of segmentations"


def face(values: list[int]) -> tuple[NDArray[np.uint8], NDArray[np.uint64]]:
    """Two fragments that touch along x in one face with the given affinities."""
    affs = np.full((3, 1, len(values), 2), 200, np.uint8)
    affs[2, 0, :, 1] = values
    fragments = np.ones((1, len(values), 2), np.uint64)
    fragments[:, :, 1] = 2
    return affs, fragments


def quantile_score(values: list[int], quantile: int) -> float:
    """1 - the middle of the histogram bin that holds the quantile."""
    bins = np.sort(np.minimum(np.float32(values) / np.float32(255) * 256, 255).astype(int))
    return 1 - (bins[quantile * len(values) // 100] + 0.5) / 256


@pytest.mark.parametrize("quantile", [10, 25, 50, 75, 90])
def test_a_single_face_scores_one_minus_its_quantile(quantile: int) -> None:
    values = np.random.default_rng(quantile).integers(0, 256, 37).tolist()
    name = f"hist_quant_{quantile}"
    edges = score_edges(*face(values), (name,))[name]
    assert edges.merge_score.tolist() == [pytest.approx(quantile_score(values, quantile))]


def test_a_single_face_scores_one_minus_its_mean_or_its_maximum() -> None:
    values = [10, 100, 40, 90]
    scored = score_edges(*face(values), ("mean", "hist_quant_50_initmax"))
    assert scored["mean"].merge_score[0] == pytest.approx(1 - 60 / 255, abs=1e-6)
    assert scored["hist_quant_50_initmax"].merge_score[0] == pytest.approx(quantile_score([100], 50))


def test_high_affinity_means_low_score_and_no_affinity_is_never_merged() -> None:
    good = score_edges(*face([255] * 5), ("hist_quant_75", "mean"))
    bad = score_edges(*face([0] * 5), ("hist_quant_75", "mean"))
    assert good["hist_quant_75"].merge_score[0] < 0.01
    assert bad["hist_quant_75"].merge_score[0] > 0.99
    assert np.isnan(bad["mean"].merge_score[0]), "a score of 1 is not below 1"


def test_huge_ids_cost_nothing_and_come_back(affs: NDArray[np.uint8], labels: NDArray[np.uint64]) -> None:
    """waterz needs memory by the largest label; ids near 2^63 would need all the memory of the world."""
    shift = np.uint64(2**62)
    shifted = np.where(labels > 0, labels + shift, 0).astype(np.uint64)
    plain = score_edges(affs, labels, ("hist_quant_75",))["hist_quant_75"]
    found = score_edges(affs, shifted, ("hist_quant_75",))["hist_quant_75"]
    assert np.array_equal(found.u, plain.u + shift)
    assert np.array_equal(found.v, plain.v + shift)
    assert np.array_equal(found.merge_score, plain.merge_score)


def test_dense_labels_keep_the_order_of_ids() -> None:
    fragments = np.array([[[0, 700, 5], [5, 9, 700]]], np.uint64)
    dense, ids = dense_labels(fragments)
    assert dense.tolist() == [[[0, 3, 1], [1, 2, 3]]]
    assert ids.tolist() == [0, 5, 9, 700]
    dense, ids = dense_labels(np.array([[[3, 8]]], np.uint64))
    assert dense.tolist() == [[[1, 2]]]
    assert ids.tolist() == [0, 3, 8]


def test_inputs_are_not_changed(affs: NDArray[np.uint8], labels: NDArray[np.uint64]) -> None:
    before = affs.copy(), labels.copy()
    score_edges(affs, labels, ("hist_quant_50", "mean"))
    assert np.array_equal(affs, before[0])
    assert np.array_equal(labels, before[1])


def test_further_channels_are_not_used(affs: NDArray[np.uint8], labels: NDArray[np.uint64]) -> None:
    more = np.concatenate([affs, np.zeros_like(affs)])
    three, six = (score_edges(a, labels, ("hist_quant_75",))["hist_quant_75"] for a in (affs, more))
    assert np.array_equal(three.merge_score, six.merge_score)


def test_waterz_writes_nothing_into_the_output_of_the_command(
    affs: NDArray[np.uint8], labels: NDArray[np.uint64], capfd: pytest.CaptureFixture[str]
) -> None:
    score_edges(affs, labels, ("hist_quant_75",))
    print("after")
    assert capfd.readouterr().out == "after\n"


@pytest.mark.parametrize("fill", [0, 4])
def test_a_block_with_at_most_one_fragment_has_no_edges(affs: NDArray[np.uint8], fill: int) -> None:
    fragments = np.full(affs.shape[1:], fill, np.uint64)
    assert len(score_edges(affs, fragments, ("mean",))["mean"]) == 0
