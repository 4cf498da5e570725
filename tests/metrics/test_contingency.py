"""Contingency tables: counted like a dictionary of voxel pairs, and the same however the volume is cut."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_contract.errors import BadData
from lsdflow_metrics import contingency as module
from lsdflow_metrics.contingency import Contingency, ContingencySum, contingency, empty_contingency, merged


def random_labels(seed: int, shape: tuple[int, int, int] = (7, 6, 9), count: int = 6) -> np.ndarray:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, count, [n // 2 + 1 for n in shape]).astype(np.uint64)
    grown = coarse.repeat(2, 0).repeat(2, 1).repeat(2, 2)
    return grown[: shape[0], : shape[1], : shape[2]]


def counted_by_hand(labels: np.ndarray, truth: np.ndarray) -> dict[tuple[int, int], int]:
    pairs = Counter(zip(labels.ravel().tolist(), truth.ravel().tolist(), strict=True))
    return {pair: n for pair, n in pairs.items() if pair[1] != 0}


def as_dict(table: Contingency) -> dict[tuple[int, int], int]:
    rows = zip(table.labels.tolist(), table.truths.tolist(), table.voxels.tolist(), strict=True)
    return {(label, truth): voxels for label, truth, voxels in rows}


def same_table(a: Contingency, b: Contingency) -> bool:
    return as_dict(a) == as_dict(b) and a.unlabelled_vox == b.unlabelled_vox


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_pairs_are_counted_as_a_dictionary_counts_them(seed: int, other: int) -> None:
    labels, truth = random_labels(seed), random_labels(other)
    table = contingency(labels, truth)
    assert as_dict(table) == counted_by_hand(labels, truth)
    assert table.unlabelled_vox == int((truth == 0).sum())
    assert table.total_vox + table.unlabelled_vox == truth.size


@given(st.integers(0, 10_000), st.integers(1, 8), st.integers(1, 6), st.integers(1, 9))
def test_tables_of_blocks_add_up_to_the_table_of_the_volume(seed: int, dz: int, dy: int, dx: int) -> None:
    labels, truth = random_labels(seed), random_labels(seed + 1)
    total = ContingencySum()
    for z in range(0, labels.shape[0], dz):
        for y in range(0, labels.shape[1], dy):
            for x in range(0, labels.shape[2], dx):
                block = (slice(z, z + dz), slice(y, y + dy), slice(x, x + dx))
                total.add(contingency(labels[block], truth[block]))
    assert same_table(total.table(), contingency(labels, truth))


def test_a_running_sum_keeps_no_more_rows_than_distinct_pairs_and_one_waiting_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_WAITING_ROWS", 50)
    total = ContingencySum()
    labels, truth = random_labels(1), random_labels(2)
    block = contingency(labels, truth)
    for _ in range(200):
        total.add(block)
        assert total._waiting_rows <= 50 + len(block.voxels)
    assert as_dict(total.table()) == {pair: 200 * n for pair, n in as_dict(block).items()}


def test_ids_above_two_to_the_53_stay_apart() -> None:
    big = 2**63 - 1
    labels = np.array([[[big, big - 1, big]]], np.uint64)
    truth = np.array([[[big, big, big - 1]]], np.uint64)
    assert as_dict(contingency(labels, truth)) == {(big, big): 1, (big - 1, big): 1, (big, big - 1): 1}


@given(st.integers(0, 10_000))
def test_relabelling_the_table_equals_relabelling_the_voxels(seed: int) -> None:
    labels, truth = random_labels(seed), random_labels(seed + 7)
    fragments = np.arange(1, 6, dtype=np.uint64)
    segments = np.random.default_rng(seed).integers(1, 4, 5).astype(np.uint64)
    dense = np.concatenate([[np.uint64(0)], segments])
    assert same_table(contingency(labels, truth).relabel(fragments, segments), contingency(dense[labels], truth))


def test_relabelling_refuses_a_label_that_the_lut_does_not_know() -> None:
    labels = np.array([[[0, 3, 9]]], np.uint64)
    with pytest.raises(BadData, match="9"):
        contingency(labels, np.ones_like(labels)).relabel(np.array([3], np.uint64), np.array([3], np.uint64))


def test_relabelling_keeps_zero_at_zero() -> None:
    labels = np.array([[[0, 3, 0]]], np.uint64)
    table = contingency(labels, np.ones_like(labels)).relabel(np.array([3], np.uint64), np.array([8], np.uint64))
    assert as_dict(table) == {(0, 1): 2, (8, 1): 1}


def test_blocks_of_different_shape_are_refused() -> None:
    with pytest.raises(BadData, match="same voxels"):
        contingency(np.ones((2, 2, 2), np.uint64), np.ones((2, 2, 3), np.uint64))


def test_nothing_adds_up_to_nothing() -> None:
    assert merged([]).total_vox == ContingencySum().table().total_vox == empty_contingency().total_vox == 0
    assert contingency(np.zeros((0, 3, 3), np.uint64), np.zeros((0, 3, 3), np.uint64)).total_vox == 0
