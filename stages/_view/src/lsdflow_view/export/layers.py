"""The volumes of an experiment that can be exported: the outputs of finished stages, as their manifests name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lsdflow_contract.arrays import LABELS, RAW
from lsdflow_contract.errors import MissingInput, UsageError
from lsdflow_contract.experiment import Experiment, did_you_mean
from lsdflow_contract.manifest import read_manifest
from lsdflow_runtime.io.volumes import Volume, open_volume
from lsdflow_view.export.downsample import Reduction, mean_of_bins, mode_of_bins

Kind = Literal["image", "labels"]

# layer: stage, its output, dataset in it (empty if the output is the array itself), kind
_KNOWN: dict[str, tuple[str, str, str, Kind]] = {
    "raw": ("prepare", "target", RAW.dataset, "image"),
    "lsds": ("predict", "lsds", "", "image"),
    "affinities": ("predict", "affs", "", "image"),
    "fragments": ("watershed", "fragments", "", "labels"),
    "segmentation": ("segment", "segmentation", "", "labels"),
    "truth": ("prepare", "target", LABELS.dataset, "labels"),
}
LAYERS = tuple(_KNOWN)
# Layers that are exported by default. Network outputs are not: ten times the size of the raw data, and rarely viewed.
USUAL = ("raw", "fragments", "segmentation", "truth")


@dataclass(frozen=True)
class Layer:
    """An open volume to export. `identity` names the result that it holds."""

    name: str
    kind: Kind
    volume: Volume
    identity: str

    @property
    def reduction(self) -> Reduction:
        """How a coarser level is computed."""
        return mean_of_bins if self.kind == "image" else mode_of_bins


def open_layers(experiment: Experiment, named: tuple[str, ...]) -> tuple[Layer, ...]:
    """The named layers; if none is named, those of the usual layers that exist.

    Raises UsageError (2) for an unknown name, MissingInput (66) for a layer that no finished stage has written.
    """
    unknown = [name for name in named if name not in _KNOWN]
    if unknown:
        raise UsageError("unknown layer", where="--layer", found=unknown[0], fix=did_you_mean(unknown[0], LAYERS))
    if named:
        return tuple(open_layer(experiment, name) for name in LAYERS if name in named)
    there = tuple(open_layer(experiment, name) for name in USUAL if _is_there(experiment, name))
    return there or (open_layer(experiment, "raw"),)


def open_layer(experiment: Experiment, name: str) -> Layer:
    """One layer. Raises MissingInput (66) if no finished stage has written it."""
    stage, output, dataset, kind = _KNOWN[name]
    manifest = read_manifest(experiment.layout, stage)
    container, inside = manifest.output_array(experiment.layout, output)
    return Layer(name, kind, open_volume(container, dataset or inside), manifest.identity)


def _is_there(experiment: Experiment, name: str) -> bool:
    try:
        open_layer(experiment, name)
    except MissingInput:
        return False
    return True
