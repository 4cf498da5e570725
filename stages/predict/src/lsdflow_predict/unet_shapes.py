"""Shape arithmetic of a bundle's U-Net, as tiling asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.geometry import Vox3
from lsdflow_network import shapes


@dataclass(frozen=True)
class UNetShapes:
    """Shape arithmetic of a bundle's U-Net (the protocol NetShapes)."""

    spec: UNetSpec

    @property
    def step_vox(self) -> Vox3:
        """Product of the downsampling factors."""
        return shapes.tile_step_vox(self.spec)

    @property
    def context_vox(self) -> Vox3:
        """Voxels lost on each side: (input - output) / 2."""
        z, y, x = shapes.context_vox(self.spec)
        return z // 2, y // 2, x // 2

    def output_covering(self, wanted_vox: Vox3) -> Vox3:
        """Smallest output shape of the network that is at least `wanted_vox`."""
        return shapes.output_shape_vox(self.spec, shapes.input_shape_for_output(self.spec, wanted_vox))
