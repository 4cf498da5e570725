"""Tiles: the fixed grid of network evaluations from which every prediction is put together.

A network is only ever evaluated on *tiles* of one shape, whose places depend on the target and the region of interest
alone, never on the blocks. A block is put together from the tiles that touch it. So a voxel's value is a function of
its tile, and blocks of any shape, in any order, on any number of workers, give the same bits.

    |<------------------- input (valid shape) ------------------->|
    |<-- context -->|<----------- output ------------>|<-context->|
                    |<lead>|<------ cell ------>|spare|
                           ^ first voxel the tile owns

1. Cells tile the region: cell i begins at origin + i * cell shape; the cell shape is a multiple of the network's step
   (the product of its downsampling factors), so all tiles meet the pooling grid in the same phase.
2. The pooling grid is anchored at the target's first voxel (plus a constant `phase`); a region that begins off the
   grid gets a `lead`: the evaluation begins on the grid, up to step - 1 voxels before the cell.
3. Valid networks only give outputs of certain shapes; the smallest one >= lead + cell is used, the rest (`spare`)
   is thrown away.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from lsdflow_contract.geometry import Box, Vox3

Index3 = tuple[int, int, int]
# Arrays of numpy or torch: both are indexed in the same way.
Values = TypeVar("Values", bound=Any)


class NetShapes(Protocol):
    """What tiling must know of a network's shape arithmetic."""

    @property
    def step_vox(self) -> Vox3:
        """Product of the downsampling factors."""

    @property
    def context_vox(self) -> Vox3:
        """Voxels lost on each side: (input - output) / 2."""

    def output_covering(self, wanted_vox: Vox3) -> Vox3:
        """Smallest output shape the network can give that is at least `wanted_vox`."""


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
        return hull((self.input((z[0], y[0], x[0])), self.input((z[-1], y[-1], x[-1]))))

    def _ranges(self, box: Box) -> list[range]:
        """Indices of the tiles that touch `box`, along each axis."""
        bounds = zip(box.begin_vox, box.end_vox, self.origin_vox, self.cell_vox, strict=True)
        return [range((b - o) // s, -((o - e) // s)) for b, e, o, s in bounds]


def plan_tiling(net: NetShapes, region: Box, phase_vox: Vox3, largest_output_vox: Vox3) -> Tiling:
    """Tiles for predicting `region` (not empty) with outputs of about `largest_output_vox` at most.

    phase_vox: where the pooling grid is anchored (outputs begin at phase + a multiple of the step).
    Cells are balanced: as few as the largest output allows, then as equal as the step allows, so that little is
    evaluated past the end of the region. The smallest possible cell is one step, even if the output then is larger.
    """
    step = net.step_vox
    lead = _per_axis(lambda b, p, s: (b - p) % s, region.begin_vox, phase_vox, step)
    limit = _per_axis(lambda o, n, s: max(s, (o - n) // s * s), largest_output_vox, lead, step)
    cell = _per_axis(_balanced, region.shape_vox, limit, step)
    output = net.output_covering(_per_axis(lambda c, n: c + n, cell, lead))
    return Tiling(region.begin_vox, cell, lead, output, net.context_vox)


def block_of_cells(cell_vox: Vox3, region_vox: Vox3, largest_block_vox: Vox3) -> Vox3:
    """Block shape of whole cells: at most `largest_block_vox` but one cell at least; no larger than needed."""
    return _per_axis(lambda c, n, m: _balanced(n, max(c, m // c * c), c), cell_vox, region_vox, largest_block_vox)


def hull(boxes: Iterable[Box]) -> Box:
    """The smallest box that holds all `boxes` (at least one)."""
    found = list(boxes)
    begin = _per_axis(lambda *values: min(values), *(b.begin_vox for b in found))
    end = _per_axis(lambda *values: max(values), *(b.end_vox for b in found))
    return Box.from_bounds(begin, end)


def assemble(tiling: Tiling, box: Box, result: Values, evaluate: Callable[[Index3], Values | None]) -> Values:
    """Grey levels of `box`, put together from tiles in `result` (channels, *box.shape), which is 0 and is returned.

    evaluate(index) gives (channels, *cell) of a tile's cell, or None for a tile that is 0 everywhere.
    """
    for index in tiling.indices_touching(box):
        values = evaluate(index)
        if values is None:
            continue
        cell = tiling.cell(index)
        shared = cell.intersect(box)
        result[(slice(None), *shared.slices(box.begin_vox))] = values[(slice(None), *shared.slices(cell.begin_vox))]
    return result


def crop_to_cell(tiling: Tiling, output: Values) -> Values:
    """The part of a network's output (channels, *output_vox) that the tile owns: (channels, *cell_vox), a view."""
    cell: Values = output[(slice(None), *Box(tiling.lead_vox, tiling.cell_vox).slices())]
    return cell


def _balanced(extent: int, limit: int, step: int) -> int:
    """Equal parts of `extent`, each a multiple of `step` and at most `limit` (itself a multiple of step)."""
    parts = max(1, math.ceil(extent / limit))
    return min(limit, math.ceil(math.ceil(extent / parts) / step) * step)


def _per_axis(combine: Callable[..., int], *triples: Vox3) -> Vox3:
    z, y, x = (combine(*values) for values in zip(*triples, strict=True))
    return z, y, x
