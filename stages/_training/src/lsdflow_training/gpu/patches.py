"""Make the patch of a batch from its crops on the training device: deform, turn, change intensities, add targets.

The order and the values are those of the gunpowder pipeline. On a GPU these are about sixty kernels over whole volumes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Box
from lsdflow_network.precision import memory_format
from lsdflow_training.gpu.crops import Crops
from lsdflow_training.gpu.deformation import apply_step
from lsdflow_training.gpu.intensities import changed
from lsdflow_training.patch import DevicePatch, Patch
from lsdflow_training.recipe import Recipe
from lsdflow_training.targets.torch_targets import make_targets

GREATEST = {"uint8": 255, "uint16": 256 * 256 - 1, "float32": 1}


@torch.no_grad()
def make_patch(crops: Crops, recipe: Recipe, device: torch.device) -> DevicePatch:
    """The patch that the gunpowder pipeline makes of the same batch. Raises BadData unless raw is u8, u16 or f32."""
    volumes = {
        "raw": to_device(crops.raw, device).to(torch.float32) * (1 / _greatest(crops.raw)),
        "labels": to_device(crops.labels, device),
        "mask": to_device(crops.mask, device),
    }
    for step in crops.steps:
        volumes = apply_step(step, volumes)
    raw = changed(volumes["raw"], crops.changes) * 2 - 1
    begin = crops.labels_box.begin_vox
    output = Box((0, 0, 0), recipe.shapes.output_vox).translate((-begin[0], -begin[1], -begin[2]))
    made = make_targets(volumes["labels"], volumes["mask"], output, recipe.targets, recipe.augmentation.anisotropic)
    patch = Patch(
        raw=raw[None, None].contiguous(memory_format=memory_format(device)),
        targets={name: value[None] for name, value in made.targets.items()},
        weights={name: value[None] for name, value in made.weights.items()},
    )
    return DevicePatch(patch, made.labels[output.slices()], volumes["mask"][output.slices()])


def to_device(array: npt.NDArray[Any], device: torch.device) -> Tensor:
    """A copy on the device; the caller may overwrite the array as soon as this returns."""
    here = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cpu":
        return here.clone()
    return here.pin_memory().to(device, non_blocking=True)


def _greatest(raw: npt.NDArray[Any]) -> int:
    """The raw value that counts as 1, as in gunpowder's Normalize."""
    if raw.dtype.name not in GREATEST:
        raise BadData("raw data of this type cannot be trained on", wanted=", ".join(GREATEST), found=raw.dtype.name)
    return GREATEST[raw.dtype.name]
