"""Shape arithmetic for AcrLSD's two networks in sequence; composition.py has the networks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Vox3
from lsdflow_network import shapes


@dataclass(frozen=True)
class ChainShapes:
    """Shapes z,y,x in voxels along the chain, each centred in the previous one."""

    input_vox: Vox3
    lsds_vox: Vox3
    affinity_input_vox: Vox3
    output_vox: Vox3


def chain_shapes(lsd_spec: shapes.HasFactors, affinity_spec: shapes.HasFactors, input_vox: Vox3) -> ChainShapes:
    """Shapes of the whole chain for one raw input shape; ConfigError if it is not valid for one of the networks."""
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
            fix="enlarge the input shape",
        )
    return ChainShapes(input_vox, lsds, (z, y, x), shapes.output_shape_vox(affinity_spec, (z, y, x)))


def chain_input_for(lsd_spec: shapes.HasFactors, affinity_spec: shapes.HasFactors, affinity_input_vox: Vox3) -> Vox3:
    """The smallest raw input shape whose cropped LSDs have exactly this affinity input shape."""
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


def _largest_centred(spec: shapes.HasFactors, axis: int, size: int) -> int | None:
    """Largest valid size <= size with the same parity (so that the crop is the same on both sides)."""
    smallest = shapes.smallest_input_shape_vox(spec)
    for candidate in range(size, smallest[axis] - 1, -2):
        probe = list(smallest)
        probe[axis] = candidate
        if shapes.is_valid_input(spec, (probe[0], probe[1], probe[2])):
            return candidate
    return None
