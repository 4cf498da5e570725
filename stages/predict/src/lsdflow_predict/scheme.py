"""How a target is cut up for prediction: the region, its tiles and blocks, for affinities and for LSDs.

    target   |------------------------------------------------|
    region         |--cell--|--cell--|--cell--|                    affinities (block = some whole cells)
    LSDs     ..|------------------------------------|..            region + what the affinity tiles need around it,
                                                                   in LSD tiles that begin at the first affinity input

Both tilings depend on the networks, the target's shape, the region and `tile_shape` alone: not on blocks or workers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Box, Nm3, Vox3
from lsdflow_predict.config import PredictConfig
from lsdflow_predict.tiles import NetShapes, Tiling, block_of_cells, hull, plan_tiling

_ORIGIN = (0, 0, 0)
LARGEST_BLOCK_VOX = 256
LARGEST_BLOCK_ONE_PASS_VOX = 512


@dataclass(frozen=True)
class Layer:
    """One blockwise pass: the voxels it gives, the tiles it is made of, the blocks it is worked in."""

    region: Box
    tiling: Tiling
    block_vox: Vox3

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for keys and reports."""
        return asdict(self)

    def tiling_dict(self) -> dict[str, Any]:
        """The tiles alone: what values depend on, without blocks."""
        return asdict(self.tiling)


@dataclass(frozen=True)
class Scheme:
    """Affinities, and the LSDs they need (none where one network gives everything)."""

    affinities: Layer
    lsds: Layer | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for keys and reports."""
        return asdict(self)


def plan_affinities(net: NetShapes, region: Box, largest_output_vox: Vox3, largest_block_vox: Vox3) -> Layer:
    """Tiles and blocks of the network that gives the affinities; its tiles lie on the target's own grid."""
    tiling = plan_tiling(net, region, _ORIGIN, largest_output_vox)
    return Layer(region, tiling, block_of_cells(tiling.cell_vox, region.shape_vox, largest_block_vox))


def plan_lsds(net: NetShapes, affinities: Layer, largest_output_vox: Vox3, largest_block_vox: Vox3) -> Layer:
    """Tiles and blocks of the LSD network: all LSDs that any affinity tile sees, also outside region and target.

    Their pooling grid is anchored where the input of an affinity tile at the target's first voxel begins, so that
    it does not depend on the region.
    """
    region = affinities.tiling.inputs_hull(affinities.region)
    z, y, x = affinities.tiling.context_vox
    tiling = plan_tiling(net, region, (-z, -y, -x), largest_output_vox)
    return Layer(region, tiling, block_of_cells(tiling.cell_vox, region.shape_vox, largest_block_vox))


def largest_shapes(
    config: PredictConfig, bundle_output_vox: Vox3, voxel_size_nm: Nm3, one_pass: bool
) -> tuple[Vox3, Vox3]:
    """(largest network output, largest block) in voxels: as configured, else from the bundle / chosen here.

    With LSDs in memory, every block computes the LSDs around itself: larger blocks waste less.
    """
    tile, block = config.tile_shape, config.block_shape
    edge = LARGEST_BLOCK_ONE_PASS_VOX if one_pass else LARGEST_BLOCK_VOX
    tile_vox = bundle_output_vox if tile is None else tile.to_vox(voxel_size_nm, "predict.tile_shape")
    block_vox = (edge, edge, edge) if block is None else block.to_vox(voxel_size_nm, "predict.block_shape")
    for name, shape in (("tile_shape", tile_vox), ("block_shape", block_vox)):
        if min(shape) < 1:
            raise ConfigError("a shape must be positive", where=f"predict.{name}", found=shape)
    return tile_vox, block_vox


def raw_read_around(layer: Layer, scheme: Scheme, one_pass: bool) -> Vox3:
    """How far beyond a block of the layer raw (and LSDs) are read, at most, on either side."""
    block = Box(layer.region.begin_vox, layer.block_vox)
    reads = [layer.tiling.inputs_hull(block)]
    if one_pass and scheme.lsds is not None:
        lsd = scheme.lsds.tiling
        z, y, x = (o + c for o, c in zip(lsd.output_vox, lsd.context_vox, strict=True))
        reads.append(reads[0].grow((z, y, x)))
    outer = hull(iter(reads))
    bounds = zip(block.begin_vox, block.end_vox, outer.begin_vox, outer.end_vox, strict=True)
    z, y, x = (max(b - ob, oe - e) for b, e, ob, oe in bounds)
    return z, y, x
