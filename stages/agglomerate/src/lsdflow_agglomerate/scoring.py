r"""Scores of the edges of one block, with waterz.

1. Give the fragments of the read box dense labels in ascending order (the memory of waterz grows with the largest
   label). Ids repeat along x, so each run of equal voxels is processed once:

   voxels   8 8 8 3 3 0 0 8      run begins   0 3 5 7      ids 3 8      labels   2 2 2 1 1 0 0 2

2. List the pairs that touch.
3. Let waterz merge as much as possible (up to score 1) and keep the history of its merges.
4. The score of an edge is that of the merge that joined its two fragments, NaN if none did. A merge adds region b to
   region a, which keeps its label; merges are numbered in their order:

       merge 0: 2 into 1      merge 1: 4 into 3      merge 2: 3 into 1

              1
             / \              Each region points to the one it was added to, with the number of that merge. Numbers
          0 /   \ 2           grow upwards, so to find the merge that joined u and v, walk up from the one with the
           2     3            lower number until both meet: the last merge on the way is the lowest common ancestor
                  \ 1        of u and v in the merge tree. For 2 and 4: merges 0, 1 and 2; they meet in 1.
                   4

waterz is called with one threshold and without a region graph: with more of either, 0.10.1 gives wrong results (the
region graph of one threshold spoils the queue of the next).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import waterz
from numpy.typing import NDArray

from lsdflow_agglomerate.faces import find_faces
from lsdflow_agglomerate.merge_functions import WATERZ_NAMES
from lsdflow_contract.arrays import dequantise_u8
from lsdflow_contract.graph import RagEdges
from lsdflow_runtime.compiled import compiled, silent_stdout

Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]

_HIGHEST_SCORE = 1.0
_QUEUE_BINS = 256


def distinct_ids(fragments: UInt64s) -> UInt64s:
    """The ids of an array, ascending, each once; without 0 (none)."""
    flat = np.ascontiguousarray(fragments).ravel()
    ids = np.unique(flat[_run_begins(flat)])
    return ids[ids > 0]


def dense_labels(fragments: UInt64s) -> tuple[UInt64s, UInt64s]:
    """Replace ids by 0..n in ascending order (0 stays 0).

    :returns: (z, y, x) u64 labels, and (n + 1,) the id of each label.
    """
    flat = np.ascontiguousarray(fragments).ravel()
    begins = _run_begins(flat)
    ids = np.unique(np.append(flat[begins], np.uint64(0)))
    labels = np.searchsorted(ids, flat[begins]).astype(np.uint64)
    return np.repeat(labels, np.diff(begins, append=flat.size)).reshape(fragments.shape), ids


def _run_begins(flat: UInt64s) -> Int64s:
    """Where an id differs from the one before; the first does."""
    begins: Int64s = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    return np.append(np.zeros(min(1, flat.size), np.int64), begins)


def touching_pairs(labels: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All pairs of labels that share a voxel face (6 neighbours); label 0 touches nothing.

    :param labels: (z, y, x), below 2^63.
    :returns: u, v (N,) with u < v, each pair once, ascending by (u, v).
    """
    faces = find_faces(np.zeros((3, *labels.shape), np.uint8), labels, (0, 0, 0))
    order = np.lexsort((faces.v, faces.u))
    return faces.u[order].astype(np.int64), faces.v[order].astype(np.int64)


@dataclass(frozen=True)
class MergeHistory:
    """Merges in their order: region `taken` became part of region `into` at `score`."""

    into: NDArray[np.int64]
    taken: NDArray[np.int64]
    score: NDArray[np.float32]


def merge_scores(
    history: MergeHistory, label_count: int, u: NDArray[np.int64], v: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Score of the merge that joined each pair; NaN if none did.

    :param label_count: labels are 1..label_count.
    :param u, v: (N,) pairs of labels.
    """
    taken_by = np.arange(label_count + 1, dtype=np.int64)
    taken_by[history.taken] = history.into
    merge_number = np.full(label_count + 1, len(history.taken), np.int64)
    merge_number[history.taken] = np.arange(len(history.taken))
    last = _joining_merges(taken_by, merge_number, u, v)
    scores = np.append(history.score, np.float32(np.nan)).astype(np.float32)
    return scores[last]


@compiled
def _joining_merges(
    taken_by: NDArray[np.int64], merge_number: NDArray[np.int64], u: NDArray[np.int64], v: NDArray[np.int64]
) -> NDArray[np.int64]:
    last = np.empty(u.size, np.int64)
    for pair in range(u.size):
        a, b = u[pair], v[pair]
        merge = np.int64(-1)
        while a != b:
            if merge_number[a] > merge_number[b]:
                a, b = b, a
            merge = merge_number[a]
            if taken_by[a] == a:
                # both are roots, so no merge joined them; the number of roots is that after the last merge
                break
            a = taken_by[a]
        last[pair] = merge
    return last


def score_edges(
    affs: NDArray[np.uint8], fragments: NDArray[np.uint64], merge_functions: tuple[str, ...]
) -> dict[str, RagEdges]:
    """Score all edges between the fragments of a box, for each merge function.

    :param affs: (3, z, y, x) u8 0-255, channels z, y, x: affinity of a voxel to its lower neighbour.
    :param fragments: (z, y, x) ids, 0 = none.
    :param merge_functions: names of :data:`lsdflow_agglomerate.merge_functions.WATERZ_NAMES`.
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
            discretize_queue=_QUEUE_BINS,
            return_merge_history=True,
        )
        merges = [merge for _, history in steps for merge in history]
    return MergeHistory(
        into=np.array([m["a"] for m in merges], np.int64),
        taken=np.array([m["b"] for m in merges], np.int64),
        score=np.array([m["score"] for m in merges], np.float32),
    )
