"""At which score two fragments of a block came together.

A merge takes region b into region a, which keeps its name; merges are numbered in the order they happened:

    merge 0: 2 into 1      merge 1: 4 into 3      merge 2: 3 into 1

          1
         / \\              Each region points to the one that took it, with the number of that merge.
      0 /   \\ 2           Upwards the numbers grow, so the merge that joined u and v is found by walking up from the
       2     3            one with the lower number until both meet: the last merge on the way is the lowest common
              \\ 1        ancestor of u and v in the merge tree. 2 and 4: merge 0, merge 1, merge 2, met in 1.
               4
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled


@dataclass(frozen=True)
class MergeHistory:
    """Merges in the order they happened: region `taken` became part of region `into` at `score`."""

    into: NDArray[np.int64]
    taken: NDArray[np.int64]
    score: NDArray[np.float32]


def merge_scores(
    history: MergeHistory, label_count: int, u: NDArray[np.int64], v: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Score of the merge that joined each pair; NaN where none did.

    :param label_count: labels are 1..label_count.
    :param u, v: (N,) pairs of labels.
    """
    taken_by = np.arange(label_count + 1, dtype=np.int64)
    taken_by[history.taken] = history.into
    merge_number = np.full(label_count + 1, len(history.taken), np.int64)
    merge_number[history.taken] = np.arange(len(history.taken))
    last = _joining_merges(taken_by, merge_number, u, v)
    scores = np.append(history.score, np.float32(np.nan)).astype(np.float32)
    return scores[last]


@compiled
def _joining_merges(
    taken_by: NDArray[np.int64], merge_number: NDArray[np.int64], u: NDArray[np.int64], v: NDArray[np.int64]
) -> NDArray[np.int64]:
    last = np.empty(u.size, np.int64)
    for pair in range(u.size):
        a, b = u[pair], v[pair]
        merge = np.int64(-1)
        while a != b:
            if merge_number[a] > merge_number[b]:
                a, b = b, a
            merge = merge_number[a]
            if taken_by[a] == a:
                # both are roots: no merge joined them; roots have the number after the last merge
                break
            a = taken_by[a]
        last[pair] = merge
    return last
