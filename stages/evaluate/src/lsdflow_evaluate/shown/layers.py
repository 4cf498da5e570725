"""The volumes that the report shows and the viewer opens: those that exist, each in its own place."""

from __future__ import annotations

from pathlib import Path

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.manifest import Manifest
from lsdflow_contract.shown_volumes import Placed, ShownVolume, shown_volumes
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.report.data import Picture
from lsdflow_evaluate.shown.pictures import central_planes, picture_of
from lsdflow_runtime.io.volumes import Volume, open_volume

MAP = "lsd_error"


def layers(experiment: Experiment, config: EvaluateConfig, result: Manifest | None = None) -> tuple[ShownVolume, ...]:
    """All volumes that exist, in the order in which they are made.

    result: the manifest of the scores that are shown, which need not be the current one; its map of LSD errors is.
    """
    shown = shown_volumes(experiment.layout, config.truth_dataset)
    if result is None:
        return shown
    found = {volume.name: volume for volume in shown if volume.name != MAP}
    if MAP in result.outputs:
        truth = found.pop("truth", None)
        found[MAP] = ShownVolume(MAP, *result.output_array(experiment.layout, MAP))
        found |= {"truth": truth} if truth else {}
    return tuple(volume for volume in found.values() if volume.exists)


def open_layers(shown: tuple[ShownVolume, ...], grid: Geometry) -> dict[str, Volume]:
    """The layers, addressed on the target's grid."""
    return {layer.name: open_volume(layer.container, layer.dataset, grid) for layer in shown}


def shown_box(volumes: dict[str, Volume]) -> Box:
    """What the pictures are the middle of: the most finished volume that exists. MissingInput if there is none."""
    for name in ("segmentation", "fragments", "affinities", "raw"):
        if name in volumes:
            return volumes[name].box
    raise MissingInput("there is no volume to show", fix="run prepare first")


def pictures(volume: Volume, name: str, box: Box, grid: Geometry, edge_vox: int) -> tuple[Picture, ...]:
    """The three central planes of one layer; 0 outside its own box."""
    planes = central_planes(box, edge_vox)
    return tuple(picture_of(name, volume.read(p.box, outside="zero"), p, grid.voxel_size_nm) for p in planes)


def places_in(root: Path, shown: tuple[ShownVolume, ...], volumes: dict[str, Volume]) -> dict[str, Placed]:
    """For neuroglancer: by name, the path inside the experiment folder and the place of those that were opened."""
    return {
        layer.name: Placed(
            str(layer.folder.relative_to(root)), volumes[layer.name].geometry, volumes[layer.name].array_axes
        )
        for layer in shown
        if layer.name in volumes
    }
