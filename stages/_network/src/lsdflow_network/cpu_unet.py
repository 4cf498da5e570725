"""The U-Net for predict on the CPU: packed weights, ReLU inside the convolutions, Winograd in float32.

The output equals that of `UNet` up to rounding. It cannot be trained: there are no gradients, and weights are fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from lsdflow_network.onednn import PackedConv
from lsdflow_network.precision import Precision
from lsdflow_network.unet import ConvPass, Repeat, UNet, Upsample, crop_centre
from lsdflow_network.winograd import WinogradConv

# Winograd needs two thirds more memory for weights; for the deepest layer of the published network that is 0.7 GB.
_LARGEST_WINOGRAD_WEIGHTS = 1 << 26
_FEWEST_WINOGRAD_CHANNELS = 24

Conv = Callable[[Tensor], Tensor]


class CpuUNet(nn.Module):
    """A UNet's weights, ready for one patch at a time on the CPU."""

    def __init__(self, network: UNet, precision: Precision) -> None:
        super().__init__()
        self._dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        self._factors = network.factors
        self._down = [[self._conv(c) for c in cast(ConvPass, p).convs] for p in network.down]
        self._merge = [[self._conv(c) for c in cast(ConvPass, p).convs] for p in network.merge]
        self._up = [self._upsampling(u) for u in network.up]
        self._heads = {name: self._matrix(cast(nn.Conv3d, head)) for name, head in network.heads.items()}

    @torch.inference_mode()
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """(1, in_channels, z, y, x) floats -> {output: (1, channels, z', y', x')} float32 in [0, 1]."""
        # Otherwise autocast would pool in float32, which the next convolution does not accept.
        with torch.autocast("cpu", enabled=False):
            x = x.to(self._dtype).contiguous(memory_format=torch.channels_last_3d)
            last = self._features(x, 0).permute(0, 2, 3, 4, 1)
            values = {name: nn.functional.linear(last, *head).float() for name, head in self._heads.items()}
        return {name: torch.sigmoid_(value).permute(0, 4, 1, 2, 3) for name, value in values.items()}

    def _features(self, x: Tensor, level: int) -> Tensor:
        skip = _apply(self._down[level], x)
        if level == len(self._factors):
            return skip
        factor = self._factors[level]
        inner = self._features(nn.functional.max_pool3d(skip, factor, factor), level + 1)
        return _apply(self._merge[level], _joined(skip, self._up[level](inner)))

    def _conv(self, conv: nn.Module) -> Conv:
        weight, bias = (cast(Tensor, t).detach().to(self._dtype) for t in (conv.weight, conv.bias))
        if self._dtype == torch.float32 and _pays_as_winograd(weight):
            return WinogradConv(weight, bias)
        return PackedConv(weight, bias, relu=True)

    def _upsampling(self, up: nn.Module) -> Conv:
        if isinstance(up, Repeat):
            return up.forward
        found = cast(Upsample, up)
        return _PackedUpsample(found.up, self._dtype, relu=found.relu)

    def _matrix(self, head: nn.Conv3d) -> tuple[Tensor, Tensor]:
        bias = cast(Tensor, head.bias)
        return head.weight.detach().flatten(1).to(self._dtype), bias.detach().to(self._dtype)


class _PackedUpsample:
    """Transposed convolution with kernel = stride, computed as a matrix product whose columns are rearranged."""

    def __init__(self, up: nn.ConvTranspose3d, dtype: torch.dtype, *, relu: bool) -> None:
        self._relu = relu
        self._factor = tuple(up.kernel_size)
        self._channels = up.out_channels
        self._matrix = up.weight.detach().permute(2, 3, 4, 1, 0).reshape(-1, up.in_channels).to(dtype)
        bias = cast(Tensor, up.bias).detach().to(dtype)
        self._bias = bias.repeat(self._factor[0] * self._factor[1] * self._factor[2])

    def __call__(self, x: Tensor) -> Tensor:
        """(1, c, z, y, x) -> (1, c', z*fz, y*fy, x*fx), values >= 0 if with ReLU, channels last."""
        _, _, z, y, width = x.shape
        columns = nn.functional.linear(x[0].permute(1, 2, 3, 0), self._matrix, self._bias)
        columns = torch.relu_(columns) if self._relu else columns
        fz, fy, fx = self._factor
        places = columns.view(z, y, width, fz, fy, fx, self._channels).permute(0, 3, 1, 4, 2, 5, 6)
        return places.reshape(1, z * fz, y * fy, width * fx, self._channels).permute(0, 4, 1, 2, 3)


def _joined(skip: Tensor, upsampled: Tensor) -> Tensor:
    """Concatenation along the channels, channels last, with `skip` cropped; several times faster than torch.cat."""
    channels, shape = skip.shape[1], upsampled.shape[2:]
    both = skip.new_empty(1, *shape, channels + upsampled.shape[1]).permute(0, 4, 1, 2, 3)
    both[:, :channels] = crop_centre(skip, shape)
    both[:, channels:] = upsampled
    return both


def _pays_as_winograd(weight: Tensor) -> bool:
    """True for 3^3 kernels with enough channels that multiplications, not memory, limit the speed, and few weights."""
    is_3 = tuple(weight.shape[2:]) == (3, 3, 3)
    return is_3 and weight.shape[1] >= _FEWEST_WINOGRAD_CHANNELS and weight.numel() <= _LARGEST_WINOGRAD_WEIGHTS


def _apply(convs: list[Conv], x: Tensor) -> Tensor:
    for conv in convs:
        x = conv(x)
    return x
