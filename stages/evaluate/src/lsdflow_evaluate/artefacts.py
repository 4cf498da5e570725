"""What evaluate reads of an experiment: volumes on the target's grid, lookup tables that fit the fragments, truth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.arrays import FRAGMENTS, MASK, RAW, MaskState
from lsdflow_contract.errors import ContractMismatch, MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.lut import KnownLut, find_luts
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_evaluate.config import EvaluateConfig
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


@dataclass(frozen=True)
class Segmented:
    """A finished segmentation: manifest of segment, fragments, and every lookup table made of these fragments."""

    manifest: Manifest
    fragments: Volume
    luts: tuple[KnownLut, ...]

    @property
    def merge_function(self) -> str:
        """The merge function of the segmentation."""
        return str(self.manifest.facts["merge_function"])

    @property
    def threshold(self) -> float:
        """The threshold of the segmentation."""
        return float(self.manifest.facts["threshold"])


def target_grid(experiment: Experiment) -> Geometry:
    """The grid of the target raw: voxels of all stages count on it."""
    return open_volume(experiment.layout.target_volume, RAW.dataset).geometry


def open_truth(experiment: Experiment, config: EvaluateConfig, grid: Geometry) -> Truth | None:
    """The truth of the target; none if it has no such dataset."""
    path = experiment.layout.target_volume
    if not (path / config.truth_dataset).exists():
        return None
    mask = open_volume(path, MASK.dataset, grid) if (path / MASK.dataset).exists() else None
    return Truth(open_volume(path, config.truth_dataset, grid), mask)


def open_segmented(experiment: Experiment, grid: Geometry) -> Segmented:
    """What segment left. MissingInput if it has not finished, ContractMismatch if the fragments changed since."""
    manifest = read_manifest(experiment.layout, "segment")
    watershed = read_manifest(experiment.layout, "watershed")
    if manifest.inputs.get("watershed") != watershed.identity:
        raise ContractMismatch(
            "segmentation and fragments come from different runs",
            where=experiment.layout.manifest("segment"),
            wanted=f"fragments {watershed.identity[:12]}",
            found=f"segmentation of fragments {manifest.inputs.get('watershed', 'unknown')[:12]}",
            hint="run agglomerate and segment again",
        )
    fragments = open_volume(experiment.layout.fragments, FRAGMENTS.dataset, grid)
    luts = find_luts(experiment.layout.luts, watershed.identity)
    if not luts:
        raise MissingInput("no lookup table of these fragments", where=experiment.layout.luts, hint="run segment again")
    return Segmented(manifest, fragments, luts)
