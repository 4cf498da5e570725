"""Boxes that are worth labelling, where there is no truth: around the most doubtful decisions."""

from __future__ import annotations

from collections.abc import Iterator

from lsdflow_contract.geometry import Box, Geometry, Vox3
from lsdflow_contract.lut import KnownLut, Lut, read_lut
from lsdflow_evaluate.errors.doubtful_place import DoubtfulPlace, doubtful_place
from lsdflow_evaluate.inputs import Segmented
from lsdflow_evaluate.report.data import ToLabel
from lsdflow_evaluate.scores.counting import vox3
from lsdflow_runtime.blocks import BlockPlan

# So many voxels of each axis, in the middle of the volume, are searched.
SEARCHED_VOX = 192
# The box has so many of the shortest edges of a voxel along each axis, and at least so many voxels.
LABELLED_EDGES, FEWEST_VOX = 64, 16
# Larger tables of thresholds are not read: the box is then in the middle of the volume.
MOST_TABLE_BYTES = 1 << 28
# So many boxes, evenly spread over the volume, are searched for the least certain places.
MOST_SEARCHED = 64


def box_to_label(segmented: Segmented, grid: Geometry) -> ToLabel:
    """The box, from the fragments and the tables of neighbouring thresholds. Raises BadData for damaged ones."""
    whole = segmented.fragments.box
    middle = middle_of(whole)
    searched = box_around(middle, (SEARCHED_VOX,) * 3, whole)
    place = _place_in(segmented, searched, grid)
    at = _moved(place.voxel, searched.begin_vox) if place else middle
    shortest = min(grid.voxel_size_nm)
    shape = vox3([max(FEWEST_VOX, round(LABELLED_EDGES * shortest / size)) for size in grid.voxel_size_nm])
    box = box_around(at, shape, whole)
    return ToLabel(box, grid.position_nm(box.begin_vox), grid.position_nm(at), place)


def least_certain(segmented: Segmented, grid: Geometry, shape: Vox3) -> list[Vox3]:
    """The most doubtful voxel of each searched box of this shape, the one that changes most first."""
    blocks = list(BlockPlan(segmented.fragments.box, shape).blocks())
    found = []
    for block in blocks[:: -(-len(blocks) // MOST_SEARCHED)]:
        if place := _place_in(segmented, block.write, grid):
            found.append((-place.bits, _moved(place.voxel, block.write.begin_vox)))
    return [voxel for _, voxel in sorted(found)]


def _moved(voxel: Vox3, by_vox: Vox3) -> Vox3:
    return vox3([a + b for a, b in zip(voxel, by_vox, strict=True)])


def middle_of(box: Box) -> Vox3:
    """The voxel in the middle of a box."""
    return vox3([b + n // 2 for b, n in zip(box.begin_vox, box.shape_vox, strict=True)])


def box_around(at: Vox3, shape: Vox3, whole: Box) -> Box:
    """A box of this shape, or as much of it as fits, inside `whole`; `at` is in its middle if it can be."""
    fitting = [min(n, most) for n, most in zip(shape, whole.shape_vox, strict=True)]
    begins = [
        min(max(a - n // 2, b), e - n) for a, n, b, e in zip(at, fitting, whole.begin_vox, whole.end_vox, strict=True)
    ]
    return Box(vox3(begins), vox3(fitting))


def _place_in(segmented: Segmented, searched: Box, grid: Geometry) -> DoubtfulPlace | None:
    merge_function, threshold = segmented.chosen
    own = [lut for lut in segmented.luts if lut.merge_function == merge_function]
    own.sort(key=lambda lut: abs(lut.threshold - threshold))
    if len(own) < 2 or own[0].threshold != threshold or own[0].path.stat().st_size > MOST_TABLE_BYTES:
        return None
    fragments = segmented.fragments.read(searched)
    return doubtful_place(fragments, read_lut(own[0].path), _tables(own[1:]), grid.voxel_size_nm)


def _tables(luts: list[KnownLut]) -> Iterator[tuple[float, Lut]]:
    """One after another: only the first that differs is needed."""
    return ((lut.threshold, read_lut(lut.path)) for lut in luts)
