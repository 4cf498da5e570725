"""Quantisation of LSDs and affinities to uint8 in torch, bit-identical to lsdflow_contract.arrays in numpy.

The input of the affinity network is never the float LSDs of the first network. In training and in prediction they are
quantised to 8 bit and scaled back, so that predictions from stored LSDs and from LSDs in memory are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor


def quantise_u8(values: Tensor) -> Tensor:
    """Float tensor, nominally in [0, 1] (clipped) -> uint8 = floor(value * 255), same shape."""
    return values.float().clamp(0.0, 1.0).mul(255.0).floor().to(torch.uint8)


def dequantise_u8(values: Tensor) -> Tensor:
    """Uint8 tensor -> float32 in [0, 1] = value / 255, same shape."""
    return values.to(torch.float32) / 255.0
