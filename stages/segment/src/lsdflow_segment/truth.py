"""Scores of all thresholds against the truth, from one table of fragments x truth counted block by block."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.arrays import MaskState
from lsdflow_contract.geometry import Box
from lsdflow_metrics.contingency import Contingency, ContingencySum, contingency
from lsdflow_metrics.scores import score
from lsdflow_runtime.volumes import Volume
from lsdflow_segment.graph import SweptGraph


@dataclass(frozen=True)
class Truth:
    """True labels on the target's grid, and their mask if there is one: masked-out voxels count as not labelled."""

    labels: Volume
    mask: Volume | None

    def read(self, box: Box) -> NDArray[np.uint64]:
        """Labels of `box` (z, y, x), 0 where the mask says ignore."""
        labels = self.labels.read(box).astype(np.uint64)
        if self.mask is not None:
            labels[self.mask.read(box) == MaskState.IGNORE] = 0
        return labels


def fragments_against_truth(fragments: Volume, truth: Truth, boxes: Iterable[Box]) -> Contingency:
    """Count fragments x truth over disjoint boxes that both volumes cover."""
    total = ContingencySum()
    for box in boxes:
        total.add(contingency(fragments.read(box), truth.read(box)))
    return total.table()


def voi_of_thresholds(table: Contingency, graph: SweptGraph) -> tuple[tuple[float, float], ...]:
    """(VOI split, VOI merge) in bits of each threshold of the sweep; segmentation 0 counts as one label."""
    scores = []
    for positions in graph.sweep.partitions():
        found = score(table.relabel(graph.fragments, graph.fragments[positions]), zeros="label")
        scores.append((found.voi_split, found.voi_merge))
    return tuple(scores)
