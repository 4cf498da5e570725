"""A patch on the training device: the input of one forward pass, from a batch of the pipeline or made on the device."""

from __future__ import annotations

from dataclasses import dataclass

import gunpowder as gp
import numpy as np
import torch
from torch import Tensor

from lsdflow_network.precision import memory_format
from lsdflow_training.data.pipeline import Keys
from lsdflow_training.targets.boundaries import compact_ids


@dataclass(frozen=True)
class Patch:
    """One batch on the device: raw (1,1,z,y,x) in [-1,1]; targets and weights by output, (1,c,z,y,x) float32."""

    raw: Tensor
    targets: dict[str, Tensor]
    weights: dict[str, Tensor]


@dataclass(frozen=True)
class DevicePatch:
    """A patch on the device, and labels and mask (z, y, x) of the output, which only snapshots need."""

    patch: Patch
    labels: Tensor
    mask: Tensor

    def as_batch(self, keys: Keys) -> gp.Batch:
        """The arrays of a snapshot, in main memory, under the keys of the gunpowder pipeline."""
        labels = self.labels.cpu().numpy()
        arrays = {
            keys.raw: self.patch.raw[0, 0].cpu().numpy(),
            keys.labels: compact_ids(labels.astype(np.uint64)),
            keys.mask: self.mask.cpu().numpy(),
        }
        for key, weight, name in ((keys.lsds, keys.lsds_weight, "lsds"), (keys.affs, keys.affs_weight, "affs")):
            if name in self.patch.targets:
                arrays[key] = self.patch.targets[name][0].cpu().numpy()
                arrays[weight] = self.patch.weights[name][0].cpu().numpy()
        batch = gp.Batch()
        for key, data in arrays.items():
            batch[key] = gp.Array(
                data, gp.ArraySpec(roi=gp.Roi((0,) * data.ndim, data.shape), voxel_size=(1,) * data.ndim)
            )
        return batch

    def tensors(self) -> list[Tensor]:
        """All tensors on the device."""
        return [self.patch.raw, *self.patch.targets.values(), *self.patch.weights.values(), self.labels, self.mask]


def to_patch(batch: gp.Batch, keys: Keys, device: torch.device) -> Patch:
    """Move a batch of the pipeline to the device; a DevicePatch is already there."""
    if isinstance(batch, DevicePatch):
        return batch.patch
    pairs = {"lsds": (keys.lsds, keys.lsds_weight), "affs": (keys.affs, keys.affs_weight)}
    present = {name: pair for name, pair in pairs.items() if pair[0] in batch.arrays}
    raw = _tensor(batch[keys.raw].data, device)[None, None].contiguous(memory_format=memory_format(device))
    return Patch(
        raw=raw,
        targets={name: _tensor(batch[target].data, device)[None] for name, (target, _) in present.items()},
        weights={name: _tensor(batch[weight].data, device)[None] for name, (_, weight) in present.items()},
    )


def _tensor(data: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32)).to(device, non_blocking=True)
