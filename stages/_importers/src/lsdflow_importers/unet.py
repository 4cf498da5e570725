"""A U-Net of another program, layer by layer, and its conversion to the form of a bundle.

The description of the network (feature maps, factors, kernels, heads) is read from the shapes of its weights; the
readers (tf1.py, funlib.py) only assign weights to layers and convert them to torch's order of axes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from lsdflow_contract.checkpoint import Kind, UNetSpec, Upsampling
from lsdflow_contract.errors import BadData, ConfigError, UsageError
from lsdflow_contract.geometry import Vox3
from lsdflow_network.unet import UNet

LSD_CHANNELS = 10
_KINDS: dict[tuple[int, tuple[str, ...]], Kind] = {
    (1, ("lsds",)): "lsd",
    (1 + LSD_CHANNELS, ("affs",)): "acrlsd",
    (1, ("affs", "lsds")): "mtlsd",
    (1, ("affs",)): "affinities",
}
# Parts of the names that networks of this lineage give to their outputs.
_LSD_WORDS, _AFFINITY_WORDS = ("lsd", "embedding"), ("aff",)


@dataclass(frozen=True)
class Convolution:
    """Weights in torch's order: (out, in, z, y, x), or transposed convolution (in, out, z, y, x); bias (out)."""

    name: str
    weight: Tensor
    bias: Tensor

    @property
    def kernel(self) -> Vox3:
        """Kernel size z, y, x."""
        z, y, x = self.weight.shape[2:]
        return z, y, x


@dataclass
class UNetLayers:
    """Convolutions by level (0 is the finest) and index in the level; heads by their name in the checkpoint."""

    upsampling: Upsampling
    down: dict[int, dict[int, Convolution]] = field(default_factory=dict)
    merge: dict[int, dict[int, Convolution]] = field(default_factory=dict)
    up: dict[int, Convolution] = field(default_factory=dict)
    heads: dict[str, Convolution] = field(default_factory=dict)


@dataclass(frozen=True)
class ReadNetwork:
    """A network that was read: its description, the channels of its outputs, its weights under lsdflow's names."""

    kind: Kind
    unet: UNetSpec
    outputs: dict[str, int]
    weights: dict[str, Tensor]


def as_bundled(found: UNetLayers, factors: tuple[Vox3, ...] | None, where: object) -> ReadNetwork:
    """The network in the form of a bundle.

    factors: pooling factors z,y,x from the finest level down, needed if the upsampling has no weights.
    Raises BadData if the layers are not a supported U-Net, UsageError if the factors are needed and not given,
    ConfigError if they contradict the weights.
    """
    _require_every_layer(found, where)
    unet = _spec(found, _factors(found, factors, where), where)
    heads = _heads_by_output(found, where)
    outputs = {name: head.weight.shape[0] for name, head in sorted(heads.items())}
    kind = _KINDS.get((unet.in_channels, tuple(outputs)))
    if kind is None or outputs.get("lsds", LSD_CHANNELS) != LSD_CHANNELS:
        raise BadData(
            "the network is of no known kind",
            where=where,
            wanted="1 channel in (11 for acrlsd: raw and LSDs); outputs: 10 LSDs, affinities, or both",
            found=f"{unet.in_channels} channels in, gives {outputs}",
        )
    network = ReadNetwork(kind, unet, outputs, _weights(found, heads))
    _require_fitting(network, where)
    _require_finite(network.weights, where)
    return network


def _require_every_layer(found: UNetLayers, where: object) -> None:
    levels = max(found.down, default=-1)
    wanted = {"down": range(levels + 1), "merge": range(levels), "up": range(levels if found.up else 0)}
    missing = [f"{part} of level {n}" for part, ns in wanted.items() for n in ns if n not in getattr(found, part)]
    more = [f"{part} of level {n}" for part, ns in wanted.items() for n in getattr(found, part) if n not in ns]
    for part, passes in (("down", found.down), ("merge", found.merge)):
        missing += [f"a convolution {part} of level {n}" for n, c in passes.items() if sorted(c) != [*range(len(c))]]
    if levels < 1 or missing or more or not found.heads:
        raise BadData(
            "the variables are not those of a whole U-Net",
            where=where,
            wanted="convolutions down and up of every level, and an output",
            found="; ".join([f"no {m}" for m in missing] + [f"also {m}" for m in more])
            or f"{levels + 1} levels, outputs {sorted(found.heads)}",
        )


