"""The layers that a viewer shows: the volumes of an experiment on disk, and the segmentation at every threshold.

A bare array has one level, so a viewer that shows a large volume from afar reads all of its chunks. An export
(`lsdflow export ome`) has every volume in several levels, the finest with the voxels of the experiment; its images
replace the volumes of the same data. An export is also shown by itself.
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
from lsdflow_contract.files import read_json
from lsdflow_contract.geometry import Nm3
from lsdflow_contract.lut import KnownLut, find_luts, luts_of
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_contract.viewer_state import Steps, ViewerLayer, neuroglancer_state
from lsdflow_contract.viewer_volumes import Placed, ViewerVolume, viewer_layers, viewer_volumes
from lsdflow_runtime.formats.folders import json_object
from lsdflow_runtime.formats.precomputed import open_precomputed
from lsdflow_runtime.io.volumes import Volume, open_volume
from lsdflow_view.export.levels import LAYERS, USUAL, open_layer
from lsdflow_view.export.ngff import finished_layers, image_folder, open_levels
from lsdflow_view.export.passes import export_record
from lsdflow_view.meshes import SHOWN, LabelLevel, Meshes
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
    the segmentations of a merge function; failed: blocks that are missing in finished stages. segmentation: its levels,
    from which meshes are made; precomputed: layers in `images` that are no volumes; is_export: others may read it.
    """

    volumes: Mapping[str, Volume]
    relabelled: Mapping[str, RelabelledVolume]
    chosen: tuple[str, float] | None
    images: Mapping[str, Path] = field(default_factory=dict)
    levelled: Mapping[str, RelabelledImage] = field(default_factory=dict)
    failed: tuple[FailedBlock, ...] = ()
    segmentation: tuple[LabelLevel, ...] = ()
    precomputed: tuple[ViewerLayer, ...] = ()
    is_export: bool = False
    position_nm: Nm3 | None = None

    @cached_property
    def folders(self) -> dict[str, Path]:
        """The folder of each volume or of its image. Nothing else on disk is served."""
        return {name: Path(volume.where) for name, volume in self.volumes.items()} | dict(self.images)

    @cached_property
    def meshes(self) -> Meshes:
        """The meshes of the segmentation, which the 3-D panel shows."""
        return Meshes(self.segmentation, self.position_nm)

    def layers(self) -> tuple[ViewerLayer, ...]:
        """The layers of the viewer, with paths relative to the served address."""
        plain = viewer_layers(
            {name: Placed(f"volumes/{name}", v.geometry, v.array_axes) for name, v in self.volumes.items()}
        )
        stepped = [self._stepped(merge_function) for merge_function in self.relabelled]
        # the slider's layer already shows the written segmentation as one of its steps
        hidden = {"segmentation"} if any(layer.visible for layer in stepped) else set()
        visible = (replace(layer, visible=layer.visible and layer.name not in hidden) for layer in plain)
        placed = (replace(layer, places_itself=layer.name in self.images) for layer in visible)
        return (*placed, *stepped, *self.precomputed)

    def thresholds_file(self, merge_function: str, parts: Sequence[str]) -> bytes | None:
        """A file of the array (or image) of all thresholds of a merge function; None if there is none."""
        relabelled: Mapping[str, RelabelledVolume | RelabelledImage] = {**self.relabelled, **self.levelled}
        return relabelled[merge_function].file(parts) if merge_function in relabelled else None

    def state(self, address: str) -> dict[str, Any]:
        """The state of neuroglancer for a server at `address`."""
        first, *others = self.layers()
        layers = (first, *self.meshes.layers(), *others)
        return neuroglancer_state(layers, address, self.position_nm, self.failed)

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
    segmentation = _label_levels(volumes, images)
    return ViewerLayers(volumes, relabelled, chosen, images, levelled, failed, segmentation)


def open_export(folder: Path) -> ViewerLayers | None:
    """All layers of an export; None if the folder holds none.

    Raises BadData (65) or MissingInput (66) if one of its layers is damaged or lost, or if it has none.
    """
    record = export_record(folder)
    there = finished_layers(folder) if record is None else record["layers"]
    if there is None:
        return None
    names = [name for name in LAYERS if name in there]
    if not names:
        raise MissingInput("an export without layers", where=folder, wanted=", ".join(LAYERS), fix="export again")
    if record is not None:
        places = {name: folder / name for name in names}
        layers = tuple(_precomputed(name, place) for name, place in places.items())
        levels = () if any(layer.segments for layer in layers) else _scales(places)
        return ViewerLayers({}, {}, None, places, segmentation=levels, precomputed=layers, is_export=True)
    images = {name: image_folder(folder, name, "labels" if name in USUAL else "image") for name in names}
    volumes = {name: open_volume(place, "0") for name, place in images.items()}
    return ViewerLayers(volumes, {}, None, images, segmentation=_label_levels(volumes, images), is_export=True)


def _label_levels(volumes: Mapping[str, Volume], images: Mapping[str, Path]) -> tuple[LabelLevel, ...]:
    """The levels of the segmentation, finest first."""
    levels = open_levels(images["segmentation"]) if "segmentation" in images else [volumes.get("segmentation")]
    return tuple(LabelLevel(level.read, level.geometry, level.read_shape_vox) for level in levels if level)


def _scales(places: Mapping[str, Path]) -> tuple[LabelLevel, ...]:
    """The levels of the precomputed segmentation, finest first."""
    folders = [folder for name, folder in places.items() if name == "segmentation"]
    scales = [(folder, scale["key"]) for folder in folders for scale in read_json(folder / "info")["scales"]]
    opened = [open_precomputed(folder, key) for folder, key in scales]
    return tuple(LabelLevel(s.read, s.geometry(), s.chunk_shape_vox or s.shape_vox) for s in opened)


def _precomputed(name: str, folder: Path) -> ViewerLayer:
    """A layer of a precomputed export, with the largest segments that have meshes or skeletons."""
    info = read_json(folder / "info")
    (layer,) = viewer_layers({name: Placed(f"volumes/{name}", open_precomputed(folder).geometry(), ())})
    of_segments = json_object(folder / "segment_properties" / "info").get("inline", {}).get("ids", [])
    segments = tuple(int(n) for n in of_segments[:SHOWN]) if {"mesh", "skeletons"} & info.keys() else ()
    return replace(layer, form="precomputed", segments=segments, visible=layer.visible or bool(segments))


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
