"""The target of an experiment, as every stage sees it: the grid that voxels are counted on, and its truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.arrays import LABELS, MASK, RAW, MaskState
from lsdflow_contract.described import TARGET
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
    """True if the target is made, or described by its sources' metadata."""
    return experiment.layout.target_volume.exists() or TARGET in experiment.described


def target_grid(experiment: Experiment) -> Geometry:
    """The grid that every stage counts voxels on: that of the prepared raw volume, or of one that is described."""
    if TARGET in experiment.described and not experiment.layout.target_volume.exists():
        return experiment.described[TARGET].geometry
    return open_volume(experiment.layout.target_volume, RAW.dataset).geometry


def where_truth_is(experiment: Experiment, dataset: str, grid: Geometry) -> Box | None:
    """The box of the truth on the target's grid; None if the target, made or described, has no truth."""
    if TARGET in experiment.described and not experiment.layout.target_volume.exists():
        return grid.box if experiment.described[TARGET].labelled and dataset == LABELS.dataset else None
    truth = open_truth(experiment, dataset, grid)
    return None if truth is None else truth.labels.box


def open_truth(experiment: Experiment, dataset: str, grid: Geometry) -> Truth | None:
    """The truth of the target on the target's grid; None if it has no such dataset."""
    path = experiment.layout.target_volume
    if not (path / dataset).exists():
        return None
    mask = open_volume(path, MASK.dataset, grid) if (path / MASK.dataset).exists() else None
    return Truth(open_volume(path, dataset, grid), mask)
