"""Map the state dict of a torch model with funlib.learn.torch's U-Net to the layers of that U-Net.

<prefix>l_conv.<level>.conv_pass.<2i>.{weight,bias}             convolutions on the way down
<prefix>r_up.<decoder>.<level>.up.{weight,bias}                 transposed convolution that keeps the channels, no
                                                                ReLU; absent: each voxel is repeated
<prefix>r_conv.<decoder>.<level>.conv_pass.<2i>.{weight,bias}   convolutions on the way up
all else                                                        1x1x1 convolutions, sigmoid: the outputs
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

from lsdflow_contract.errors import BadData
from lsdflow_importers.unet import Convolution, UNetLayers

_LEFT = re.compile(r"^(?P<prefix>.*?)l_conv\.(?P<level>\d+)\.conv_pass\.(?P<i>\d+)$")
_RIGHT = re.compile(r"^(?P<prefix>.*?)r_conv\.(?:(?P<decoder>\d+)\.)?(?P<level>\d+)\.conv_pass\.(?P<i>\d+)$")
_UP = re.compile(r"^(?P<prefix>.*?)r_up\.(?:(?P<decoder>\d+)\.)?(?P<level>\d+)\.up$")


def unet_of(state: Mapping[str, Tensor], where: object) -> UNetLayers:
    """The layers of the network. Raises BadData for unknown weights, two networks, or two decoders."""
    layers = {name: _convolution(name, state, where) for name in sorted({n.rpartition(".")[0] for n in state})}
    matches = {name: _LEFT.match(name) or _RIGHT.match(name) or _UP.match(name) for name in layers}
    _require_one(matches, where)
    found = UNetLayers(upsampling="keep" if any(map(_UP.match, layers)) else "repeat")
    for name, layer in layers.items():
        match = matches[name]
        if match is None:
            found.heads[name] = layer
        elif _UP.match(name):
            found.up[int(match["level"])] = layer
        else:
            part = found.down if _LEFT.match(name) else found.merge
            # the index also counts layers without weights; renumbered below
            part.setdefault(int(match["level"]), {})[int(match["i"])] = layer
    for part in (found.down, found.merge):
        for level, convs in part.items():
            part[level] = dict(enumerate(conv for _, conv in sorted(convs.items())))
    return found


def _convolution(name: str, state: Mapping[str, Tensor], where: object) -> Convolution:
    weight, bias = state.get(f"{name}.weight"), state.get(f"{name}.bias")
    parts = {n for n in state if n.rpartition(".")[0] == name}
    if weight is None or bias is None or len(parts) != 2 or weight.dim() != 5 or bias.dim() != 1:
        shapes = ", ".join(f"{part} {tuple(state[part].shape)}" for part in sorted(parts))
        raise BadData(
            "weights of no known layer",
            where=where,
            wanted="the U-Net of funlib.learn.torch and 1x1x1 convolutions: weight (out, in, z, y, x) and bias of each",
            found=shapes,
        )
    return Convolution(name, weight, bias)


def _require_one(matches: Mapping[str, re.Match[str] | None], where: object) -> None:
    known = [match.groupdict() for match in matches.values() if match]
    prefixes = {groups["prefix"] for groups in known}
    decoders = {groups.get("decoder") or "0" for groups in known}
    if len(prefixes) != 1 or decoders != {"0"}:
        raise BadData(
            "the checkpoint does not hold one U-Net with one decoder",
            where=where,
            wanted="weights <model>.l_conv, .r_up and .r_conv.0 of one model",
            found=f"models {sorted(prefixes)}, decoders {sorted(decoders)}",
        )
