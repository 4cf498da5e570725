"""Where scores count: boxes of the target grid, each perhaps with a mask; and the labels that count there.

roi             always: the numbers on top of scores.json
threshold_roi   if asked for: the threshold is chosen there
region_<name>   each of [evaluate.regions.<name>]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box, Geometry, region_box
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_runtime.io.target import Truth
from lsdflow_runtime.io.volumes import Volume, open_volume

ROI, THRESHOLD_ROI, NAMED = "roi", "threshold_roi", "region_"


@dataclass(frozen=True)
class Region:
    """A box of the target grid; where there is a mask, only the voxels where it is not 0. `dataset` names the mask."""

    box: Box
    mask: Volume | None = None
    dataset: str | None = None

    def inside(self, box: Box) -> NDArray[np.bool_] | None:
        """Which voxels of `box` the mask lets count; none = all."""
        return None if self.mask is None else self.mask.read(box, outside="zero") != 0

    def truth_in(self, truth: Truth, box: Box) -> NDArray[np.uint64]:
        """True labels of `box`, 0 where the mask is 0: such voxels do not count."""
        labels = truth.read(box)
        inside = self.inside(box)
        return labels if inside is None else np.where(inside, labels, np.uint64(0))

    def as_dict(self) -> dict[str, Any]:
        """For scores.json and for the key of the counting."""
        box = {"begin_vox": list(self.box.begin_vox), "shape_vox": list(self.box.shape_vox)}
        return {**box, "mask": self.dataset} if self.dataset else box


def scored_regions(experiment: Experiment, config: EvaluateConfig, grid: Geometry, both: Box) -> dict[str, Region]:
    """All regions by name, inside `both` (truth and fragments).

    Raises ConfigError for a region outside the data, MissingInput for a mask that is not there.
    """
    size_nm = grid.voxel_size_nm
    found = {ROI: Region(region_box(config.roi, size_nm, both, "evaluate.roi"))}
    if config.threshold_roi is not None:
        found[THRESHOLD_ROI] = Region(region_box(config.threshold_roi, size_nm, both, "evaluate.threshold_roi"))
    for name, region in config.regions.items():
        box = region_box(region.box, size_nm, both, f"evaluate.regions.{name}")
        mask = None if region.mask is None else _mask(experiment, region.mask, grid, name)
        found[f"{NAMED}{name}"] = Region(box, mask, region.mask)
    return found


def named(regions: Mapping[str, Region]) -> dict[str, Region]:
    """Those of [evaluate.regions], by the name of their table."""
    return {name.removeprefix(NAMED): region for name, region in regions.items() if name.startswith(NAMED)}


def _mask(experiment: Experiment, dataset: str, grid: Geometry, name: str) -> Volume:
    path = experiment.layout.target_volume
    if not (path / dataset).exists():
        raise MissingInput(
            f"the mask of region {name} is not there",
            where=path / dataset,
            fix=f"give evaluate.regions.{name}.mask a dataset of the target volume",
        )
    return open_volume(path, dataset, grid)
