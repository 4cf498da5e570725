"""Connected components of labels, counted slab by slab.

Steps, for slabs that follow one another along z and cover the whole y,x plane:
1. components of equal label within the slab (26 neighbours);
2. the first plane is laid on the last plane of the slab before: voxels of equal label that touch (3 x 3 shifts) join
   their components;
3. at the end, components joined are counted once.

        slab k    | A A . B |      A of slab k touches A of slab k+1: one component
        slab k+1  | A . . . |
"""

from __future__ import annotations

from itertools import product
from typing import Literal

import cc3d
import numpy as np
from numpy.typing import NDArray

CONNECTIVITY: Literal[26] = 26


class SlabComponents:
    """Counts components over slabs given in order of z."""

    def __init__(self) -> None:
        self._parent: list[int] = [0]
        self._label: list[int] = [0]
        self._last: tuple[NDArray[np.uint64], NDArray[np.int64]] | None = None

    def add(self, ids: NDArray[np.uint64]) -> None:
        """The next slab, (z, y, x) u64."""
        if ids.size == 0:
            return
        local, count = cc3d.connected_components(ids, connectivity=CONNECTIVITY, return_N=True)
        labels = np.zeros(int(count) + 1, np.uint64)
        labels[local.ravel()] = ids.ravel()
        first = len(self._parent) - 1
        self._parent.extend(range(first + 1, first + int(count) + 1))
        self._label.extend(labels[1:].tolist())
        top, bottom = (_numbered(local[plane], first) for plane in (0, -1))
        if self._last is not None:
            self._join(self._last, (ids[0], top))
        self._last = (ids[-1].copy(), bottom)

    def per_label(self) -> dict[int, int]:
        """Number of components of each id other than 0."""
        counts: dict[int, int] = {}
        for component in range(1, len(self._parent)):
            if self._root(component) == component:
                counts[self._label[component]] = counts.get(self._label[component], 0) + 1
        return counts

    def _join(
        self,
        above: tuple[NDArray[np.uint64], NDArray[np.int64]],
        below: tuple[NDArray[np.uint64], NDArray[np.int64]],
    ) -> None:
        """Join components of equal label that touch across the face between two slabs."""
        for dy, dx in product((-1, 0, 1), repeat=2):
            upper, lower = _overlap(dy, dx)
            same = (above[0][upper] == below[0][lower]) & (above[0][upper] != 0)
            pairs = np.unique(np.stack([above[1][upper][same], below[1][lower][same]]), axis=1)
            for a, b in pairs.T.tolist():
                low, high = sorted((self._root(a), self._root(b)))
                self._parent[high] = low

    def _root(self, component: int) -> int:
        while self._parent[component] != component:
            self._parent[component] = self._parent[self._parent[component]]
            component = self._parent[component]
        return component


def _numbered(local: NDArray[np.unsignedinteger], first: int) -> NDArray[np.int64]:
    """Global component numbers; 0 stays 0."""
    return np.where(local > 0, local.astype(np.int64) + first, 0)


def _overlap(dy: int, dx: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Slices by which a plane and the same plane shifted by (dy, dx) overlap."""
    cut = {-1: (slice(1, None), slice(None, -1)), 0: (slice(None), slice(None)), 1: (slice(None, -1), slice(1, None))}
    return (cut[dy][0], cut[dx][0]), (cut[dy][1], cut[dx][1])
