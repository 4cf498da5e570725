"""One block: from affinities and fragments of its read box to the edges it owns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lsdflow_agglomerate.ownership import FragmentNaming, check_names, owned_edges
from lsdflow_agglomerate.scoring import score_edges
from lsdflow_contract.geometry import Box
from lsdflow_contract.graph import RagEdges


def edges_of_block(
    affs: NDArray[np.uint8],
    fragments: NDArray[np.uint64],
    boxes: tuple[Box, Box],
    naming: FragmentNaming,
    merge_functions: tuple[str, ...],
) -> dict[str, RagEdges]:
    """Score the edges of a block; those of other blocks, seen in the context, are left out.

    :param affs: (3, z, y, x) u8 of the read box.
    :param fragments: (z, y, x) ids of the read box, 0 = none.
    :param boxes: write box and read box.
    :returns: edges by merge function, ascending by (u, v).
    :raises BadData: fragments inside the write box bear ids of another block.
    """
    write, read = boxes
    check_names(fragments[write.slices(relative_to=read.begin_vox)], naming, write)
    scored = score_edges(affs, fragments, merge_functions)
    return {name: owned_edges(edges, naming, write) for name, edges in scored.items()}
