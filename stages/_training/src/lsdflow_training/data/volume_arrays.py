"""Raw, labels and mask of the training volumes, from which patches are cut: kept in memory, or read for each patch.

The volumes that fit are read once, before data workers are forked; workers share them, and a patch is an index into
arrays. Volumes that do not fit into a quarter of the free memory, in their order, are read from their files for each
patch. Both ways give the same bits.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from gunpowder.ext import ZarrFile

from lsdflow_command.machine import free_memory_bytes
from lsdflow_contract.arrays import LABELS, MASK, RAW, MaskState
from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Box
from lsdflow_training.data.volumes import Source, TrainingVolume
from lsdflow_training.processes.ranks import ranks_of_environment
from lsdflow_training.settings import Targets

LOG = logging.getLogger("lsdflow.training")
Name = Literal["raw", "labels", "mask"]
NAMES: tuple[Name, ...] = ("raw", "labels", "mask")
DATASETS = {"raw": RAW.dataset, "labels": LABELS.dataset, "mask": MASK.dataset}
GREATEST = {"uint8": 255, "uint16": 256 * 256 - 1, "float32": 1}  # raw value that counts as 1
KEPT_SHARE = 0.25  # of the free memory, for all volumes of a training; reading them needs more for a while
SECTIONS_AT_ONCE = 32
Labels = npt.NDArray[np.unsignedinteger]
States = npt.NDArray[np.uint8]


class VolumeArrays:
    """The arrays of one volume as they are trained: ignored ids are label 0, and the mask has all that is ignored.

    inside, outside: voxels outside of, or within this box are ignored. boxes: of the arrays, in voxels of raw. scale:
    raw times this is 0 to 1. kept: the arrays in memory; empty if they are read from the files. Raises BadData unless
    raw is uint8, uint16 or float32.
    """

    def __init__(
        self, volume: TrainingVolume, targets: Targets, *, inside: Box | None = None, outside: Box | None = None
    ) -> None:
        self.name, self._targets = volume.name, targets
        self.boxes: Mapping[str, Box] = {
            "raw": volume.raw, "labels": volume.labels, "mask": volume.mask or volume.labels
        }  # fmt: skip
        self._inside, self._outside = inside, outside
        with ZarrFile(str(volume.path), mode="r") as stored:
            present = NAMES if volume.mask else NAMES[:2]
            self._stored: Mapping[str, Any] = {name: stored[DATASETS[name]] for name in present}
        self.dtypes = {name: self._stored[name].dtype if name in self._stored else np.dtype(np.uint8) for name in NAMES}
        if self.dtypes["raw"].name not in GREATEST:
            raise BadData(
                "raw data of this type cannot be trained on",
                where=volume.path,
                wanted=", ".join(GREATEST),
                found=self.dtypes["raw"].name,
            )
        self.scale = 1.0 / GREATEST[self.dtypes["raw"].name]
        self.kept: dict[str, npt.NDArray[Any]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays in memory."""
        return sum(self.boxes[name].size * self.dtypes[name].itemsize for name in NAMES)

    def keep(self) -> None:
        """Read all arrays once, and keep them."""
        self.kept = {name: self.read(name, self.boxes[name]) for name in NAMES}

    def read(self, name: Name, box: Box) -> npt.NDArray[Any]:
        """A copy of the voxels in `box`, (z, y, x), in the type of the array; 0 (for the mask: ignored) outside."""
        part = box.intersect(self.boxes[name])
        if name in self.kept:
            found = self.kept[name][part.slices(self.boxes[name].begin_vox)]
        elif name == "mask":
            found = self._states(part)
        else:
            found = self._stored[name][part.slices(self.boxes[name].begin_vox)]
            if name == "labels" and self._targets.ignore_ids:
                found[np.isin(found, np.array(self._targets.ignore_ids, found.dtype))] = 0
        if part == box and name not in self.kept:
            return found
        whole = np.zeros(box.shape_vox, self.dtypes[name])
        whole[part.slices(box.begin_vox)] = found
        return whole

    def trained(self, box: Box) -> npt.NDArray[np.bool_]:
        """Where the mask is not IGNORE, (z, y, x); reads a few sections at a time."""
        found = np.empty(box.shape_vox, np.bool_)
        (begin, y, x), (depth, height, width) = box.begin_vox, box.shape_vox
        for z in range(0, depth, SECTIONS_AT_ONCE):
            sections = Box((begin + z, y, x), (min(SECTIONS_AT_ONCE, depth - z), height, width))
            found[z : z + SECTIONS_AT_ONCE] = self.read("mask", sections) != MaskState.IGNORE
        return found

    def _states(self, box: Box) -> States:
        """The mask of a box that is within it, with all that is ignored."""
        states = np.full(box.shape_vox, MaskState.TRAIN, np.uint8)
        if "mask" in self._stored:
            states = self._stored["mask"][box.slices(self.boxes["mask"].begin_vox)]
        if self._targets.ignore_ids or self._targets.sparse_labels:
            labels = np.zeros(box.shape_vox, self.dtypes["labels"])
            part = box.intersect(self.boxes["labels"])
            labels[part.slices(box.begin_vox)] = self._stored["labels"][part.slices(self.boxes["labels"].begin_vox)]
            states = states_of_labels(labels, states, self._targets.ignore_ids, self._targets.sparse_labels)
        if self._inside is not None:
            ignored = np.ones(box.shape_vox, np.bool_)
            ignored[box.intersect(self._inside).slices(box.begin_vox)] = False
            states[ignored] = MaskState.IGNORE
        if self._outside is not None:
            states[box.intersect(self._outside).slices(box.begin_vox)] = MaskState.IGNORE
        return states


def states_of_labels(labels: Labels, states: States, ignore_ids: tuple[int, ...], sparse: bool) -> States:
    """Mask states (same shape) with ignore_ids, and if `sparse` TRAIN voxels without a label, set to IGNORE."""
    ignored = np.isin(labels, np.array(ignore_ids, labels.dtype))
    if sparse:
        ignored |= (labels == 0) & (states == MaskState.TRAIN)
    return np.where(ignored, np.uint8(MaskState.IGNORE), states)


def open_arrays(sources: Sequence[Source], targets: Targets) -> list[VolumeArrays]:
    """The arrays of all volumes without their validation slabs; those that fit in memory are read now."""
    # the processes of a node share its memory
    free = KEPT_SHARE * free_memory_bytes() / ranks_of_environment(os.environ).local_world_size
    opened = []
    for source in sources:
        arrays = VolumeArrays(source.volume, targets, outside=source.validation)
        if arrays.nbytes <= free:
            free -= arrays.nbytes
            arrays.keep()
        else:
            LOG.warning(
                "training volume %s is read from its files for each patch: it takes %.1f GB of memory, and volumes may "
                "take %.0f %% of what is free, of which %.1f GB are left",
                *(arrays.name, arrays.nbytes / 1e9, 100 * KEPT_SHARE, free / 1e9),
            )
        opened.append(arrays)
    return opened
