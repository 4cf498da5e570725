"""Scores: equal to a slow reading of their definitions and to scikit-image, whatever the blocks."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage.metrics import adapted_rand_error, variation_of_information

from lsdflow_contract.errors import BadData, UsageError
from lsdflow_contract.testing import voronoi_labels
from lsdflow_metrics.contingency import ContingencySum, contingency
from lsdflow_metrics.scores import ZERO_POLICIES, PartitionScores, ZeroPolicy, score


def voxels_that_count(labels: np.ndarray, truth: np.ndarray, zeros: ZeroPolicy) -> list[tuple[object, int]]:
    """One (segment name, truth) for each voxel that counts: the definition of `zeros`, spelt out."""
    named: list[tuple[object, int]] = []
    for number, (label, object_) in enumerate(zip(labels.ravel().tolist(), truth.ravel().tolist(), strict=True)):
        if object_ == 0 or (label == 0 and zeros == "ignore"):
            continue
        named.append((("voxel", number) if label == 0 and zeros == "singletons" else label, object_))
    return named


def conditional_entropy(of: list[object], given_: list[object]) -> float:
    joint, marginal = Counter(zip(of, given_, strict=True)), Counter(given_)
    return -sum(n / len(of) * math.log2(n / marginal[key[1]]) for key, n in joint.items())


def slow_scores(labels: np.ndarray, truth: np.ndarray, zeros: ZeroPolicy) -> dict[str, float]:
    voxels = voxels_that_count(labels, truth, zeros)
    segments, objects = [v[0] for v in voxels], [v[1] for v in voxels]
    both = in_truth = in_segments = agree = pairs = 0
    for (s, t), (other_s, other_t) in itertools.combinations(voxels, 2):
        pairs += 1
        both += s == other_s and t == other_t
        in_truth += t == other_t
        in_segments += s == other_s
        agree += (s == other_s) == (t == other_t)
    split, merge = conditional_entropy(segments, objects), conditional_entropy(objects, segments)
    joint = conditional_entropy(voxels, [0] * len(voxels))
    recall = both / in_truth if in_truth else 1.0
    precision = both / in_segments if in_segments else 1.0
    return {
        "voi_split": split,
        "voi_merge": merge,
        "voi": split + merge,
        "nvi_split": split / joint if joint else 0.0,
        "nvi_merge": merge / joint if joint else 0.0,
        "rand_split": recall,
        "rand_merge": precision,
        "rand": agree / pairs if pairs else 1.0,
        "adapted_rand_error": 1 - 2 * both / (in_truth + in_segments) if in_truth + in_segments else 0.0,
    }


@given(st.integers(0, 10_000), st.sampled_from(ZERO_POLICIES))
def test_scores_equal_their_definitions_read_voxel_by_voxel(seed: int, zeros: ZeroPolicy) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, (3, 3, 4)).astype(np.uint64)
    truth = np.where(rng.random(labels.shape) < 0.5, labels + 1, rng.integers(0, 4, labels.shape)).astype(np.uint64)
    if not voxels_that_count(labels, truth, zeros):
        return
    found = score(contingency(labels, truth), zeros)
    for name, wanted in slow_scores(labels, truth, zeros).items():
        assert getattr(found, name) == pytest.approx(wanted, abs=1e-12), name


@pytest.mark.proves("EVA-01")
@pytest.mark.parametrize("seed", range(4))
def test_voi_and_adapted_rand_error_equal_scikit_image(seed: int) -> None:
    truth = voronoi_labels((20, 22, 24), 12, seed)
    labels = voronoi_labels((20, 22, 24), 9, seed + 100)
    truth[:3] = 0
    labels[:, :2] = 0
    found = score(contingency(labels, truth))
    split, merge = variation_of_information(truth, labels, ignore_labels=(0,))
    # scikit-image ignores 0 of its first image: H(labels|truth), H(truth|labels)
    assert (found.voi_split, found.voi_merge) == pytest.approx((split, merge), abs=1e-12)
    error, precision, recall = adapted_rand_error(truth.astype(np.int64), labels.astype(np.int64), ignore_labels=(0,))
    assert found.adapted_rand_error == pytest.approx(error, abs=1e-9)
    assert {round(found.rand_merge, 9), round(found.rand_split, 9)} == {round(precision, 9), round(recall, 9)}


@given(st.integers(2, 9), st.integers(2, 9), st.sampled_from(ZERO_POLICIES))
def test_scores_of_blocks_equal_scores_of_the_whole_volume_exactly(edge: int, other: int, zeros: ZeroPolicy) -> None:
    truth, labels = voronoi_labels((12, 12, 12), 6, 1), voronoi_labels((12, 12, 12), 8, 2)
    labels[0, :4] = 0
    total = ContingencySum()
    for z, y in itertools.product(range(0, 12, edge), range(0, 12, other)):
        total.add(contingency(labels[z : z + edge, y : y + other], truth[z : z + edge, y : y + other]))
    assert score(total.table(), zeros) == score(contingency(labels, truth), zeros)


def test_a_perfect_segmentation_with_other_names_has_no_error() -> None:
    truth = voronoi_labels((10, 10, 10), 5, 3)
    found = score(contingency(truth * 1000 + 17, truth))
    assert (found.voi, found.adapted_rand_error, found.nid) == pytest.approx((0, 0, 0), abs=1e-12)
    assert found.rand_split == found.rand_merge == found.rand == 1.0


def test_cutting_up_is_a_split_and_joining_is_a_merge() -> None:
    truth = np.repeat(np.array([1, 2], np.uint64), 32).reshape(4, 4, 4)
    halves = (np.arange(64, dtype=np.uint64) // 16 + 1).reshape(4, 4, 4)
    one = np.ones_like(truth)
    cut, joined = score(contingency(halves, truth)), score(contingency(one, truth))
    assert (cut.voi_split, cut.voi_merge) == (1.0, 0.0)
    assert (joined.voi_split, joined.voi_merge) == (0.0, 1.0)
    assert cut.rand_merge == 1.0
    assert cut.rand_split < 1.0
    assert joined.rand_split == 1.0
    assert joined.rand_merge < 1.0


def test_unlabelled_truth_never_counts() -> None:
    truth = voronoi_labels((8, 8, 8), 4, 0)
    labels = voronoi_labels((8, 8, 8), 5, 1)
    masked = truth.copy()
    masked[4:] = 0
    found, inside = score(contingency(labels, masked)), score(contingency(labels[:4], truth[:4]))
    assert found.unlabelled_vox == 256
    assert found.voi == inside.voi
    assert found.adapted_rand_error == inside.adapted_rand_error


def test_the_policy_for_segmentation_zero_is_recorded_and_changes_the_score() -> None:
    truth = np.repeat(np.array([1, 2], np.uint64), 32).reshape(4, 4, 4)
    labels = truth.copy()
    labels[:, 0] = 0
    scores: dict[str, PartitionScores] = {zeros: score(contingency(labels, truth), zeros) for zeros in ZERO_POLICIES}
    assert {s.zeros for s in scores.values()} == set(ZERO_POLICIES)
    assert all(s.zero_fraction == 0.25 for s in scores.values())
    assert scores["ignore"].voi == 0.0
    assert scores["ignore"].voxels == 48
    assert scores["label"].voi_merge > 0.0
    assert scores["singletons"].voi_merge == 0.0
    assert scores["singletons"].voi_split > scores["label"].voi_split
    assert scores["singletons"].segments == 2 + 16


def test_no_voxel_to_compare_is_an_error_not_a_perfect_score() -> None:
    labels = np.ones((2, 2, 2), np.uint64)
    with pytest.raises(BadData, match="nothing to compare"):
        score(contingency(labels, np.zeros_like(labels)))
    with pytest.raises(BadData, match="nothing to compare"):
        score(contingency(np.zeros_like(labels), labels), "ignore")


def test_an_unknown_policy_is_refused() -> None:
    labels = np.ones((2, 2, 2), np.uint64)
    with pytest.raises(UsageError, match="policy"):
        score(contingency(labels, labels), "drop")  # type: ignore[arg-type]


def test_the_released_ffn_segmentation_scores_what_was_measured_before(shared_data: Path) -> None:
    zarr = pytest.importorskip("zarr")
    volumes = zarr.open_group(shared_data / "fib25" / "trvol-250-2.zarr", mode="r")["volumes"]
    table = contingency(np.asarray(volumes["baselines/ffn"]), np.asarray(volumes["labels/neuron_ids"]))
    label, ignore = score(table, "label"), score(table, "ignore")
    assert (label.voi, label.adapted_rand_error) == pytest.approx((1.817, 0.157), abs=2e-3)
    assert (ignore.voi, ignore.adapted_rand_error) == pytest.approx((0.876, 0.056), abs=2e-3)
    assert label.zero_fraction == pytest.approx(0.113, abs=2e-3)
