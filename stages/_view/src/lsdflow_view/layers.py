"""The layers that a viewer shows: the volumes of an experiment on disk, and the segmentation at every threshold.

A bare array has one level, so a viewer that shows a large volume from afar reads all of its chunks. An export
(`lsdflow export ome`) has every volume in several levels, the finest with the voxels of the experiment; its images
replace the volumes of the same data.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lsdflow_contract.arrays import LABELS
from lsdflow_contract.errors import BadData, MissingInput, OutputConflict
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.failed_blocks import FailedBlock, failed_blocks_of_results
from lsdflow_contract.geometry import Nm3
from lsdflow_contract.lut import KnownLut, find_luts, luts_of
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_contract.viewer_state import Steps, ViewerLayer, neuroglancer_state
from lsdflow_contract.viewer_volumes import Placed, ViewerVolume, viewer_layers, viewer_volumes
from lsdflow_runtime.io.volumes import Volume, open_volume
from lsdflow_view.export.levels import USUAL, open_layer
from lsdflow_view.export.ngff import finished_layers, image_folder
from lsdflow_view.relabelled import AXIS, LutCache, RelabelledImage, RelabelledVolume, relabelled_image

LOG = logging.getLogger("lsdflow.view")


def exported_images(experiment: Experiment, export: Path) -> dict[str, Path]:
    """The folder of the multiscale image of each volume in `export`; images of other data are skipped with a warning.

    Raises MissingInput (66) if the export is not finished, OutputConflict (73) if no image is of the current results.
    """
    finished = finished_layers(export)
    if finished is None:
        raise MissingInput(
            "no finished OME-NGFF export", where=export, fix="lsdflow export ome DIR FOLDER, then name that FOLDER"
        )
    there = {name: image_folder(export, name, "labels") for name in USUAL if name in finished}
    wrong = {name: what for name, folder in there.items() if (what := _what_is_wrong(experiment, name, folder))}
    if wrong.keys() == there.keys():
        found = "; ".join(f"{name} {what}" for name, what in wrong.items())
        raise OutputConflict(
            "nothing in the export can be shown for this experiment",
            where=export,
            wanted=f"an export of {experiment.layout.root} as it is now",
            found=found or "no volume that a viewer shows in levels",
            fix="export again, to a new folder: lsdflow export ome DIR FOLDER",
        )
    for name, what in wrong.items():
        LOG.warning("%s: %s %s; what the experiment has of it is shown in one level", export, name, what)
    return {name: folder for name, folder in there.items() if name not in wrong}


def _what_is_wrong(experiment: Experiment, name: str, folder: Path) -> str:
    """The reason why the image does not show the current volume of the experiment; empty if it does."""
    try:
        exported = open_volume(folder, "0").provenance.get("inputs", {})
    except (MissingInput, BadData) as error:
        return f"cannot be read in the export ({error.what})"
    try:
        same = exported.get(name) == open_layer(experiment, name).identity
    except (MissingInput, BadData):
        return "is not in the experiment"
    return "" if same else "was exported from other data"


@dataclass(frozen=True)
class ViewerLayers:
    """Open volumes by name, and the segmentations at all thresholds by merge function.

    images: multiscale images that neuroglancer shows instead of the volumes of the same name; levelled: the same for
    the segmentations of a merge function; failed: blocks that are missing in finished stages.
    """

    volumes: Mapping[str, Volume]
    relabelled: Mapping[str, RelabelledVolume]
    chosen: tuple[str, float] | None
    images: Mapping[str, Path] = field(default_factory=dict)
    levelled: Mapping[str, RelabelledImage] = field(default_factory=dict)
    failed: tuple[FailedBlock, ...] = ()

    @cached_property
    def folders(self) -> dict[str, Path]:
        """The folder of each volume or of its image. Nothing else on disk is served."""
        return {name: Path(volume.where) for name, volume in self.volumes.items()} | dict(self.images)

    def layers(self) -> tuple[ViewerLayer, ...]:
        """The layers of the viewer, with paths relative to the served address."""
        plain = viewer_layers(
            {name: Placed(f"volumes/{name}", v.geometry, v.array_axes) for name, v in self.volumes.items()}
        )
        stepped = [self._stepped(merge_function) for merge_function in self.relabelled]
        # the slider's layer already shows the written segmentation as one of its steps
        hidden = {"segmentation"} if any(layer.visible for layer in stepped) else set()
        visible = (replace(layer, visible=layer.visible and layer.name not in hidden) for layer in plain)
        return (*(replace(layer, places_itself=layer.name in self.images) for layer in visible), *stepped)

    def thresholds_file(self, merge_function: str, parts: Sequence[str]) -> bytes | None:
        """A file of the array (or image) of all thresholds of a merge function; None if there is none."""
        relabelled: Mapping[str, RelabelledVolume | RelabelledImage] = {**self.relabelled, **self.levelled}
        return relabelled[merge_function].file(parts) if merge_function in relabelled else None

    def state(self, address: str, position_nm: Nm3 | None = None) -> dict[str, Any]:
        """The state of neuroglancer for a server at `address`."""
        return neuroglancer_state(self.layers(), address, position_nm, self.failed)

    def _stepped(self, merge_function: str) -> ViewerLayer:
        """One layer for all thresholds of a merge function, opened at the chosen threshold or at the middle one."""
        volume = self.relabelled[merge_function]
        thresholds = [lut.threshold for lut in volume.luts]
        is_chosen = self.chosen is not None and self.chosen[0] == merge_function
        wanted = self.chosen[1] if self.chosen and is_chosen else thresholds[len(thresholds) // 2]
        first = min(range(len(thresholds)), key=lambda i: abs(thresholds[i] - wanted))
        axis = AXIS if is_chosen or len(self.relabelled) == 1 else f"{AXIS}_{merge_function}"
        placed = Placed(f"thresholds/{merge_function}", volume.fragments.geometry, (AXIS, "z", "y", "x"))
        (layer,) = viewer_layers({f"thresholds {merge_function}": placed})
        steps = Steps(axis, tuple(f"{t:.4g}" for t in thresholds), first)
        return replace(layer, steps=steps, visible=is_chosen, places_itself=merge_function in self.levelled)


def open_viewer_layers(experiment: Experiment, export: Path | None = None) -> ViewerLayers:
    """Open all volumes that exist, finished or not, and their coarser levels if an export is named.

    Raises MissingInput (66) if there is no volume yet, and the errors of `exported_images`.
    """
    existing = viewer_volumes(experiment.layout, _truth_dataset(experiment), others=True)
    if not existing:
        raise MissingInput(
            "there is no volume to show", where=experiment.layout.root, fix="run prepare first: lsdflow run DIR"
        )
    volumes = {volume.name: _opened(volume) for volume in existing}
    images = {} if export is None else exported_images(experiment, export)
    relabelled, chosen = _relabelled(experiment, volumes), _chosen(_manifest(experiment, "segment"))
    levelled, failed = _levelled(relabelled, images.get("fragments")), failed_blocks_of_results(experiment.layout)
    return ViewerLayers(volumes, relabelled, chosen, images, levelled, failed)


def _relabelled(experiment: Experiment, volumes: Mapping[str, Volume]) -> dict[str, RelabelledVolume]:
    """Segmentations by merge function, with the lookup tables that belong to the current fragments."""
    watershed = _manifest(experiment, "watershed")
    if watershed is None or "fragments" not in volumes:
        return {}
    tables: dict[str, list[KnownLut]] = {}
    segment = _manifest(experiment, "segment")
    if segment is not None and segment.inputs.get("watershed") != watershed.identity:
        segment = None
    graph = segment.inputs.get("agglomerate", "") if segment else ""
    for lut in find_luts(luts_of(experiment.layout, segment), watershed.identity, graph):
        tables.setdefault(lut.merge_function, []).append(lut)
    cache = LutCache()
    return {name: RelabelledVolume(volumes["fragments"], tuple(luts), cache) for name, luts in tables.items()}


def _levelled(relabelled: Mapping[str, RelabelledVolume], image: Path | None) -> dict[str, RelabelledImage]:
    """Multiscale segmentations by merge function, if the fragments were exported."""
    if image is None:
        return {}
    return {name: relabelled_image(image, volume.luts, volume.cache) for name, volume in relabelled.items()}


def _opened(volume: ViewerVolume) -> Volume:
    return open_volume(volume.container, volume.dataset)


def _manifest(experiment: Experiment, stage: str) -> Manifest | None:
    """None if the stage has not finished."""
    try:
        return read_manifest(experiment.layout, stage)
    except MissingInput:
        return None


def _chosen(segment: Manifest | None) -> tuple[str, float] | None:
    if segment is None or not {"merge_function", "threshold"} <= segment.facts.keys():
        return None
    return str(segment.facts["merge_function"]), float(segment.facts["threshold"])


def _truth_dataset(experiment: Experiment) -> str:
    named = experiment.tables.get("evaluate", {}).get("truth_dataset", LABELS.dataset)
    return str(named)
