"""Coarser levels for the viewer: the volumes of an OME-NGFF export of the same data, shown in place of those on disk.

A bare array has one level, so a viewer that shows a large volume from afar reads all of its chunks. An export
(`lsdflow export ome`) has every volume in several levels, the finest with the voxels of the experiment.
"""

from __future__ import annotations

import logging
from pathlib import Path

from lsdflow_contract.errors import BadData, MissingInput, OutputConflict
from lsdflow_contract.experiment import Experiment
from lsdflow_runtime.io.volumes import open_volume
from lsdflow_view.export.layers import USUAL, open_layer
from lsdflow_view.export.ngff_metadata import finished_layers, image_folder

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
