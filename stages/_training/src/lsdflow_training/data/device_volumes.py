"""Training volumes in the memory of the training device, and the patches that are made of them there.

A patch is an index into the arrays on the device: neither a file nor main memory is read, and of a batch only what is
drawn comes from the host. Volumes that do not fit into a quarter of the device's free memory stay in main memory, or in
their files (see volume_arrays); their crops are copied to the device.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from lsdflow_contract.geometry import Box
from lsdflow_network.precision import memory_format
from lsdflow_training.augmentation.device import apply_step, changed
from lsdflow_training.data.draw import Drawn
from lsdflow_training.data.patch import Patch
from lsdflow_training.data.volume_arrays import NAMES, Name, VolumeArrays
from lsdflow_training.settings import TrainingSettings
from lsdflow_training.targets.boundaries import compact_ids
from lsdflow_training.targets.torch_targets import make_targets

LOG = logging.getLogger("lsdflow.training")
DEVICE_SHARE = 0.25  # of the free memory of a GPU, for all volumes of a training
Crops = Mapping[Name, npt.NDArray[Any]]


class DeviceVolume:
    """One volume. keep: on the device (`kept`), labels as int32 with ids from 1, and no longer in main memory."""

    def __init__(self, arrays: VolumeArrays, device: torch.device, keep: bool) -> None:
        self._arrays, self._device = arrays, device
        self.kept: dict[str, Tensor] = {}
        if keep:
            whole = {name: _fewer_bytes(name, arrays.read(name, arrays.boxes[name])) for name in NAMES}
            self.kept = {name: torch.from_numpy(array).to(device) for name, array in whole.items()}
            arrays.kept = {}

    def read(self, boxes: Mapping[str, Box]) -> Crops:
        """The crops that must come from main memory or files."""
        return {} if self.kept else {name: _fewer_bytes(name, self._arrays.read(name, boxes[name])) for name in NAMES}

    def crops(self, boxes: Mapping[str, Box], read: Crops) -> dict[str, Tensor]:
        """Raw (float32, 0 to 1), labels and mask in their boxes, with 0 around the volume, on the device."""
        found: dict[str, Tensor] = {
            name: self._cut(name, boxes[name]) if self.kept else to_device(read[name], self._device) for name in NAMES
        }
        return {**found, "raw": found["raw"].to(torch.float32) * self._arrays.scale}

    def _cut(self, name: str, box: Box) -> Tensor:
        place = self._arrays.boxes[name]
        part = place.intersect(box)
        ends = zip(part.begin_vox, part.end_vox, box.begin_vox, box.end_vox, strict=True)
        missing = [(begin - low, high - end) for begin, end, low, high in ends]
        if part.is_empty:
            return torch.zeros(box.shape_vox, dtype=self.kept[name].dtype, device=self._device)
        inside = self.kept[name][part.slices(place.begin_vox)]
        return functional.pad(inside, [n for pair in reversed(missing) for n in pair])


def device_volumes(opened: Sequence[VolumeArrays], device: torch.device) -> list[DeviceVolume]:
    """The volumes, in their order those on the device that fit there; on a CPU those that fit in main memory."""
    free = DEVICE_SHARE * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else float("inf")
    volumes = []
    for arrays in opened:
        keep = bool(arrays.kept) and arrays.nbytes <= free
        free -= arrays.nbytes if keep else 0
        volumes.append(DeviceVolume(arrays, device, keep))
        if not keep:
            LOG.warning("training volume %s does not fit on the device: its crops are copied there", arrays.name)
    LOG.info("%d of %d training volumes are on the device", sum(bool(v.kept) for v in volumes), len(volumes))
    return volumes


def _fewer_bytes(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array; of labels, ids from 1 as int32, in the order of the ids."""
    return compact_ids(array).astype(np.int32) if name == "labels" else array


@torch.no_grad()
def make_patch(drawn: Drawn, volumes: dict[str, Tensor], settings: TrainingSettings) -> Patch:
    """The patch that the gunpowder pipeline makes of the same batch; volumes: the crops of what was drawn."""
    for step in drawn.steps:
        volumes = apply_step(step, volumes)
    raw = volumes["raw"]
    for change in drawn.changes:
        raw = changed(raw, change)
    raw = raw * 2 - 1
    begin = drawn.labels_box.begin_vox
    output = Box((0, 0, 0), settings.shapes.output_vox).translate((-begin[0], -begin[1], -begin[2]))
    made = make_targets(volumes["labels"], volumes["mask"], output, settings.targets, settings.augmentation.anisotropic)
    return Patch(
        raw=raw[None, None].contiguous(memory_format=memory_format(raw.device)),
        targets={name: value[None] for name, value in made.targets.items()},
        weights={name: value[None] for name, value in made.weights.items()},
        labels=made.labels[output.slices()],
        mask=volumes["mask"][output.slices()],
    )


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A copy on the device; the caller may overwrite the array as soon as this returns."""
    here = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cpu":
        return here.clone()
    return here.pin_memory().to(device, non_blocking=True)
