"""Convolutions of oneDNN with weights that are packed once and with the ReLU included.

Eager torch reorders the weights of a layer for oneDNN at every call (0.7 GB for the deepest layer of the published
network), needs another pass over the result for the ReLU, and uses a slow algorithm of its own for small inputs. The
operators are those that torch's compiler calls; the lock file pins a version of torch that has them.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

_ONES = {2: [1, 1], 3: [1, 1, 1]}
_ZEROS = {2: [0, 0], 3: [0, 0, 0]}


def has_packed_convolutions() -> bool:
    """True if this torch has oneDNN and its operators for packed weights (x86; not every build for ARM)."""
    mkldnn: Any = torch.backends.mkldnn
    if not mkldnn.is_available():
        return False
    operators: tuple[tuple[Any, str], ...] = (
        (torch.ops.mkldnn, "_convolution_pointwise"),
        (torch._C._nn, "mkldnn_reorder_conv2d_weight"),
        (torch._C._nn, "mkldnn_reorder_conv3d_weight"),
    )
    return all(hasattr(where, name) for where, name in operators)


class PackedConv:
    """Valid convolution in 2 or 3 dimensions; weights are packed at the first input, and the originals released.

    Several threads may call it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, relu: bool) -> None:
        """weight (out, in, [z,] y, x), bias (out); float32 or bfloat16, like the inputs."""
        self._weight = weight
        self._bias = bias
        self._dims = weight.dim() - 2
        self._attribute = "relu" if relu else "none"
        self._is_packed = False
        self._packing = threading.Lock()

    def __call__(self, x: Tensor) -> Tensor:
        """(n, in, [z,] y, x) channels last -> (n, out, ...) channels last."""
        zeros, ones = _ZEROS[self._dims], _ONES[self._dims]
        with self._packing:
            if not self._is_packed:
                pack = getattr(torch._C._nn, f"mkldnn_reorder_conv{self._dims}d_weight")
                dense = self._weight.contiguous().to_mkldnn()
                self._weight, self._is_packed = pack(dense, zeros, ones, ones, 1, list(x.shape)), True
        found: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, self._weight, self._bias, zeros, ones, ones, 1, self._attribute, [], ""
        )
        return found
