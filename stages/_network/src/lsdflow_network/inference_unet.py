"""The U-Net for predict: weights cast and packed once, ReLU inside the convolutions, as few copies as possible.

    CPU   oneDNN's packed convolutions; Winograd in float32
    GPU   cuDNN's convolutions with bias and ReLU; in 16 bits, channels are padded with zeros to the multiples for which
          cuDNN has fast kernels: 12 channels in 16, 72 in 80

The output equals that of `UNet` up to rounding. It cannot be trained: there are no gradients, and weights are fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from lsdflow_network.onednn import PackedConv, has_packed_convolutions
from lsdflow_network.precision import Precision
from lsdflow_network.unet import ConvPass, Repeat, UNet, Upsample, crop_centre
from lsdflow_network.winograd import WinogradConv

# Winograd needs two thirds more memory for weights; for the deepest layer of the published network that is 0.7 GB.
_LARGEST_WINOGRAD_WEIGHTS = 1 << 26
_FEWEST_WINOGRAD_CHANNELS = 24
_DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

Conv = Callable[[Tensor], Tensor]


class InferenceUNet(nn.Module):
    """A UNet's weights on a device, ready for one patch at a time."""

    def __init__(self, network: UNet, precision: Precision, device: torch.device | str = "cpu") -> None:
        super().__init__()
        self._device = torch.device(device)
        self._dtype = _DTYPES[precision]
        self._factors = network.factors
        skips = [cast(nn.Conv3d, cast(ConvPass, p).convs[-1]).out_channels for p in network.down]
        self._down = [self._convs(cast(ConvPass, p), ()) for p in network.down]
        self._merge = [self._convs(cast(ConvPass, p), (s,)) for p, s in zip(network.merge, skips, strict=False)]
        self._up = [self._upsampling(u) for u in network.up]
        self._heads = {name: self._head(cast(nn.Conv3d, head)) for name, head in network.heads.items()}

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """(1, in_channels, z, y, x) floats -> {output: (1, channels, z', y', x')} float32 in [0, 1]."""
        with torch.inference_mode():
            last = self._last(x)
            return {name: torch.sigmoid_(self._logits(last, name))[None] for name in self._heads}

    def logits(self, x: Tensor, names: Sequence[str]) -> Tensor:
        """(1, in_channels, z, y, x) floats -> float32 (channels of all `names`, z', y', x'): before the sigmoid."""
        with torch.inference_mode():
            last = self._last(x)
            found = [self._logits(last, name) for name in names]
            return found[0] if len(found) == 1 else torch.cat(found)

    def _last(self, x: Tensor) -> Tensor:
        """The features before the heads, (z, y, x, channels)."""
        # Otherwise autocast would pool in float32, which the next convolution does not accept.
        with torch.autocast(self._device.type, enabled=False):
            return self._features(self._entering(x), 0)[0].permute(1, 2, 3, 0)

    def _logits(self, last: Tensor, name: str) -> Tensor:
        matrix, bias, channels = self._heads[name]
        return nn.functional.linear(last, matrix, bias)[..., :channels].float().permute(3, 0, 1, 2)

    def _entering(self, x: Tensor) -> Tensor:
        """The input in the dtype of the weights, channels last, with the channels that padding adds."""
        channels = self._room(x.shape[1])
        if channels == x.shape[1]:
            return x.to(self._dtype).contiguous(memory_format=torch.channels_last_3d)
        padded = x.new_zeros((*x.shape[2:], channels), dtype=self._dtype)
        padded[..., : x.shape[1]] = x[0].permute(1, 2, 3, 0)
        return padded.permute(3, 0, 1, 2)[None]

    def _features(self, x: Tensor, level: int) -> Tensor:
        skip = _apply(self._down[level], x)
        if level == len(self._factors):
            return skip
        factor = self._factors[level]
        inner = self._features(nn.functional.max_pool3d(skip, factor, factor), level + 1)
        both = _joined(skip, self._up[level](inner[0].permute(1, 2, 3, 0)), factor)
        del skip, inner  # the largest tensors of a tile: the next convolution needs their memory
        return _apply(self._merge[level], both)

    def _convs(self, convolutions: ConvPass, first: tuple[int, ...]) -> list[Conv]:
        """The convolutions of a level; the input of the first one is a concatenation whose parts begin at `first`."""
        layers = cast(Sequence[nn.Conv3d], convolutions.convs)
        return [self._conv(conv, first if i == 0 else ()) for i, conv in enumerate(layers)]

    def _conv(self, conv: nn.Conv3d, begins: tuple[int, ...]) -> Conv:
        weight, bias = self._padded_weight(conv.weight, begins), self._padded(cast(Tensor, conv.bias), 0)
        if self._device.type == "cuda" and torch.version.cuda:
            return _CudnnConv(weight, bias)
        if self._device.type != "cpu" or not has_packed_convolutions():
            return lambda x: torch.relu_(nn.functional.conv3d(x, weight, bias))
        if self._dtype == torch.float32 and _pays_as_winograd(weight):
            return WinogradConv(weight, bias)
        return PackedConv(weight, bias, relu=True)

    def _upsampling(self, up: nn.Module) -> Conv:
        """(z, y, x, c) -> (z, y, x, fz, fy, fx, c'), or 1, 1, 1 in place of the factor where values are repeated."""
        if isinstance(up, Repeat):
            return lambda x: x[:, :, :, None, None, None]
        found = cast(Upsample, up)
        factor = tuple(found.up.kernel_size)
        weight = self._padded(self._padded(found.up.weight, 0), 1)
        channels = weight.shape[1]
        matrix = weight.permute(2, 3, 4, 1, 0).reshape(-1, weight.shape[0]).contiguous()
        bias = self._padded(cast(Tensor, found.up.bias), 0).repeat(factor[0] * factor[1] * factor[2])

        def upsample(x: Tensor) -> Tensor:
            """A transposed convolution with kernel = stride is a matrix product whose columns are rearranged."""
            columns = nn.functional.linear(x, matrix, bias)
            return (torch.relu_(columns) if found.relu else columns).view(*x.shape[:3], *factor, channels)

        return upsample

    def _head(self, head: nn.Conv3d) -> tuple[Tensor, Tensor, int]:
        bias = self._padded(cast(Tensor, head.bias), 0)
        return self._padded(self._padded(head.weight.flatten(1), 0), 1), bias, head.out_channels

    def _room(self, channels: int) -> int:
        """Channels with padding: multiples of 16, or 8 for up to 8; as they are on CPUs and in 32 bits."""
        if self._device.type != "cuda" or self._dtype == torch.float32:
            return channels
        return 8 if channels <= 8 else -(-channels // 16) * 16

    def _padded(self, values: Tensor, axis: int) -> Tensor:
        """Weights with zeros for the channels that padding adds along `axis`, on the device."""
        extra = self._room(values.shape[axis]) - values.shape[axis]
        values = values.detach().to(self._device, self._dtype)
        zeros = values.new_zeros([extra if i == axis else n for i, n in enumerate(values.shape)])
        return torch.cat([values, zeros], axis) if extra else values

    def _padded_weight(self, weight: Tensor, begins: tuple[int, ...]) -> Tensor:
        """(out, in, z, y, x) with padding; `begins`: where the parts of a concatenated input begin, after the first."""
        parts = [self._padded(part, 1) for part in torch.tensor_split(weight, begins, dim=1)]
        whole = self._padded(torch.cat(parts, 1), 0)
        return whole.contiguous(memory_format=torch.channels_last_3d) if self._device.type == "cuda" else whole


class _CudnnConv:
    """Valid convolution with bias and ReLU in one kernel of cuDNN."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self._weight, self._bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        """(1, in, z, y, x) channels last -> (1, out, z', y', x') channels last, values >= 0."""
        ones, zeros = (1, 1, 1), (0, 0, 0)
        found: Tensor = torch.cudnn_convolution_relu(x, self._weight, self._bias, ones, zeros, ones, 1)
        return found


def _joined(skip: Tensor, upsampled: Tensor, factor: tuple[int, int, int]) -> Tensor:
    """The concatenation for a level, channels last: `skip`, cropped, and the upsampled values, written to their places.

    skip: (1, c, z, y, x). upsampled: as `_upsampling` gives it.
    """
    channels, (z, y, x) = skip.shape[1], upsampled.shape[:3]
    fz, fy, fx = factor
    both = skip.new_empty(z * fz, y * fy, x * fx, channels + upsampled.shape[-1])
    both[..., :channels] = crop_centre(skip, both.shape[:3])[0].permute(1, 2, 3, 0)
    places = both[..., channels:].view(z, fz, y, fy, x, fx, upsampled.shape[-1])
    places.copy_(upsampled.permute(0, 3, 1, 4, 2, 5, 6))
    return both.permute(3, 0, 1, 2)[None]


def _pays_as_winograd(weight: Tensor) -> bool:
    """True for 3^3 kernels with enough channels that multiplications, not memory, limit the speed, and few weights."""
    is_3 = tuple(weight.shape[2:]) == (3, 3, 3)
    return is_3 and weight.shape[1] >= _FEWEST_WINOGRAD_CHANNELS and weight.numel() <= _LARGEST_WINOGRAD_WEIGHTS


def _apply(convs: list[Conv], x: Tensor) -> Tensor:
    for conv in convs:
        x = conv(x)
    return x
