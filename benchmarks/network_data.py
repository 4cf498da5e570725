"""Networks with random weights, and a tile of raw for each: what a prediction costs does not depend on the weights.

network/        a bundle of the LSD network
raw.npy         u8    (n, n, n)      one tile of raw for it: noise as smooth as EM
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

from lsdflow_contract.checkpoint import Kind, UNetSpec
from lsdflow_network.bundle import save_bundle
from lsdflow_network.testing import untrained_bundle
from lsdflow_network.unet import UNet

# Feature maps, their factor from level to level, pooling factors, edge of the input.
PUBLISHED = (12, 6, (2, 2, 3), 196)
DEMO = (12, 3, (2, 2), 148)


def make_network(folder: Path, size: tuple[int, int, tuple[int, ...], int], kind: Kind = "lsd") -> int:
    """A network with random weights and a tile of raw for it; returns the voxels of its output."""
    fmaps, increase, factors, edge = size
    channels, outputs = (11, {"affs": 3}) if kind == "acrlsd" else (1, {"lsds": 10})
    pooling = tuple((f, f, f) for f in factors)
    spec = UNetSpec(in_channels=channels, num_fmaps=fmaps, fmap_inc_factor=increase, downsample_factors=pooling)
    shape = (edge, edge, edge)
    bundle = untrained_bundle(kind, spec, outputs, shape)
    torch.manual_seed(0)
    save_bundle(folder / "network", bundle, UNet(spec, bundle.outputs).state_dict())
    smooth = gaussian_filter(np.random.default_rng(0).standard_normal(shape).astype(np.float32), 1.5)
    np.save(folder / "raw.npy", np.clip(127 + 60 * smooth / smooth.std(), 0, 255).astype(np.uint8))
    return int(np.prod(bundle.predict_output_shape_vox))
