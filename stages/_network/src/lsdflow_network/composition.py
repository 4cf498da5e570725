"""AcrLSD: the affinity network behind the frozen LSD network, as one module from raw to affinities.

    raw ------ LSD network ------> 10 LSD channels --> u8 --> [0, 1] --> crop --.
     '----------------------- crop to the same place ---------------------------+--> 11 channels --> affinity network

Shapes (published): raw 304 -> LSDs 200, cropped to 196 -> affinities 92.  The crop is the smallest that gives the
affinity network a valid input, the same for every tile, so tiles agree (see shapes.py).
The same code runs in training (train-acrlsd) and in predict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Vox3
from lsdflow_network import shapes
from lsdflow_network.quantise import dequantise_u8, quantise_u8
from lsdflow_network.unet import crop_centre


@dataclass(frozen=True)
class ChainShapes:
    """Shapes z,y,x in voxels along the chain, each centred in the one before."""

    input_vox: Vox3
    lsds_vox: Vox3
    affinity_input_vox: Vox3
    output_vox: Vox3


def chain_shapes(lsd_spec: shapes.HasFactors, affinity_spec: shapes.HasFactors, input_vox: Vox3) -> ChainShapes:
    """Shapes of the whole chain for one raw input shape; ConfigError if either network cannot take its part."""
    lsds = shapes.output_shape_vox(lsd_spec, input_vox)
    inner = [_largest_centred(affinity_spec, axis, size) for axis, size in enumerate(lsds)]
    z, y, x = inner
    if z is None or y is None or x is None:
        wanted = shapes.smallest_input_shape_vox(affinity_spec)
        raise ConfigError(
            "the LSD network's output is too small for the affinity network",
            where=f"raw input {list(input_vox)} vox",
            wanted=f"LSDs of at least {list(wanted)} vox, of the same parity",
            found=f"{list(lsds)} vox",
            hint="enlarge the input shape",
        )
    return ChainShapes(input_vox, lsds, (z, y, x), shapes.output_shape_vox(affinity_spec, (z, y, x)))


def chain_input_for(lsd_spec: shapes.HasFactors, affinity_spec: shapes.HasFactors, affinity_input_vox: Vox3) -> Vox3:
    """The smallest raw input shape whose LSDs, cropped, give exactly this affinity input shape."""
    step = shapes.tile_step_vox(lsd_spec)
    found = shapes.input_shape_for_output(lsd_spec, affinity_input_vox)
    for _ in range(max(step) + 1):
        have = chain_shapes(lsd_spec, affinity_spec, found).affinity_input_vox
        if have == affinity_input_vox:
            return found
        z, y, x = (n + (s if h < w else 0) for n, s, h, w in zip(found, step, have, affinity_input_vox, strict=True))
        found = (z, y, x)
    raise ConfigError(
        "no raw input shape gives this input to the affinity network",
        wanted=f"affinity input {list(affinity_input_vox)} vox",
        found=f"{list(chain_shapes(lsd_spec, affinity_spec, found).affinity_input_vox)} vox",
    )


def chain_tile_step_vox(lsd_spec: shapes.HasFactors, affinity_spec: shapes.HasFactors) -> Vox3:
    """The tile grid of the chain: the least common multiple of both networks' tile steps."""
    pairs = zip(shapes.tile_step_vox(lsd_spec), shapes.tile_step_vox(affinity_spec), strict=True)
    z, y, x = (math.lcm(a, b) for a, b in pairs)
    return z, y, x


def lsd_input(raw: Tensor, lsds_u8: Tensor, shape_vox: Vox3) -> Tensor:
    """Input of the affinity network: raw (n,1,z,y,x) in [-1,1] and LSDs u8 (n,10,z,y,x), both cropped -> (n,11,...)."""
    return torch.cat([crop_centre(raw, shape_vox), dequantise_u8(crop_centre(lsds_u8, shape_vox))], dim=1)


class AcrLsd(nn.Module):
    """Raw -> {"affs", "lsds"}; the LSD network is frozen (no gradients, evaluation mode)."""

    def __init__(
        self,
        lsd_network: nn.Module,
        lsd_spec: shapes.HasFactors,
        affinity_network: nn.Module,
        affinity_spec: shapes.HasFactors,
    ) -> None:
        super().__init__()
        self.lsd_network = lsd_network.eval().requires_grad_(False)
        self.affinity_network = affinity_network
        self.lsd_spec = lsd_spec
        self.affinity_spec = affinity_spec

    def train(self, mode: bool = True) -> AcrLsd:
        """Training mode for the affinity network only."""
        super().train(mode)
        self.lsd_network.eval()
        return self

    def lsds_u8(self, raw: Tensor) -> Tensor:
        """Raw (n,1,z,y,x) in [-1,1] -> LSDs uint8 (n,10,z',y',x') as they would be stored."""
        with torch.no_grad():
            return quantise_u8(self.lsd_network(raw)["lsds"])

    def forward(self, raw: Tensor) -> dict[str, Tensor]:
        """(n,1,z,y,x) raw in [-1,1] -> affs (n,3,...) float32 [0,1] and lsds_u8 (n,10,...) uint8, not cropped."""
        z, y, x = raw.shape[2:]
        shape = chain_shapes(self.lsd_spec, self.affinity_spec, (z, y, x)).affinity_input_vox
        lsds = self.lsds_u8(raw)
        affs: Tensor = self.affinity_network(lsd_input(raw, lsds, shape))["affs"]
        return {"affs": affs, "lsds_u8": lsds}


def _largest_centred(spec: shapes.HasFactors, axis: int, size: int) -> int | None:
    """Largest valid size <= size with the same parity (so that the crop is the same on both sides)."""
    smallest = shapes.smallest_input_shape_vox(spec)
    for candidate in range(size, smallest[axis] - 1, -2):
        probe = list(smallest)
        probe[axis] = candidate
        if shapes.is_valid_input(spec, (probe[0], probe[1], probe[2])):
            return candidate
    return None
