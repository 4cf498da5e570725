"""The target of an experiment for all stages: the voxel grid, and the truth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.arrays import MASK, RAW, MaskState
from lsdflow_contract.failed_blocks import FailedBlock
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_runtime.io.volumes import Volume, open_volume, outside_of


@dataclass(frozen=True)
class Truth:
    """True labels on the target's grid. Voxels outside a mask, and those in holes, count as not labelled.

    `holes`: boxes on the target's grid without a comparison, because blocks of a stage failed there.
    """

    labels: Volume
    mask: Volume | None
    holes: tuple[Box, ...] = ()

    def read(self, box: Box) -> NDArray[np.uint64]:
        """Labels of `box` (z, y, x), 0 in holes and where the mask is ignore."""
        labels = self.labels.read(box).astype(np.uint64)
        if self.mask is not None:
            labels[self.mask.read(box) == MaskState.IGNORE] = 0
        known = outside_of(self.holes, box)
        if known is not None:
            labels[~known] = 0
        return labels


def knows_target(layout: ExperimentLayout) -> bool:
    """True if the target has been prepared or described."""
    return layout.target_volume.exists()


def target_grid(layout: ExperimentLayout) -> Geometry:
    """The voxel grid of all stages: that of the prepared raw volume."""
    return open_volume(layout.target_volume, RAW.dataset).geometry


def open_truth(
    layout: ExperimentLayout, dataset: str, grid: Geometry, failed: Iterable[FailedBlock] = ()
) -> Truth | None:
    """The truth of the target on the target's grid, with holes at `failed`; None if it has no such dataset."""
    path = layout.target_volume
    if not (path / dataset).exists():
        return None
    mask = open_volume(path, MASK.dataset, grid) if (path / MASK.dataset).exists() else None
    return Truth(open_volume(path, dataset, grid), mask, tuple(block.box for block in failed))
