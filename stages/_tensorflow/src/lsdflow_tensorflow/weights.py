"""Weights of convolutions in torch's layout and in TensorFlow's.

                      torch                 TensorFlow
    convolution       (out, in, z, y, x)    (z, y, x, in, out)
    its transpose     (in, out, z, y, x)    (z, y, x, out, in)
    bias              (out)                 (out)

The same permutation serves both kinds.  No kernel is flipped: both frameworks compute correlations.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lsdflow_contract.errors import BadData

KERNEL_DIMENSIONS = 5


def to_tensorflow(values: Tensor) -> npt.NDArray[np.float32]:
    """Convert a weight or bias from torch's layout to TensorFlow's, float32. Raises BadData unless 1 or 5 axes."""
    array = values.detach().cpu().numpy().astype(np.float32, copy=False)
    return np.ascontiguousarray(array.transpose(2, 3, 4, 1, 0) if _is_kernel(array.shape) else array)


def to_torch(values: npt.NDArray[np.float32]) -> Tensor:
    """The inverse of to_tensorflow, bit for bit."""
    array = values.transpose(4, 3, 0, 1, 2) if _is_kernel(values.shape) else values
    return torch.from_numpy(np.array(array, dtype=np.float32, order="C"))


def _is_kernel(shape: tuple[int, ...]) -> bool:
    if len(shape) not in (1, KERNEL_DIMENSIONS):
        raise BadData("not a weight of a 3-D convolution", wanted="1 or 5 axes", found=list(shape))
    return len(shape) == KERNEL_DIMENSIONS
