"""The score of a pair is that of the merge that first put both into one region."""

from __future__ import annotations

import numpy as np
import pytest

from lsdflow_agglomerate.scoring import MergeHistory, merge_scores


def random_history(seed: int, labels: int) -> MergeHistory:
    """Merges of random remaining regions, with rising scores; some regions stay apart."""
    generator = np.random.default_rng(seed)
    remaining = list(range(1, labels + 1))
    into, taken = [], []
    while len(remaining) > 4:
        a, b = generator.choice(len(remaining), 2, replace=False)
        into.append(remaining[a])
        taken.append(remaining[b])
        del remaining[b]
    score = np.sort(generator.random(len(into))).astype(np.float32)
    return MergeHistory(np.array(into, np.int64), np.array(taken, np.int64), score)


def replayed_score(history: MergeHistory, u: int, v: int) -> float:
    """Slow reference: merge sets, one after another, until u and v are in the same."""
    region = {u: u, v: v}
    for into, taken, score in zip(history.into, history.taken, history.score, strict=True):
        region = {label: int(into) if at == taken else at for label, at in region.items()}
        if region[u] == region[v]:
            return float(score)
    return float("nan")


@pytest.mark.parametrize("seed", range(6))
def test_scores_equal_replaying_the_merges(seed: int) -> None:
    labels = 25
    history = random_history(seed, labels)
    u, v = np.triu_indices(labels, k=1)
    found = merge_scores(history, labels, u + 1, v + 1)
    wanted = [replayed_score(history, int(a) + 1, int(b) + 1) for a, b in zip(u, v, strict=True)]
    np.testing.assert_array_equal(found, np.array(wanted, np.float32))
    assert np.isnan(found).any()


def test_without_merges_nothing_was_ever_merged() -> None:
    none = MergeHistory(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))
    assert np.isnan(merge_scores(none, 2, np.array([1]), np.array([2]))).all()
