"""What evaluate reads of an experiment: volumes on the target's grid, lookup tables that fit the fragments, truth."""

from __future__ import annotations

from dataclasses import dataclass

from lsdflow_contract.errors import ContractMismatch, MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.lut import KnownLut, find_luts, luts_of
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_runtime.io.volumes import Volume, open_volume


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
            fix="run agglomerate and segment again",
        )
    fragments = open_volume(*watershed.output_array(experiment.layout, "fragments"), grid)
    folder = luts_of(experiment.layout, manifest)
    luts = find_luts(folder, watershed.identity, manifest.inputs.get("agglomerate", ""))
    if not luts:
        raise MissingInput("no lookup table of these fragments", where=folder, fix="run segment again")
    return Segmented(manifest, fragments, luts)
