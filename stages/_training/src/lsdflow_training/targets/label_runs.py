"""Labels as runs along x, grouped by label. The LSD targets are computed from these runs.

A run is a stretch of one label in one row (z, y):

    row (z, y):   0 0 7 7 7 0 3 3     ->  label 7: x 2..5    label 3: x 6..8       (half open)

Two orders are needed, because the passes over the axes read the rows in different directions: `runs_by_y` lists the
runs of a label by (y, z, x), `runs_by_z` by (z, y, x). Label 0 has no runs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lsdflow_training.compiled import compiled

Labels = npt.NDArray[np.uint64]
Runs = npt.NDArray[np.int32]  # (n, 4): z, y, first x, one after the last x
Owned = npt.NDArray[np.int32]  # (n, 5): the same, and the index of the label


class GroupedRuns(NamedTuple):
    """Runs of several labels; those of label i are runs[starts[i] : starts[i + 1]]."""

    runs: Runs
    starts: npt.NDArray[np.int64]


def present_labels(labels: Labels) -> Labels:
    """The labels of a volume (z, y, x), sorted, without 0."""
    begins = np.empty(labels.shape, dtype=bool)
    begins[..., 0] = True
    np.not_equal(labels[..., 1:], labels[..., :-1], out=begins[..., 1:])
    ids: Labels = np.unique(labels[begins])
    present: Labels = ids[ids != 0]
    return present


@compiled
def runs_by_y(labels: Labels, ids: Labels) -> GroupedRuns:
    """The runs of the labels `ids` (sorted) in `labels` (z, y, x), per label by (y, z, x)."""
    depth, height, width = labels.shape
    found = _new_list(labels)
    count = 0
    for y in range(height):
        for z in range(depth):
            found = _with_room(found, count + width)
            count = _append_row(labels[z, y], (z, y), ids, found, count)
    return _grouped(found, count, ids.size)


@compiled
def runs_by_z(labels: Labels, ids: Labels, step: int) -> GroupedRuns:
    """The same, per label by (z // step, y // step, z, y, x): rows of the same downsampled row are contiguous."""
    depth, height, width = labels.shape
    found = _new_list(labels)
    count = 0
    for coarse_z in range(0, depth, step):
        for coarse_y in range(0, height, step):
            for z in range(coarse_z, min(coarse_z + step, depth)):
                for y in range(coarse_y, min(coarse_y + step, height)):
                    found = _with_room(found, count + width)
                    count = _append_row(labels[z, y], (z, y), ids, found, count)
    return _grouped(found, count, ids.size)


@compiled
def _new_list(labels: Labels) -> Owned:
    depth, height, width = labels.shape
    return np.empty((depth * height * 4 + width, 5), np.int32)


@compiled
def _with_room(found: Owned, needed: int) -> Owned:
    if needed <= found.shape[0]:
        return found
    more = np.empty((2 * needed, 5), np.int32)
    for i in range(found.shape[0]):  # element by element: assigning slices takes seconds to compile
        for k in range(5):
            more[i, k] = found[i, k]
    return more


@compiled
def _append_row(row: Labels, place: tuple[int, int], ids: Labels, found: Owned, count: int) -> int:
    """Append the runs of one row at (z, y) = `place`; returns the new count."""
    begin = 0
    while begin < row.size:
        label = row[begin]
        end = begin + 1
        while end < row.size and row[end] == label:
            end += 1
        owner = _index_of(label, ids) if label != 0 else -1
        if owner >= 0:
            found[count, 0], found[count, 1] = place
            found[count, 2] = begin
            found[count, 3] = end
            found[count, 4] = owner
            count += 1
        begin = end
    return count


@compiled
def _index_of(label: int, ids: Labels) -> int:
    """Position of `label` in the sorted `ids`, or -1 (binary search)."""
    low = 0
    high = ids.size
    while low < high:
        middle = (low + high) // 2
        if ids[middle] < label:
            low = middle + 1
        else:
            high = middle
    return low if low < ids.size and ids[low] == label else -1


@compiled
def _grouped(found: Owned, count: int, labels: int) -> GroupedRuns:
    """Counting sort of the first `count` runs by their label; keeps the order within a label."""
    starts = np.zeros(labels + 1, np.int64)
    for i in range(count):
        starts[found[i, 4] + 1] += 1
    for i in range(labels):
        starts[i + 1] += starts[i]
    place = starts[:-1].copy()
    runs = np.empty((count, 4), np.int32)
    for i in range(count):
        to = place[found[i, 4]]
        place[found[i, 4]] = to + 1
        for k in range(4):
            runs[to, k] = found[i, k]
    return GroupedRuns(runs, starts)
