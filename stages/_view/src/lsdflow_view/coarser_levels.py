"""Coarser levels for the viewer: the volumes of an OME-NGFF export of the same data, shown in place of those on disk.

A bare array has one level, so a viewer that shows a large volume from afar reads all of its chunks. An export
(`lsdflow export ome`) has every volume in several levels, the finest with the voxels of the experiment.
"""

from __future__ import annotations

import logging
from pathlib import Path

from lsdflow_contract.errors import BadData, MissingInput, NotOurs
from lsdflow_contract.experiment import Experiment
from lsdflow_runtime.volumes import open_volume
from lsdflow_view.export.layers import USUAL, open_layer
from lsdflow_view.export.ngff_metadata import finished_layers, image_folder

LOG = logging.getLogger("lsdflow.view")


def exported_images(experiment: Experiment, export: Path) -> dict[str, Path]:
    """The folder of the multiscale image of each volume in `export`; those of other data are left out, and told.

    Raises MissingInput (66) if it is no finished export, NotOurs (73) if nothing in it is of this experiment as it is.
    """
    finished = finished_layers(export)
    if finished is None:
        raise MissingInput(
            "no finished OME-NGFF export", where=export, hint="lsdflow export ome DIR FOLDER, then name that FOLDER"
        )
    there = {name: image_folder(export, name, "labels") for name in USUAL if name in finished}
    same = {name: folder for name, folder in there.items() if _is_of(experiment, name, folder)}
    if not same:
        raise NotOurs(
            "the export is of other data",
            where=export,
            wanted=f"an export of {experiment.layout.root} as it is now",
            found=", ".join(there) or "no volume that a viewer shows in levels",
            hint="export again, to a new folder: lsdflow export ome DIR FOLDER",
        )
    for name in there.keys() - same.keys():
        LOG.warning("%s: %s was exported from other data; it is shown from the experiment, in one level", export, name)
    return same


def _is_of(experiment: Experiment, name: str, folder: Path) -> bool:
    """True if the finest level was made from the volume that the experiment holds now."""
    try:
        told = open_volume(folder, "0").provenance.get("inputs", {})
        return bool(told.get(name) == open_layer(experiment, name).identity)
    except (MissingInput, BadData):
        return False
