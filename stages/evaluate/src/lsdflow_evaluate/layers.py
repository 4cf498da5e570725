"""The volumes that the report shows and the viewer opens: those that exist, each in its own place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lsdflow_contract.arrays import AFFS, FRAGMENTS, LSDS, RAW, SEGMENTATION
from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.manifest import Manifest
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.pictures import central_planes, picture_of
from lsdflow_evaluate.report.data import Picture
from lsdflow_evaluate.report.neuroglancer import Kind, ViewerLayer
from lsdflow_runtime.volumes import Volume, open_volume

KINDS: dict[str, Kind] = {"raw": "image", "lsds": "lsds", "affinities": "affinities"}


@dataclass(frozen=True)
class Layer:
    """One volume of the experiment: its name in the report, its container and dataset."""

    name: str
    container: Path
    dataset: str

    @property
    def exists(self) -> bool:
        """True if the dataset is there."""
        return (self.container / self.dataset).exists()


def layers(experiment: Experiment, config: EvaluateConfig, manifests: dict[str, Manifest]) -> tuple[Layer, ...]:
    """All volumes that exist, in the order in which they are made."""
    layout = experiment.layout
    predicted = _prediction_container(experiment, manifests)
    known = [
        Layer("raw", layout.target_volume, RAW.dataset),
        *([Layer("lsds", predicted, LSDS.dataset), Layer("affinities", predicted, AFFS.dataset)] if predicted else []),
        Layer("fragments", layout.fragments, FRAGMENTS.dataset),
        Layer("segmentation", layout.segmentation, SEGMENTATION.dataset),
        Layer("truth", layout.target_volume, config.truth_dataset),
    ]
    return tuple(layer for layer in known if layer.exists)


def open_layers(shown: tuple[Layer, ...], grid: Geometry) -> dict[str, Volume]:
    """The layers, addressed on the target's grid."""
    return {layer.name: open_volume(layer.container, layer.dataset, grid) for layer in shown}


def shown_box(volumes: dict[str, Volume]) -> Box:
    """What the pictures are the middle of: the most finished volume that exists. MissingInput if there is none."""
    for name in ("segmentation", "fragments", "affinities", "raw"):
        if name in volumes:
            return volumes[name].box
    raise MissingInput("there is no volume to show", hint="run prepare first")


def pictures(volume: Volume, name: str, box: Box, grid: Geometry, edge_vox: int) -> tuple[Picture, ...]:
    """The three central planes of one layer; 0 outside its own box."""
    planes = central_planes(box, edge_vox)
    return tuple(picture_of(name, volume.read(p.box, outside="zero"), p, grid.voxel_size_nm) for p in planes)


def viewer_layers(root: Path, shown: tuple[Layer, ...], volumes: dict[str, Volume]) -> tuple[ViewerLayer, ...]:
    """The same layers for neuroglancer, by their path inside the experiment folder."""
    return tuple(
        ViewerLayer(
            name=layer.name,
            kind=KINDS.get(layer.name, "labels"),
            path=str((layer.container / layer.dataset).relative_to(root)),
            voxel_size_nm=volumes[layer.name].geometry.voxel_size_nm,
            offset_nm=volumes[layer.name].geometry.offset_nm,
            shape_vox=volumes[layer.name].geometry.shape_vox,
            visible=layer.name in ("raw", "segmentation"),
        )
        for layer in shown
        if layer.name in volumes
    )


def _prediction_container(experiment: Experiment, manifests: dict[str, Manifest]) -> Path | None:
    """The container that predict wrote, from its manifest: the folder above volumes/<name>."""
    outputs = manifests["predict"].outputs if "predict" in manifests else {}
    for path in outputs.values():
        return (experiment.layout.root / path).parents[len(Path(AFFS.dataset).parts) - 1]
    return None
