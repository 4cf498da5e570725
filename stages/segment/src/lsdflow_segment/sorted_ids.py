"""Where an id stands in an ascending list: a table over the leading bits of the ids, then a search in a short stretch.

    ids      | 3  7 | 12 14 15 |   | 61 |        stretches by (id - smallest) >> shift
    begins     0      2          5   5      6    a binary search over the whole list would wait for memory at each step

Ids that crowd together make long stretches, in which the search is binary: never slower than without the table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_runtime.compiled import compiled

# Ids of one stretch, on average.
_IDS_PER_STRETCH = 8


class SortedIds:
    """Finds ids in `ids`, uint64 (n,) ascending and distinct, n > 0. The table takes at most 1 byte per id."""

    def __init__(self, ids: NDArray[np.uint64]) -> None:
        self.ids = ids
        span = int(ids[-1]) - int(ids[0]) + 1
        wanted = max(1, len(ids) // _IDS_PER_STRETCH)
        self._shift = max(0, span.bit_length() - wanted.bit_length())
        stretches = ((span - 1) >> self._shift) + 1
        self._begins = np.zeros(stretches + 1, np.uint32 if len(ids) < 2**32 else np.uint64)
        _note_begins(ids, np.uint64(self._shift), self._begins)

    def find(self, wanted: NDArray[np.uint64], positions: NDArray[Any]) -> int:
        """Fill `positions`, integers (m,), with where each of `wanted`, uint64 (m,), stands, -1 if it does not.

        Gives how many do not.
        """
        return int(_find(wanted, self.ids, self._begins, np.uint64(self._shift), positions))


@compiled
def _note_begins(ids: NDArray[Any], shift: Any, begins: NDArray[Any]) -> None:
    """Where each stretch begins, and the end."""
    stretch = 0
    for place in range(len(ids)):
        own = np.int64((ids[place] - ids[0]) >> shift)
        while stretch < own:
            stretch += 1
            begins[stretch] = place
    begins[stretch + 1 :] = len(ids)


@compiled
def _find(wanted: NDArray[Any], ids: NDArray[Any], begins: NDArray[Any], shift: Any, positions: NDArray[Any]) -> int:
    first, last = ids[0], ids[-1]
    unknown = 0
    for place in range(len(wanted)):
        id_ = wanted[place]
        positions[place] = -1
        if first <= id_ <= last:
            stretch = (id_ - first) >> shift
            low, high = np.int64(begins[stretch]), np.int64(begins[stretch + np.uint64(1)])
            while high - low > 4:
                middle = (low + high) >> 1
                if ids[middle] <= id_:
                    low = middle
                else:
                    high = middle
            while low < high and ids[low] < id_:
                low += 1
            if low < high and ids[low] == id_:
                positions[place] = low
        if positions[place] < 0:
            unknown += 1
    return unknown
