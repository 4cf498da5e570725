"""Scores of the edges of one block, with waterz.

1. Give the fragments of the read box dense labels (waterz needs memory by the largest label), in ascending order.
2. List the pairs that touch.
3. Let waterz merge everything it can (up to score 1) and keep the history of its merges.
4. The score of an edge is that of the merge that joined its two fragments, NaN if none did.

waterz is asked for one threshold and for no region graph: with more of either, 0.10.1 gives wrong results (the region
graph of one threshold spoils the queue of the next).
"""

from __future__ import annotations

import numpy as np
import waterz
from numpy.typing import NDArray

from lsdflow_agglomerate.adjacency import touching_pairs
from lsdflow_agglomerate.distinct_ids import dense_labels
from lsdflow_agglomerate.merge_functions import QUEUE_BINS, WATERZ_NAMES
from lsdflow_agglomerate.merge_tree import MergeHistory, merge_scores
from lsdflow_contract.arrays import dequantise_u8
from lsdflow_contract.graph import RagEdges
from lsdflow_runtime.compiled import silent_stdout

_HIGHEST_SCORE = 1.0


def score_edges(
    affs: NDArray[np.uint8], fragments: NDArray[np.uint64], merge_functions: tuple[str, ...]
) -> dict[str, RagEdges]:
    """Score all edges between the fragments of a box, for each merge function.

    :param affs: (3, z, y, x) u8 0-255, channels z, y, x: affinity of a voxel to its lower neighbour.
    :param fragments: (z, y, x) ids, 0 = none.
    :param merge_functions: names of :data:`lsdflow_agglomerate.merge_functions.MERGE_FUNCTIONS`.
    :returns: edges by merge function, u < v, ascending by (u, v), scores in [0, 1] or NaN (never merged).
    """
    dense, ids = dense_labels(fragments)
    u, v = touching_pairs(dense)
    if not u.size:
        return {name: RagEdges.empty() for name in merge_functions}
    affinities = dequantise_u8(affs[:3])
    edges = {}
    for name in merge_functions:
        history = merge_history(affinities, dense, name, _HIGHEST_SCORE)
        scores = merge_scores(history, len(ids) - 1, u, v)
        # means of means may leave [0, 1] by a rounding error; NaN stays NaN
        edges[name] = RagEdges(ids[u], ids[v], np.clip(scores, 0, 1))
    return edges


def merge_history(
    affinities: NDArray[np.float32], labels: NDArray[np.uint64], merge_function: str, threshold: float
) -> MergeHistory:
    """Merges that waterz makes while the score is below `threshold`, in its order.

    :param affinities: (3, z, y, x) in [0, 1].
    :param labels: (z, y, x) dense labels, 0 = none; not changed.
    """
    with silent_stdout():
        steps = waterz.agglomerate(
            affs=affinities,
            thresholds=[threshold],
            fragments=labels.copy(),
            scoring_function=WATERZ_NAMES[merge_function],
            discretize_queue=QUEUE_BINS,
            return_merge_history=True,
        )
        merges = [merge for _, history in steps for merge in history]
    return MergeHistory(
        into=np.array([m["a"] for m in merges], np.int64),
        taken=np.array([m["b"] for m in merges], np.int64),
        score=np.array([m["score"] for m in merges], np.float32),
    )
