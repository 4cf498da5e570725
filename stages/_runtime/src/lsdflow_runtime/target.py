"""The target of an experiment, as every stage sees it: the grid that voxels are counted on, and its truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.arrays import MASK, RAW, MaskState
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_runtime.volumes import Volume, open_volume


@dataclass(frozen=True)
class Truth:
    """True labels on the target's grid, and their mask if there is one: masked-out voxels count as not labelled."""

    labels: Volume
    mask: Volume | None

    def read(self, box: Box) -> NDArray[np.uint64]:
        """Labels of `box` (z, y, x), 0 where the mask says ignore."""
        labels = self.labels.read(box).astype(np.uint64)
        if self.mask is not None:
            labels[self.mask.read(box) == MaskState.IGNORE] = 0
        return labels


def knows_target(experiment: Experiment) -> bool:
    """True if the target is made, or described."""
    return experiment.layout.target_volume.exists()


def target_grid(experiment: Experiment) -> Geometry:
    """The grid that every stage counts voxels on: that of the prepared raw volume."""
    return open_volume(experiment.layout.target_volume, RAW.dataset).geometry


def open_truth(experiment: Experiment, dataset: str, grid: Geometry) -> Truth | None:
    """The truth of the target on the target's grid; None if it has no such dataset."""
    path = experiment.layout.target_volume
    if not (path / dataset).exists():
        return None
    mask = open_volume(path, MASK.dataset, grid) if (path / MASK.dataset).exists() else None
    return Truth(open_volume(path, dataset, grid), mask)
