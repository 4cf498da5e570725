"""The published ("mala") U-Net of Funke et al. with valid 3-D convolutions, as a torch module.

Level l has num_fmaps * fmap_inc_factor^l channels; each level applies two 3^3 convolutions with ReLU:

    raw -> [conv conv] ------------------ crop --> [cat -> conv conv] -> 1x1x1 -> sigmoid
               | max pool f0                            ^ upsample f0: channels of level 1 -> channels of level 0
            [conv conv] ------- crop --> [cat -> conv conv]
               | max pool f1               ^ upsample f1
            [conv conv] -------------------'

The upsampling reduces the channels to those of the finer level, which halves the cost compared with variants that keep
them (networks of other programs that keep them can be run, see UNetSpec.upsampling).  There is no normalisation over
space, because the value of a voxel would then depend on its tile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import cast

import torch
from torch import Tensor, nn

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.geometry import Vox3

_ROWS_FOR_ONEDNN = 20480


class ConvPass(nn.Module):
    """Valid convolutions, each followed by ReLU."""

    def __init__(self, in_channels: int, out_channels: int, kernels: Sequence[Vox3]) -> None:
        super().__init__()
        channels = [in_channels] + [out_channels] * len(kernels)
        self.convs = nn.ModuleList(nn.Conv3d(a, b, k) for (a, b), k in zip(pairwise(channels), kernels, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, z, y, x) -> (n, c', z-e, y-e', x-e''), values >= 0; e: the sum of the kernels' sizes - 1."""
        for conv in self.convs:
            x = torch.relu_(_in_two_slabs(conv, x) if _torch_avoids_onednn(x) else conv(x))
        return x


def _torch_avoids_onednn(x: Tensor) -> bool:
    """True if torch would use its own convolution for this patch, which is several times slower than oneDNN's.

    It does so for a single float32 patch on the CPU if channels x planes x rows is small (torch 2.11 to 2.13:
    `ConvParams::use_mkldnn`), but not for a batch of two.
    """
    one, channels, planes, rows = x.shape[:4]
    few = one == 1 and channels * planes * rows <= _ROWS_FOR_ONEDNN
    return few and x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")


def _in_two_slabs(conv: nn.Module, x: Tensor) -> Tensor:
    """The valid convolution of one patch, computed as a batch of its two halves along z."""
    eaten = cast(nn.Conv3d, conv).kernel_size[0] - 1
    planes = x.shape[2] - eaten
    half = (planes + 1) // 2
    slabs = conv(torch.cat([x[:, :, : half + eaten], x[:, :, -half - eaten :]]))
    return torch.cat([slabs[:1], slabs[1:, :, 2 * half - planes :]], dim=2)


class Upsample(nn.Module):
    """Transposed convolution with kernel = stride = factor: channels and resolution of the finer level."""

    def __init__(self, in_channels: int, out_channels: int, factor: Vox3, *, relu: bool = True) -> None:
        super().__init__()
        self.up = nn.ConvTranspose3d(in_channels, out_channels, factor, stride=factor)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, z, y, x) -> (n, c', z*fz, y*fy, x*fx), values >= 0 if with ReLU."""
        up: Tensor = self.up(x)
        return torch.relu_(up) if self.relu else up


class Repeat(nn.Module):
    """Repeats every voxel `factor` times along z, y, x; has no weights."""

    def __init__(self, factor: Vox3) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, z, y, x) -> (n, c, z*fz, y*fy, x*fx)."""
        return repeat_voxels(x, self.factor)


class UNet(nn.Module):
    """Valid-convolution U-Net with one 1x1x1 sigmoid head per output.

    outputs: name -> channels, e.g. {"lsds": 10, "affs": 3}.
    """

    def __init__(self, spec: UNetSpec, outputs: Mapping[str, int]) -> None:
        super().__init__()
        self.factors: list[Vox3] = [(f[0], f[1], f[2]) for f in spec.downsample_factors]
        levels = range(len(self.factors))
        fmaps = [spec.fmaps_of(level) for level in range(len(self.factors) + 1)]
        entering = [spec.in_channels, *fmaps[:-1]]
        self.down = nn.ModuleList(
            ConvPass(a, b, spec.kernels_before(level)) for level, (a, b) in enumerate(zip(entering, fmaps, strict=True))
        )
        self.up = nn.ModuleList(_upsampling(spec, level) for level in levels)
        self.merge = nn.ModuleList(
            ConvPass(fmaps[level] + spec.upsampled_fmaps(level), spec.fmaps_after(level), spec.kernels_after(level))
            for level in levels
        )
        last = spec.fmaps_after(0)
        self.heads = nn.ModuleDict({name: nn.Conv3d(last, channels, 1) for name, channels in outputs.items()})
        self.apply(_initialise)

    def features(self, x: Tensor, level: int = 0) -> Tensor:
        """(n, in_channels, z, y, x) -> (n, num_fmaps, z', y', x') before the heads (level 0)."""
        skip: Tensor = self.down[level](x)
        if level == len(self.factors):
            return skip
        factor = self.factors[level]
        inner = self.features(nn.functional.max_pool3d(skip, factor, factor), level + 1)
        upsampled: Tensor = self.up[level](inner)
        merged: Tensor = self.merge[level](torch.cat([crop_centre(skip, upsampled.shape[2:]), upsampled], dim=1))
        return merged

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """(n, in_channels, z, y, x) floats -> {output: (n, channels, z', y', x')} float32 in [0, 1]."""
        features = self.features(x)
        return {name: torch.sigmoid(head(features).float()) for name, head in self.heads.items()}


def crop_centre(x: Tensor, shape: tuple[int, ...] | torch.Size) -> Tensor:
    """Central part of (..., z, y, x) with the given spatial shape (a view)."""
    begins = [(have - want) // 2 for have, want in zip(x.shape[-3:], shape, strict=True)]
    slices = tuple(slice(b, b + want) for b, want in zip(begins, shape, strict=True))
    return x[..., slices[0], slices[1], slices[2]]


def repeat_voxels(x: Tensor, factor: Vox3) -> Tensor:
    """(n, c, z, y, x) -> (n, c, z*fz, y*fy, x*fx): every voxel becomes a block of its value, with the same bits."""
    for axis, times in zip((2, 3, 4), factor, strict=True):
        x = x if times == 1 else x.repeat_interleave(times, dim=axis)
    return x


def _upsampling(spec: UNetSpec, level: int) -> nn.Module:
    """The upsampling from level + 1 to level."""
    z, y, x = spec.downsample_factors[level]
    if spec.upsampling == "repeat":
        return Repeat((z, y, x))
    channels = spec.fmaps_of(level + 1), spec.upsampled_fmaps(level)
    return Upsample(*channels, (z, y, x), relu=spec.upsampling == "reduce")


def _initialise(module: nn.Module) -> None:
    """He initialisation for the ReLU layers, zero biases."""
    if isinstance(module, nn.Conv3d | nn.ConvTranspose3d):
        nn.init.normal_(module.weight, std=deviation_of_weights(module))
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def deviation_of_weights(layer: nn.Conv3d | nn.ConvTranspose3d) -> float:
    """Standard deviation of the random weights of a layer (He, for ReLU)."""
    fan_in = layer.in_channels
    if isinstance(layer, nn.Conv3d):
        fan_in *= math.prod(layer.kernel_size)
    return float((2.0 / fan_in) ** 0.5)
