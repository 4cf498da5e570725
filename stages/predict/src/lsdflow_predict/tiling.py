"""Tiles and blocks: the fixed grid of network evaluations from which every prediction is assembled.

A network is only ever evaluated on *tiles* of one shape. Their places depend on the network, the target, the region of
interest and `tile_shape` alone, never on the blocks. A block is assembled from the tiles that touch it. So the value of
a voxel is a function of its tile, and blocks of any shape, in any order, on any number of workers, give the same bits.

    |<------------------- input (valid shape) ------------------->|
    |<-- context -->|<----------- output ------------>|<-context->|
                    |<lead>|<------ cell ------>|spare|
                           ^ first voxel the tile owns

1. Cells cover the region: cell i begins at origin + i * cell shape; the cell shape is a multiple of the network's step
   (the product of its downsampling factors), so all tiles meet the pooling grid in the same phase.
2. The pooling grid is anchored at the target's first voxel (plus a constant `phase`); a region that begins off the
   grid gets a `lead`: the evaluation begins on the grid, up to step - 1 voxels before the cell.
3. Valid networks only give outputs of certain shapes; the smallest one >= lead + cell is used, the rest (`spare`)
   is discarded.

The LSD network computes the LSDs that the affinity tiles need, also around the region:

    target   |------------------------------------------------|
    region         |--cell--|--cell--|--cell--|                    affinities (a block is some whole cells)
    LSDs     ..|------------------------------------|..            region + context of the affinity tiles, in LSD tiles
                                                                   that begin at the first affinity input
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lsdflow_contract.checkpoint import Bundle
from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Box, Nm3, Vox3
from lsdflow_network import shapes
from lsdflow_predict.checkpoints import Networks
from lsdflow_predict.config import PredictConfig

LARGEST_BLOCK_VOX = 256
# Blocks in each direction of a small region, so that all workers have some and progress is seen.
FEWEST_BLOCKS_PER_AXIS = 2
# With an LSD network, every block computes the LSDs around itself: larger blocks waste less.
LARGEST_BLOCK_WITH_LSDS_VOX = 512

Index3 = tuple[int, int, int]
# Arrays of numpy or torch: both are indexed in the same way.
Values = TypeVar("Values", bound=Any)
# How the tiles of a block are evaluated: by `map`, or by the `map` of several threads.
Each = Callable[[Callable[[Index3], Any], Sequence[Index3]], Iterable[Any]]


@dataclass(frozen=True)
class Tiling:
    """A grid of tiles (see the module's drawing). All in voxels of the target, z, y, x."""

    origin_vox: Vox3
    cell_vox: Vox3
    lead_vox: Vox3
    output_vox: Vox3
    context_vox: Vox3

    @property
    def input_vox(self) -> Vox3:
        """Shape of the network's input."""
        return _per_axis(lambda o, c: o + 2 * c, self.output_vox, self.context_vox)

    def cell(self, index: Index3) -> Box:
        """The voxels that tile `index` owns."""
        begin = _per_axis(lambda o, i, s: o + i * s, self.origin_vox, index, self.cell_vox)
        return Box(begin, self.cell_vox)

    def output(self, index: Index3) -> Box:
        """The voxels the network gives for tile `index`; contains the cell."""
        begin = _per_axis(lambda b, n: b - n, self.cell(index).begin_vox, self.lead_vox)
        return Box(begin, self.output_vox)

    def input(self, index: Index3) -> Box:
        """The voxels the network needs for tile `index`; may reach outside the volume."""
        return self.output(index).grow(self.context_vox)

    def indices_touching(self, box: Box) -> Iterator[Index3]:
        """Tiles whose cell shares a voxel with `box`, row-major. None for an empty box."""
        if not box.is_empty:
            yield from itertools.product(*self._ranges(box))

    def inputs_hull(self, box: Box) -> Box:
        """The smallest box that holds the inputs of all tiles touching `box`, which is not empty."""
        z, y, x = self._ranges(box)
        return Box.hull((self.input((z[0], y[0], x[0])), self.input((z[-1], y[-1], x[-1]))))

    def _ranges(self, box: Box) -> list[range]:
        """Indices of the tiles that touch `box`, along each axis."""
        bounds = zip(box.begin_vox, box.end_vox, self.origin_vox, self.cell_vox, strict=True)
        return [range((b - o) // s, -((o - e) // s)) for b, e, o, s in bounds]


@dataclass(frozen=True)
class TileGrid:
    """The region that a network computes, its tiles, and the shape of the blocks in which it is computed."""

    region: Box
    tiling: Tiling
    block_vox: Vox3

    @property
    def first_block(self) -> Box:
        """The block at the region's first voxel; no block is larger."""
        return Box(self.region.begin_vox, self.block_vox)

    @property
    def tiles_per_block(self) -> int:
        """Tiles that the first block holds."""
        return len(list(self.tiling.indices_touching(self.first_block)))

    @property
    def tile_count(self) -> int:
        """Tiles that cover the region."""
        return math.prod(_per_axis(lambda n, c: -(-n // c), self.region.shape_vox, self.tiling.cell_vox))

    def context_vox(self, lsds: Tiling | None) -> Vox3:
        """How far beyond a block raw is read, at most, on either side.

        lsds: the tiles of the LSDs that are computed for a block; None if there are none.
        """
        block = self.first_block
        read = self.tiling.inputs_hull(block)
        if lsds is not None:
            read = read.grow(_per_axis(lambda o, c: o + c, lsds.output_vox, lsds.context_vox))
        bounds = (block.begin_vox, block.end_vox, read.begin_vox, read.end_vox)
        return _per_axis(lambda b, e, read_b, read_e: max(b - read_b, read_e - e), *bounds)

    def lsd_tiles_per_tile(self, lsds: Tiling) -> float:
        """LSD tiles that are evaluated for each affinity tile of a block; larger blocks bring it towards 1."""
        needed = self.tiling.inputs_hull(self.first_block)
        return len(list(lsds.indices_touching(needed))) / self.tiles_per_block


@dataclass(frozen=True)
class TiledNetwork:
    """A network on disk (the folder and the description of its bundle), and the grid on which it is evaluated."""

    folder: Path
    bundle: Bundle
    grid: TileGrid


def tile_networks(
    networks: Networks, config: PredictConfig, region: Box, voxel_size_nm: Nm3
) -> tuple[TiledNetwork, TiledNetwork | None]:
    """The affinity network and, in mode acrlsd, the LSD network before it, with their tiles and blocks for `region`.

    Raises ConfigError for a tile shape or block shape that is not positive.
    """
    largest_block = _largest_block_vox(config, voxel_size_nm, region, networks.lsds is not None)
    folder, bundle = networks.affinities.folder, networks.affinities.bundle
    grid = affinity_grid(bundle.unet, region, _largest_tile_vox(config, bundle, voxel_size_nm), largest_block)
    affinities = TiledNetwork(folder, bundle, grid)
    if networks.lsds is None:
        return affinities, None
    folder, bundle = networks.lsds.folder, networks.lsds.bundle
    lsds = lsd_grid(bundle.unet, grid, _largest_tile_vox(config, bundle, voxel_size_nm), largest_block)
    return affinities, TiledNetwork(folder, bundle, lsds)


def affinity_grid(spec: shapes.HasFactors, region: Box, largest_output_vox: Vox3, largest_block_vox: Vox3) -> TileGrid:
    """Tiles and blocks of the network that gives the affinities; its pooling grid is that of the target."""
    return _tile_grid(spec, region, (0, 0, 0), largest_output_vox, largest_block_vox)


def lsd_grid(
    spec: shapes.HasFactors, affinities: TileGrid, largest_output_vox: Vox3, largest_block_vox: Vox3
) -> TileGrid:
    """Tiles and blocks of the LSD network: all LSDs that any affinity tile sees, also outside region and target.

    Their pooling grid is anchored where the input of an affinity tile at the target's first voxel begins, so that
    it does not depend on the region.
    """
    region = affinities.tiling.inputs_hull(affinities.region)
    phase = _per_axis(lambda c: -c, affinities.tiling.context_vox)
    return _tile_grid(spec, region, phase, largest_output_vox, largest_block_vox)


def plan_tiling(spec: shapes.HasFactors, region: Box, phase_vox: Vox3, largest_output_vox: Vox3) -> Tiling:
    """Tiles for predicting `region` (not empty) with outputs of about `largest_output_vox` at most.

    phase_vox: where the pooling grid is anchored (outputs begin at phase + a multiple of the step).
    Cells are balanced: as few as the largest output allows, then as equal as the step allows, so that little is
    evaluated past the end of the region. The smallest possible cell is one step, even if the output then is larger.
    """
    step = shapes.tile_step_vox(spec)
    lead = _per_axis(lambda b, p, s: (b - p) % s, region.begin_vox, phase_vox, step)
    limit = _per_axis(lambda o, n, s: max(s, (o - n) // s * s), largest_output_vox, lead, step)
    cell = _per_axis(_balanced, region.shape_vox, limit, step)
    wanted = _per_axis(lambda c, n: c + n, cell, lead)
    output = shapes.output_shape_vox(spec, shapes.input_shape_for_output(spec, wanted))
    context = _per_axis(lambda both_sides: both_sides // 2, shapes.context_vox(spec))
    return Tiling(region.begin_vox, cell, lead, output, context)


def block_of_cells(cell_vox: Vox3, region_vox: Vox3, largest_block_vox: Vox3) -> Vox3:
    """Block shape of whole cells: at most `largest_block_vox` but one cell at least; no larger than needed."""
    return _per_axis(lambda c, n, m: _balanced(n, max(c, m // c * c), c), cell_vox, region_vox, largest_block_vox)


def assemble(
    tiling: Tiling, box: Box, result: Values, evaluate: Callable[[Index3], Values | None], each: Each = map
) -> Values:
    """Write the tiles that touch `box` into `result` (channels, *box.shape), which is 0 at first, and return it.

    evaluate(index) gives (channels, *cell) of a tile's cell, or None for a tile that is 0 everywhere.
    """
    indices = list(tiling.indices_touching(box))
    for index, values in zip(indices, each(evaluate, indices), strict=True):
        if values is None:
            continue
        cell = tiling.cell(index)
        shared = cell.intersect(box)
        result[(slice(None), *shared.slices(box.begin_vox))] = values[(slice(None), *shared.slices(cell.begin_vox))]
    return result


def crop_to_cell(tiling: Tiling, output: Values) -> Values:
    """The voxels of a network's output (channels, *output_vox) that the tile owns: (channels, *cell_vox), a view."""
    cell: Values = output[(slice(None), *Box(tiling.lead_vox, tiling.cell_vox).slices())]
    return cell


def _tile_grid(
    spec: shapes.HasFactors, region: Box, phase_vox: Vox3, largest_output_vox: Vox3, largest_block_vox: Vox3
) -> TileGrid:
    tiling = plan_tiling(spec, region, phase_vox, largest_output_vox)
    return TileGrid(region, tiling, block_of_cells(tiling.cell_vox, region.shape_vox, largest_block_vox))


def _largest_tile_vox(config: PredictConfig, bundle: Bundle, voxel_size_nm: Nm3) -> Vox3:
    """The largest output of one evaluation: as configured, else as the bundle says."""
    field, configured = "predict.tile_shape", config.tile_shape
    shape = bundle.predict_output_shape_vox if configured is None else configured.to_vox(voxel_size_nm, field)
    return _require_positive(shape, field)


def _largest_block_vox(config: PredictConfig, voxel_size_nm: Nm3, region: Box, with_lsds: bool) -> Vox3:
    """The largest block: as configured, else a cube of usual size, or a part of a small region."""
    field = "predict.block_shape"
    if config.block_shape is not None:
        return _require_positive(config.block_shape.to_vox(voxel_size_nm, field), field)
    if with_lsds:
        return (LARGEST_BLOCK_WITH_LSDS_VOX,) * 3
    return _per_axis(lambda n: min(LARGEST_BLOCK_VOX, -(-n // FEWEST_BLOCKS_PER_AXIS)), region.shape_vox)


def _require_positive(shape_vox: Vox3, field: str) -> Vox3:
    if min(shape_vox) < 1:
        raise ConfigError("a shape must be positive", where=field, found=shape_vox)
    return shape_vox


def _balanced(extent: int, limit: int, step: int) -> int:
    """Equal lengths that cover `extent`, each a multiple of `step` and at most `limit` (itself a multiple of step)."""
    count = max(1, math.ceil(extent / limit))
    return min(limit, math.ceil(math.ceil(extent / count) / step) * step)


def _per_axis(combine: Callable[..., int], *triples: Vox3) -> Vox3:
    z, y, x = (combine(*values) for values in zip(*triples, strict=True))
    return z, y, x
