"""3^3 convolution of one patch on the CPU with half the multiplications: Winograd's F(4, 3) along z.

A convolution of kernel 3 computes four outputs along z from six inputs d0..d5 with 12 multiplications. Winograd's
minimal filtering needs six, of sums of the inputs and sums of the weights:

    slab of 6 planes d --B^T--> 6 planes --one 3^2 convolution each--> 6 planes m --A^T--> 4 planes of the output

The cost of the sums is negligible compared with the convolutions, and a slab stays in the cache. The points are 0, +-1,
+-2 and infinity. The result differs from the direct sum by rounding: 1e-5 for values around 4 (float32).
Lavin and Gray 2016; in 3-D on CPUs: Jia et al. 2018, Popovych et al. 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lsdflow_network.onednn import PackedConv

_OUTPUTS, _INPUTS = 4, 6
_INPUT_SUMS = (
    (4.0, 0.0, -5.0, 0.0, 1.0, 0.0),
    (0.0, -4.0, -4.0, 1.0, 1.0, 0.0),
    (0.0, 4.0, -4.0, -1.0, 1.0, 0.0),
    (0.0, -2.0, -1.0, 2.0, 1.0, 0.0),
    (0.0, 2.0, -1.0, -2.0, 1.0, 0.0),
    (0.0, 4.0, 0.0, -5.0, 0.0, 1.0),
)
_WEIGHT_SUMS = (
    (1 / 4, 0.0, 0.0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0.0, 0.0, 1.0),
)


class WinogradConv:
    """Valid 3^3 convolution with bias and ReLU; equals the direct one up to rounding."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        """weight (out, in, 3, 3, 3), bias (out)."""
        sums = torch.tensor(_WEIGHT_SUMS, dtype=torch.float64)
        planes = torch.einsum("ik,ockyx->iocyx", sums, weight.double()).float()
        # All four outputs contain plane 1 exactly once, so a bias there is a bias of all outputs.
        self._convs = [PackedConv(p, bias if i == 1 else None, relu=False) for i, p in enumerate(planes)]
        self._channels = weight.shape[0]
        self._input_sums = torch.tensor(_INPUT_SUMS)

    def __call__(self, x: Tensor) -> Tensor:
        """(1, c, z, y, x) float32 -> (1, c', z-2, y-2, x-2), values >= 0, channels last."""
        planes = x[0].permute(1, 2, 3, 0)
        depth, height, width, _ = planes.shape
        slabs = -(-(depth - 2) // _OUTPUTS)
        output = planes.new_empty(slabs * _OUTPUTS, height - 2, width - 2, self._channels)
        for begin in range(0, slabs * _OUTPUTS, _OUTPUTS):
            self._slab(planes[begin : begin + _INPUTS], output[begin : begin + _OUTPUTS])
        return output[: depth - 2].permute(3, 0, 1, 2)[None]

    def _slab(self, planes: Tensor, output: Tensor) -> None:
        """Up to six input planes (z, y, x, c) -> four output planes; missing ones (at the end) count as 0."""
        sums = torch.mm(self._input_sums[:, : len(planes)], planes.reshape(len(planes), -1))
        parts = sums.view(_INPUTS, *planes.shape[1:]).permute(0, 3, 1, 2)
        m = [conv(part[None])[0].permute(1, 2, 0) for conv, part in zip(self._convs, parts, strict=True)]
        even, odd = m[1] + m[2], m[1].sub_(m[2])
        even_2, odd_2 = m[3] + m[4], m[3].sub_(m[4])
        torch.add(m[0], even, out=output[0]).add_(even_2)
        torch.add(odd, odd_2, alpha=2, out=output[1])
        torch.add(even, even_2, alpha=4, out=output[2])
        torch.add(odd, odd_2, alpha=8, out=output[3]).add_(m[5])
        output.relu_()
