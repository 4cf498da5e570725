"""Where the bits of the VOI go: into the threshold, the agglomeration, the borders, or merges inside fragments.

    VOI, bits
    chosen threshold                                 |========================|
    best threshold                                   |====================|      threshold
    each segment given its best neuron               |=================|         agglomeration, but for merges
    each fragment given its best neuron              |=============|             agglomeration
    the same without a border of two voxels          |=====|                     borders
    what is left: neurons that are merged inside fragments, and cannot be cut by any threshold

"Given its best neuron" is the score of a perfect agglomeration of these parts: each takes the truth of most of its
voxels, so all parts of a neuron are joined and no two neurons are, except where one part covers both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lsdflow_contract.lut import Lut
from lsdflow_evaluate.scores.counting import ROI
from lsdflow_evaluate.scores.truth_scores import TruthScores, best_of
from lsdflow_metrics.contingency import Contingency, UInt64s
from lsdflow_metrics.scores import ZeroPolicy, score

# The share of the borders is what disappears with borders of this width.
SHARE_BORDER_VOX = 2


def error_budget(
    found: TruthScores, table: Contingency, without_borders: Mapping[int, Contingency], lut: Lut, zeros: ZeroPolicy
) -> dict[str, Any]:
    """The VOI (bits) of each line of the drawing, for scores.json.

    table: fragments x truth of the region; without_borders: the same without borders of so many voxels, left out if no
    voxel remains; lut: the fragments and segments of the chosen threshold.
    """
    chosen = found.chosen_score
    if chosen is None or table.total_vox == 0:
        return {}
    merge_function, _ = found.chosen
    own = [row for row in found.regions[ROI].scores if row.merge_function == merge_function]
    best = best_of(list(own), merge_function)
    rows = []
    for border_vox, counted in without_borders.items():
        if counted.total_vox:
            row = {"border_vox": border_vox, "voi": _voi(counted.relabel(lut.fragments, lut.segments), zeros)}
            rows.append({**row, "fragments_at_best": _voi(at_best(counted), zeros)})
    return {
        "voi": chosen.partition.voi,
        "best_threshold": best,
        "voi_at_best_threshold": min(row.partition.voi for row in own),
        "segments_at_best": _voi(at_best(table.relabel(lut.fragments, lut.segments)), zeros),
        "fragments_at_best": _voi(at_best(table), zeros),
        "without_borders": rows,
    }


def at_best(table: Contingency) -> Contingency:
    """The table in which each label is replaced by the truth of most of its voxels, the lowest one if equal."""
    order = np.lexsort((table.truths, -table.voxels, table.labels))
    labels, truths = table.labels[order], table.truths[order]
    first = np.flatnonzero(np.concatenate([[True], labels[1:] != labels[:-1]])) if len(labels) else np.zeros(0, int)
    keep = first[labels[first] != 0]
    known: UInt64s = labels[keep]
    return table.relabel(known, truths[keep])


def shares(budget: Mapping[str, Any]) -> dict[str, float]:
    """Bits of threshold, agglomeration, borders and fragments, at least 0 each; empty without borders to compare."""
    rows = {row["border_vox"]: row for row in budget.get("without_borders", ())}
    if SHARE_BORDER_VOX not in rows:
        return {}
    fragments = budget["fragments_at_best"]
    without_borders = min(rows[SHARE_BORDER_VOX]["fragments_at_best"], fragments)
    return {
        "threshold": max(0.0, budget["voi"] - budget["voi_at_best_threshold"]),
        "agglomeration": max(0.0, budget["voi_at_best_threshold"] - fragments),
        "borders": fragments - without_borders,
        "fragments": without_borders,
    }


def _voi(table: Contingency, zeros: ZeroPolicy) -> float:
    return score(table, zeros).voi
