"""One block in mode `seamless`: fragments that go on in the next block under the same id.

read box  +-------------------+      Fragments are made in the read box, named by their seeds, and cropped: not cut into
          |   +-----------+   |      pieces. The nodes describe the voxels of the write box only; those of all blocks
          |   | write box |   |      that hold a part of a fragment add up.
          |   +-----------+   |
          +-------------------+      Where processes are thicker than the context, blocks see other seeds: there the
                                     fragment ends at the face, and agglomerate joins it on the complete face.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.geometry import Geometry
from lsdflow_contract.graph import RagNodes
from lsdflow_watershed.block_fragments import BlockPlace, BlockRules
from lsdflow_watershed.distance import inside_mask, squared_distance
from lsdflow_watershed.fragments import FragmentRules, drop_weak_fragments
from lsdflow_watershed.nodes import partial_nodes
from lsdflow_watershed.seamless_flood import flood_by_seed
from lsdflow_watershed.sections import replace_sections
from lsdflow_watershed.seed_names import number_seeds, seed_ids
from lsdflow_watershed.seeds import label_seeds


def seamless_fragments_of_block(
    affs: NDArray[np.uint8], mask: NDArray[np.uint8] | None, place: BlockPlace, rules: BlockRules, grid: Geometry
) -> tuple[NDArray[np.uint64], RagNodes]:
    """Make the fragments of a block.

    :param affs: (3, z, y, x) u8 of the read box.
    :param mask: (z, y, x) u8 of the read box, fragments only where > 0; None = everywhere.
    :param grid: the target volume: seeds are named by their place in it.
    :returns: (z, y, x) u64 ids of the write box, 0 = no fragment; and a row for each id, ascending.
    """
    fragments, first = seeded_fragments(affs, mask, rules.fragments)
    if rules.bad_z:
        fragments = replace_sections(fragments, place.read.begin_vox[0], rules.bad_z, rules.filling)
        if mask is not None:
            fragments[mask == 0] = 0
    ids = seed_ids(first, place.read, grid.shape_vox)
    cropped = fragments[place.write.slices(relative_to=place.read.begin_vox)]
    return ids[cropped], partial_nodes(cropped, ids, place.write.begin_vox, grid)


def seeded_fragments(
    affs: NDArray[np.uint8], mask: NDArray[np.uint8] | None, rules: FragmentRules
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Fragments of a box, numbered by their seeds.

    :returns: (z, y, x) numbers 1..n, 0 = none; and (n,) row-major index of the first voxel of each seed in the box.
    :raises BadData: when `affs` is no u8 array of three channels.
    """
    in_xy = rules.fragments_in_xy
    inside = inside_mask(affs, in_xy)
    if mask is not None:
        inside &= mask > 0
    distance = squared_distance(inside, in_xy)
    seeds, first = number_seeds(label_seeds(distance, rules.min_seed_distance_vox, in_xy))
    fragments = flood_by_seed(distance, seeds, in_xy)
    if mask is not None:
        fragments[mask == 0] = 0
    if rules.filter_fragments > 0:
        fragments = drop_weak_fragments(fragments, affs, rules.filter_fragments, in_xy)
    return fragments, first
