"""A patch on the training device: the input of one forward pass, from a batch of the pipeline or made on the device."""

from __future__ import annotations

from dataclasses import dataclass

import gunpowder as gp
import numpy as np
import torch
from torch import Tensor

from lsdflow_network.precision import memory_format
from lsdflow_training.data.pipeline import Keys


@dataclass(frozen=True)
class Patch:
    """One batch on the device: raw (1,1,z,y,x) in [-1,1]; targets and weights by output, (1,c,z,y,x) float32.

    labels, mask: those of the output (z,y,x), which only snapshots need.
    """

    raw: Tensor
    targets: dict[str, Tensor]
    weights: dict[str, Tensor]
    labels: Tensor | None = None
    mask: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """All tensors."""
        more = [tensor for tensor in (self.labels, self.mask) if tensor is not None]
        return [self.raw, *self.targets.values(), *self.weights.values(), *more]


def to_patch(batch: gp.Batch | Patch, keys: Keys, device: torch.device) -> Patch:
    """Move a batch of the pipeline to the device; a patch is already there."""
    if isinstance(batch, Patch):
        return batch
    pairs = {"lsds": (keys.lsds, keys.lsds_weight), "affs": (keys.affs, keys.affs_weight)}
    present = {name: pair for name, pair in pairs.items() if pair[0] in batch.arrays}
    raw = _tensor(batch[keys.raw].data, device)[None, None].contiguous(memory_format=memory_format(device))
    return Patch(
        raw=raw,
        targets={name: _tensor(batch[target].data, device)[None] for name, (target, _) in present.items()},
        weights={name: _tensor(batch[weight].data, device)[None] for name, (_, weight) in present.items()},
        labels=torch.from_numpy(np.ascontiguousarray(batch[keys.labels].data)),
        mask=torch.from_numpy(np.ascontiguousarray(batch[keys.mask].data)),
    )


def _tensor(data: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32)).to(device, non_blocking=True)
