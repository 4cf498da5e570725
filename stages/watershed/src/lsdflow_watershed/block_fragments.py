"""One block: from what is read (with context) to what is written: ids of the write box and the nodes of the graph.

read box  +-------------------+      fragments are made in the read box, so that those at the rim of the write box
          |   +-----------+   |      look like those that the neighbour block makes;
          |   | write box |   |      then cropped, cut into connected pieces, numbered, named.
          |   +-----------+   |
          +-------------------+
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.graph import RagNodes
from lsdflow_watershed.fragments import FragmentRules, extract_fragments
from lsdflow_watershed.ids import global_ids, number_components
from lsdflow_watershed.mutex_fragments import MutexRules, extract_mutex_fragments
from lsdflow_watershed.nodes import fragment_nodes
from lsdflow_watershed.sections import Filling, replace_sections


@dataclass(frozen=True)
class BlockPlace:
    """Where a block lies on the target grid: its number, what it writes, what was read for it."""

    number: int
    write: Box
    read: Box


@dataclass(frozen=True)
class BlockRules:
    """What holds for every block: how fragments are made (mutex: by the mutex watershed), named, and bad sections."""

    fragments: FragmentRules
    voxels_per_block: int
    bad_z: frozenset[int] = frozenset()
    filling: Filling = "zero"
    mutex: MutexRules | None = None


def fragments_of_block(
    affs: NDArray[np.uint8], mask: NDArray[np.uint8] | None, place: BlockPlace, rules: BlockRules, grid: Geometry
) -> tuple[NDArray[np.uint64], RagNodes]:
    """Make the fragments of a block.

    :param affs: (3 or more, z, y, x) u8 of the read box.
    :param mask: (z, y, x) u8 of the read box, fragments only where > 0; None = everywhere.
    :param grid: the target volume, for positions in nm.
    :returns: (z, y, x) u64 ids of the write box, 0 = no fragment; and one node per id, in ascending order.
    """
    if rules.mutex is None:
        fragments = extract_fragments(affs, mask, rules.fragments)
    else:
        fragments = extract_mutex_fragments(affs, mask, rules.fragments, rules.mutex, place.read.begin_vox)
    if rules.bad_z:
        fragments = replace_sections(fragments, place.read.begin_vox[0], rules.bad_z, rules.filling)
        if mask is not None:
            fragments[mask == 0] = 0
    cropped = fragments[place.write.slices(relative_to=place.read.begin_vox)]
    numbers, count = number_components(cropped)
    ids = global_ids(numbers, place.number, rules.voxels_per_block)
    first_id = place.number * rules.voxels_per_block + 1
    return ids, fragment_nodes(numbers, count, first_id, place.write.begin_vox, grid)
