"""Slow and obviously right: agglomeration with dictionaries; in every round all scores are computed again."""

from __future__ import annotations

import statistics
from collections import Counter

import numpy as np

from lsdflow_contract.graph import RagFaces

Pair = tuple[int, int]
Merge = tuple[int, int, float]


def rows_of(faces: RagFaces) -> dict[Pair, Counter[int]]:
    """Histogram of each pair."""
    histograms: dict[Pair, Counter[int]] = {}
    for u, v, affinity, count in zip(
        *(getattr(faces, n).tolist() for n in ("u", "v", "affinity", "count")), strict=True
    ):
        histograms.setdefault((u, v), Counter())[affinity] += count
    return histograms


def score_of(histogram: Counter[int], merge_function: str) -> float:
    """1 - mean, 1 - median, or 1 - middle of the bin that holds the quantile."""
    values = sorted(histogram.elements())
    if merge_function == "mean":
        return float(np.float32(1 - sum(values) / (255 * len(values))))
    if merge_function == "median":
        return float(np.float32(1 - statistics.median(values) / 255))
    quantile = int(merge_function.split("_")[2])
    return 1 - (values[quantile * len(values) // 100] + 0.5) / 256


def slow_merges(faces: RagFaces, merge_function: str) -> tuple[list[Merge], dict[Pair, float], int]:
    """Merges (smallest fragments of both regions, score), score of each pair that was joined, number of ties met."""
    histograms = rows_of(faces)
    if merge_function.endswith("_initmax"):
        histograms = {pair: Counter([max(h)]) for pair, h in histograms.items()}
    region = {fragment: fragment for pair in histograms for fragment in pair}
    merges: list[Merge] = []
    joined: dict[Pair, float] = {}
    ties = 0
    while True:
        between: dict[Pair, tuple[Counter[int], Pair]] = {}
        for (u, v), histogram in histograms.items():
            a, b = sorted((region[u], region[v]))
            if a != b:
                known, origin = between.get((a, b), (Counter(), (0, 0)))
                between[a, b] = (known + histogram, max(origin, (u, v)))
        scored = sorted((score_of(h, merge_function), origin, pair) for pair, (h, origin) in between.items())
        if not scored or scored[0][0] >= 1:
            return merges, joined, ties
        ties += len(scored) > 1 and scored[0][0] == scored[1][0]
        score, _, (a, b) = scored[0]
        merges.append((a, b, score))
        for u, v in histograms:
            if sorted((region[u], region[v])) == [a, b]:
                joined[u, v] = score
        region = {fragment: a if name == b else name for fragment, name in region.items()}
