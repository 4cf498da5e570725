"""Statistics of a volume: range of raw, ids and sizes, mask coverage, components of labels.

Those of a block are facts in its done mark; those of the volume are the facts of all blocks, merged. Only connected
components are counted slab by slab, for slabs that follow one another along z and cover the whole y,x plane:
1. components of equal label within the slab (26 neighbours);
2. the first plane is compared with the last plane of the previous slab: if voxels of equal label touch (3 x 3
   shifts), their components are joined;
3. at the end, joined components are counted once.

        slab k    | A A . B |      A of slab k touches A of slab k+1: one component
        slab k+1  | A . . . |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import cc3d
import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.arrays import MaskState

CONNECTIVITY: Literal[26] = 26


@dataclass
class RawStatistics:
    """Range and number of voxels so far; values as stored, before conversion to 8 bits."""

    minimum: float = np.inf
    maximum: float = -np.inf
    voxels: int = 0
    clipped: int = 0

    def add(self, block: NDArray[Any], clipped: int = 0, voxels: int | None = None) -> None:
        """Add a block of any real type; NaN is left out of the range. voxels: how many count (default: all)."""
        if block.size == 0:
            return
        self.minimum = min(self.minimum, float(np.nanmin(block)))
        self.maximum = max(self.maximum, float(np.nanmax(block)))
        self.voxels += block.size if voxels is None else voxels
        self.clipped += clipped

    def facts(self) -> dict[str, Any]:
        """The statistics as facts of a block."""
        return {"minimum": self.minimum, "maximum": self.maximum, "voxels": self.voxels, "clipped": self.clipped}

    def merge(self, facts: Mapping[str, Any]) -> None:
        """Add the facts of a block."""
        self.minimum = min(self.minimum, facts["minimum"])
        self.maximum = max(self.maximum, facts["maximum"])
        self.voxels += facts["voxels"]
        self.clipped += facts["clipped"]

    @property
    def is_constant(self) -> bool:
        """True if all voxels so far have the same value."""
        return self.voxels > 0 and self.minimum == self.maximum


@dataclass
class LabelStatistics:
    """Number of voxels of each id and of each mask state."""

    sizes: dict[int, int] = field(default_factory=dict)
    states: dict[int, int] = field(default_factory=lambda: {int(state): 0 for state in MaskState})

    def add(self, ids: NDArray[np.uint64], states: NDArray[np.uint8]) -> None:
        """Add a block of ids and states of the same shape."""
        found, counts = np.unique(ids, return_counts=True)
        in_states = np.bincount(states.ravel(), minlength=len(MaskState))
        self.merge({"ids": found.tolist(), "sizes": counts.tolist(), "states": in_states.tolist()})

    def facts(self) -> dict[str, Any]:
        """The statistics as facts of a block: ids, the voxels of each, and the voxels of each mask state."""
        return {"ids": list(self.sizes), "sizes": list(self.sizes.values()), "states": list(self.states.values())}

    def merge(self, facts: Mapping[str, Any]) -> None:
        """Add the facts of a block."""
        for label, count in zip(facts["ids"], facts["sizes"], strict=True):
            self.sizes[label] = self.sizes.get(label, 0) + count
        for state, count in enumerate(facts["states"]):
            self.states[state] = self.states.get(state, 0) + count

    @property
    def voxels(self) -> int:
        """Number of voxels so far."""
        return sum(self.states.values())

    @property
    def neurons(self) -> int:
        """Number of ids other than 0."""
        return len(self.sizes) - (0 in self.sizes)

    @property
    def trained_fraction(self) -> float:
        """Fraction of voxels that are not ignored."""
        return 1 - self.states[MaskState.IGNORE] / self.voxels if self.voxels else 0.0

    @property
    def labelled_voxels(self) -> int:
        """Number of voxels that are not ignored."""
        return self.voxels - self.states[MaskState.IGNORE]

    @property
    def largest_id(self) -> int:
        """Highest id, 0 if there is none."""
        return max(self.sizes, default=0)


class SlabComponents:
    """Counts components over slabs in ascending order of z."""

    def __init__(self) -> None:
        self._parent: list[int] = [0]
        self._label: list[int] = [0]
        self._last: tuple[NDArray[np.uint64], NDArray[np.int64]] | None = None

    def add(self, ids: NDArray[np.uint64]) -> None:
        """Add the next slab, (z, y, x) u64."""
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
    """Slices in which a plane and the same plane shifted by (dy, dx) overlap."""
    cut = {-1: (slice(1, None), slice(None, -1)), 0: (slice(None), slice(None)), 1: (slice(None, -1), slice(1, None))}
    return (cut[dy][0], cut[dx][0]), (cut[dy][1], cut[dx][1])
