"""Scores of all thresholds against the truth, from one table of fragments x truth counted block by block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.geometry import Box
from lsdflow_metrics.contingency import Contingency, ContingencySum, contingency
from lsdflow_metrics.scores import score
from lsdflow_runtime.io.target import Truth
from lsdflow_runtime.io.volumes import Volume
from lsdflow_segment.graph import SegmentGraph
from lsdflow_segment.lut_pieces import Piece


def fragments_against_truth(fragments: Volume, truth: Truth, boxes: Iterable[Box]) -> Contingency:
    """Count fragments x truth over disjoint boxes that both volumes cover."""
    total = ContingencySum()
    for box in boxes:
        total.add(contingency(fragments.read(box), truth.read(box)))
    return total.table()


def voi_of_thresholds(table: Contingency, graph: SegmentGraph) -> tuple[tuple[float, float], ...]:
    """(VOI split, VOI merge) in bits of each threshold of the graph; segmentation 0 counts as one label."""
    scores = []
    labels = np.unique(table.labels)
    for pieces in graph.tables():
        found = score(table.relabel(*_entries(pieces, labels)), zeros="label")
        scores.append((found.voi_split, found.voi_merge))
    return tuple(scores)


def _entries(pieces: Sequence[Piece], labels: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """The entries of a table, fragments and segments, for those of `labels` (ascending) that it has."""
    fragments, segments = [labels[:0]], [labels[:0]]
    for piece in pieces:
        first, end = np.searchsorted(labels, piece.fragments[0]), np.searchsorted(labels, piece.fragments[-1], "right")
        if first < end:
            here = np.searchsorted(piece.fragments, labels[first:end])
            here = here[piece.fragments[here] == labels[first:end]]
            fragments.append(piece.fragments[here])
            segments.append(piece.segments[here])
    return np.concatenate(fragments), np.concatenate(segments)
