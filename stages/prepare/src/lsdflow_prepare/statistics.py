"""What is learnt of a volume while its blocks pass by: range of raw, ids and sizes, mask coverage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.arrays import MaskState


@dataclass
class RawStatistics:
    """Range and number of voxels seen; values as stored, before the map to 8 bits."""

    minimum: float = np.inf
    maximum: float = -np.inf
    voxels: int = 0
    clipped: int = 0

    def add(self, block: NDArray[Any], clipped: int = 0) -> None:
        """Count a block, of any real type; NaN is left out of the range."""
        if block.size == 0:
            return
        self.minimum = min(self.minimum, float(np.nanmin(block)))
        self.maximum = max(self.maximum, float(np.nanmax(block)))
        self.voxels += block.size
        self.clipped += clipped

    @property
    def is_constant(self) -> bool:
        """All voxels seen have one value."""
        return self.voxels > 0 and self.minimum == self.maximum


@dataclass
class LabelStatistics:
    """Voxels of each id, and of each mask state."""

    sizes: dict[int, int] = field(default_factory=dict)
    states: dict[int, int] = field(default_factory=lambda: {int(state): 0 for state in MaskState})

    def add(self, ids: NDArray[np.uint64], states: NDArray[np.uint8]) -> None:
        """Count a block of ids and states of the same shape."""
        found, counts = np.unique(ids, return_counts=True)
        for label, count in zip(found.tolist(), counts.tolist(), strict=True):
            self.sizes[label] = self.sizes.get(label, 0) + count
        for state, count in enumerate(np.bincount(states.ravel(), minlength=len(MaskState)).tolist()):
            self.states[state] = self.states.get(state, 0) + count

    @property
    def voxels(self) -> int:
        """All voxels seen."""
        return sum(self.states.values())

    @property
    def neurons(self) -> int:
        """Ids other than 0."""
        return len(self.sizes) - (0 in self.sizes)

    @property
    def trained_fraction(self) -> float:
        """Share of voxels that are not ignored."""
        return 1 - self.states[MaskState.IGNORE] / self.voxels if self.voxels else 0.0

    @property
    def labelled_voxels(self) -> int:
        """Voxels that are not ignored."""
        return self.voxels - self.states[MaskState.IGNORE]

    @property
    def largest_id(self) -> int:
        """Highest id, 0 if there is none."""
        return max(self.sizes, default=0)