def _factors(found: UNetLayers, given: tuple[Vox3, ...] | None, where: object) -> tuple[Vox3, ...]:
    levels = len(found.merge)
    read = tuple(found.up[level].kernel for level in range(levels)) if found.up else None
    if read is None and given is None:
        raise UsageError(
            "the pooling factors are not in the checkpoint: its upsampling has no weights",
            where=where,
            wanted=f'{levels} factors z,y,x, from the finest level down: --downsample-factors "2,2,2; 3,3,3"',
        )
    factors = given if read is None else read
    if factors is None or len(factors) != levels or (given is not None and given != factors):
        raise ConfigError(
            "these are not the pooling factors of the checkpoint",
            where="--downsample-factors",
            wanted=f"{levels} factors" if read is None else str([list(f) for f in read]),
            found=str([list(f) for f in given or ()]),
        )
    return factors


def _spec(found: UNetLayers, factors: tuple[Vox3, ...], where: object) -> UNetSpec:
    levels = range(len(found.down))
    fmaps = [found.down[level][0].weight.shape[0] for level in levels]
    increase = fmaps[1] // fmaps[0]
    if any(coarse != increase * fine for fine, coarse in pairwise(fmaps)):
        raise BadData(
            "the feature maps do not grow by one factor", where=where, wanted="n, n*f, n*f*f, ...", found=fmaps
        )
    last = found.merge[0][len(found.merge[0]) - 1].weight.shape[0]
    down = tuple(tuple(found.down[level][i].kernel for i in range(len(found.down[level]))) for level in levels)
    up = tuple(tuple(found.merge[n][i].kernel for i in range(len(found.merge[n]))) for n in range(len(factors)))
    edge, count = down[0][0][0], len(down[0])
    alike = {*down, *up} == {((edge,) * 3,) * count}
    return UNetSpec(
        in_channels=found.down[0][0].weight.shape[1],
        num_fmaps=fmaps[0],
        fmap_inc_factor=increase,
        downsample_factors=factors,
        kernel_size=edge if alike else 3,
        convs_per_level=count if alike else 2,
        num_fmaps_out=None if last == fmaps[0] else last,
        upsampling=found.upsampling,
        kernels_down=None if alike else down,
        kernels_up=None if alike else up,
    )


def _heads_by_output(found: UNetLayers, where: object) -> dict[str, Convolution]:
    heads: dict[str, Convolution] = {}
    for name, head in found.heads.items():
        output = _output_of(name, head.weight.shape[0])
        if output is None or output in heads or head.kernel != (1, 1, 1):
            raise BadData(
                "an output of the network is unknown",
                where=where,
                wanted="one of LSDs (10 channels, named lsd... or embedding), one of affinities (named aff...), 1x1x1",
                found=f"{name}: {head.weight.shape[0]} channels, kernel {list(head.kernel)}",
            )
        heads[output] = head
    return heads


def _output_of(name: str, channels: int) -> str | None:
    """The output for a name; if the name does not show it, by the number of channels."""
    named = {
        output
        for output, words in (("lsds", _LSD_WORDS), ("affs", _AFFINITY_WORDS))
        if any(word in name.lower() for word in words)
    }
    if len(named) == 1:
        return named.pop()
    return {LSD_CHANNELS: "lsds", 3: "affs"}.get(channels)


def _weights(found: UNetLayers, heads: Mapping[str, Convolution]) -> dict[str, Tensor]:
    layers = {f"heads.{name}": head for name, head in heads.items()}
    layers |= {f"up.{level}.up": conv for level, conv in found.up.items()}
    for part, passes in (("down", found.down), ("merge", found.merge)):
        layers |= {f"{part}.{level}.convs.{i}": c for level, convs in passes.items() for i, c in convs.items()}
    weights = {f"{name}.weight": layer.weight for name, layer in layers.items()}
    weights |= {f"{name}.bias": layer.bias for name, layer in layers.items()}
    return {name: value.to(torch.float32).contiguous() for name, value in weights.items()}


def _require_fitting(network: ReadNetwork, where: object) -> None:
    """Raise BadData unless the weights are those of the network that was read from them."""
    with torch.device("meta"):
        model = UNet(network.unet, network.outputs)
    try:
        model.load_state_dict(network.weights, assign=True)
    except RuntimeError as error:
        differences = [line.strip() for line in str(error).splitlines()[1:4]]
        raise BadData("the variables do not make one U-Net", where=where, found=" ".join(differences)) from error


def _require_finite(weights: Mapping[str, Tensor], where: object) -> None:
    broken = [name for name, value in weights.items() if not bool(torch.isfinite(value).all())]
    if broken:
        raise BadData("the weights hold NaN or infinity", where=where, found=", ".join(broken[:3]))
