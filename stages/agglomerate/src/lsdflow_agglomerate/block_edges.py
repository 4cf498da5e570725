"""The edges of one block for fragments that end at block faces (id_mode = blocks); each edge is scored once.

+--------+--------+     A fragment is completely inside its own block, so with one voxel of context this block contains
|   u    |  v     |     all its contacts. The edge u-v, u < v, is complete in the block of u, and the block of v
|   +====+===+    |     leaves it out.
+--------+--------+
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_agglomerate.scoring import distinct_ids, score_edges
from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_contract.graph import RagEdges


@dataclass(frozen=True)
class FragmentNaming:
    """The ids of fragments in mode `blocks`: id = row-major block number * voxels per block + local number.

    Blocks of `block_shape_vox` are counted from `total.begin_vox`.
    """

    total: Box
    block_shape_vox: Vox3
    voxels_per_block: int

    def block_begins_vox(self, ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """First voxel (N, 3) of the blocks of the fragments `ids` (N,), all > 0."""
        number = ((ids - np.uint64(1)) // np.uint64(self.voxels_per_block)).astype(np.int64)
        _, ny, nx = (-(-t // b) for t, b in zip(self.total.shape_vox, self.block_shape_vox, strict=True))
        index = np.stack([number // (ny * nx), number // nx % ny, number % nx], axis=1)
        begins: NDArray[np.int64] = np.asarray(self.total.begin_vox) + index * np.asarray(self.block_shape_vox)
        return begins

    def made_in(self, ids: NDArray[np.uint64], box: Box) -> NDArray[np.bool_]:
        """Which of the fragments (N,) belong to a block inside `box`, which consists of whole blocks."""
        begins = self.block_begins_vox(ids)
        inside = (begins >= np.asarray(box.begin_vox)) & (begins < np.asarray(box.end_vox))
        whole: NDArray[np.bool_] = np.all(inside, axis=1)
        return whole


def owned_edges(edges: RagEdges, naming: FragmentNaming, write: Box) -> RagEdges:
    """The edges that the block with this write box scores."""
    kept = naming.made_in(edges.u, write)
    return RagEdges(edges.u[kept], edges.v[kept], edges.merge_score[kept])


def check_names(fragments: NDArray[np.uint64], naming: FragmentNaming, write: Box) -> None:
    """Raise an error if fragments of a write box have ids of another block: edges would be lost or counted twice.

    :raises BadData: names the first such id.
    """
    ids = distinct_ids(fragments)
    foreign = ids[~naming.made_in(ids, write)]
    if foreign.size:
        raise BadData(
            "fragments have ids of another block",
            where=f"volumes/fragments {write}",
            wanted=f"ids of blocks of {naming.block_shape_vox} voxels inside it",
            found=f"{foreign.size} others, first {foreign[0]}",
            fix="run watershed again",
        )


def edges_of_block(
    affs: NDArray[np.uint8],
    fragments: NDArray[np.uint64],
    boxes: tuple[Box, Box],
    naming: FragmentNaming,
    merge_functions: tuple[str, ...],
) -> dict[str, RagEdges]:
    """Score the edges of a block; edges of other blocks in the context are left out.

    :param affs: (3, z, y, x) u8 of the read box.
    :param fragments: (z, y, x) ids of the read box, 0 = none.
    :param boxes: write box and read box.
    :returns: edges by merge function, ascending by (u, v).
    :raises BadData: fragments inside the write box have ids of another block.
    """
    write, read = boxes
    check_names(fragments[write.slices(relative_to=read.begin_vox)], naming, write)
    scored = score_edges(affs, fragments, merge_functions)
    return {name: owned_edges(edges, naming, write) for name, edges in scored.items()}
