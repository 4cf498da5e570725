"""AcrLSD: the frozen LSD network followed by the affinity network, as one module from raw to affinities.

    raw ------ LSD network ------> 10 LSD channels --> u8 --> [0, 1] --> crop --.
     '----------------------- crop to the same place ---------------------------+--> 11 channels --> affinity network

Shapes (published): raw 304 -> LSDs 200, cropped to 196 -> affinities 92.  The crop is the smallest that leaves a valid
input for the affinity network. It is the same for every tile, so tiles agree (see shapes.py).
Training (train-acrlsd) and predict use the same code.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lsdflow_contract.geometry import Vox3
from lsdflow_network import shapes
from lsdflow_network.chain import chain_shapes
from lsdflow_network.quantise import dequantise_u8, quantise_u8
from lsdflow_network.unet import crop_centre


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
        """Set the training mode of the affinity network only."""
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
