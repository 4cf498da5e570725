"""One block: computes the fragments of its write box and the nodes of the graph from the affinities of its read box.

read box  +-------------------+      Fragments are computed in the read box, so that at the edge of the write box they
          |   +-----------+   |      match those of the neighbouring block; then they are cropped.
          |   | write box |   |
          |   +-----------+   |
          +-------------------+

blocks      cropped fragments are split into face-connected components; an id consists of block number and local number.
seamless    fragments have the ids of their seeds, and are not split. The nodes describe the voxels of the write box
            only; the nodes of a fragment in several blocks are summed. Where processes are thicker than the context,
            blocks find different seeds. There the fragment ends at the face, and agglomerate joins it across the
            complete face.

Affinities of bad sections (folds, knife marks, missing slices) are not used:

    z     41   42   43   44   45            replace_sections = [43, 44]
    zero  aa   aa   ..   ..   bb            no fragments there: the cell falls into two parts
    copy  aa   aa   aa   bb   bb            fragments of the nearest good section (lower z on ties)

z is the index of a section in the target volume, from 0, so it is the same in every block.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.graph import RagNodes
from lsdflow_watershed.fragments import FragmentRules, extract_fragments, seeded_fragments
from lsdflow_watershed.ids import global_ids, number_components, seed_ids
from lsdflow_watershed.mutex import MutexRules, extract_mutex_fragments
from lsdflow_watershed.nodes import fragment_nodes, partial_nodes

Filling = Literal["zero", "copy"]


def replace_sections(
    fragments: NDArray[np.uint32], begin_z: int, bad_z: Collection[int], filling: Filling
) -> NDArray[np.uint32]:
    """Clear the fragments of bad sections, or copy the fragments of the nearest good section in this array.

    :param fragments: (z, y, x); the first section is section `begin_z` of the volume.
    :param bad_z: sections of the volume; those outside this array are ignored.
    :returns: a new array; all 0 in a bad section without any good one to copy from.
    """
    bad = np.zeros(fragments.shape[0], bool)
    bad[[z - begin_z for z in bad_z if 0 <= z - begin_z < fragments.shape[0]]] = True
    good = np.flatnonzero(~bad)
    replaced = fragments.copy()
    for z in np.flatnonzero(bad):
        if filling == "copy" and good.size:
            replaced[z] = fragments[good[np.argmin(np.abs(good - z))]]
        else:
            replaced[z] = 0
    return replaced


@dataclass(frozen=True)
class BlockPlace:
    """A block on the target grid: its number, write box and read box."""

    number: int
    write: Box
    read: Box


@dataclass(frozen=True)
class BlockRules:
    """The rules for all blocks: computation of fragments (mutex: by the mutex watershed), ids, bad sections."""

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
    numbers, count = number_components(_of_write_box(fragments, mask, place, rules))
    ids = global_ids(numbers, place.number, rules.voxels_per_block)
    first_id = place.number * rules.voxels_per_block + 1
    return ids, fragment_nodes(numbers, count, first_id, place.write.begin_vox, grid)


def seamless_fragments_of_block(
    affs: NDArray[np.uint8], mask: NDArray[np.uint8] | None, place: BlockPlace, rules: BlockRules, grid: Geometry
) -> tuple[NDArray[np.uint64], RagNodes]:
    """Make the fragments of a block.

    :param affs: (3, z, y, x) u8 of the read box.
    :param mask: (z, y, x) u8 of the read box, fragments only where > 0; None = everywhere.
    :param grid: the target volume: the ids of seeds are positions in it.
    :returns: (z, y, x) u64 ids of the write box, 0 = no fragment; and a row for each id, ascending.
    """
    fragments, first = seeded_fragments(affs, mask, rules.fragments)
    ids = seed_ids(first, place.read, grid.shape_vox)
    cropped = _of_write_box(fragments, mask, place, rules)
    return ids[cropped], partial_nodes(cropped, ids, place.write.begin_vox, grid)


def _of_write_box(
    fragments: NDArray[np.uint32], mask: NDArray[np.uint8] | None, place: BlockPlace, rules: BlockRules
) -> NDArray[np.uint32]:
    if rules.bad_z:
        fragments = replace_sections(fragments, place.read.begin_vox[0], rules.bad_z, rules.filling)
        if mask is not None:
            fragments[mask == 0] = 0
    return fragments[place.write.slices(relative_to=place.read.begin_vox)]
