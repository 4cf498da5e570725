"""The merge functions of the field: one row each, from which the stage, its options and its README take all they need.

Score 0 = surely the same neuron, 1 = surely different. On complete faces (seamless fragments) hierarchical_merging
computes the scores; it requires that the score of a union is never below the scores of both parts. In blocks waterz
computes them. Its functions are compiled into its wheel, so no compiler is needed at run time.
"""

from __future__ import annotations

from dataclasses import dataclass

# Codes of functions that are not a quantile.
MEAN, MEDIAN = -1, -2


@dataclass(frozen=True)
class MergeFunction:
    """A merge function and its score, in words.

    `code`: what hierarchical_merging computes: a quantile in percent, or one of the codes above.
    `waterz`: the spelling in waterz; None = for seamless fragments only.
    `initmax`: a face that was not merged yet counts its highest affinity only, once.
    """

    name: str
    words: str
    code: int
    waterz: str | None = None
    initmax: bool = False


def _quantile(percent: int, *, initmax: bool) -> MergeFunction:
    words = "1 - that % quantile of its affinities, from 256 bins"
    return MergeFunction(
        f"hist_quant_{percent}{'_initmax' if initmax else ''}",
        f"{words}; a face that was not merged yet counts its highest bin only" if initmax else words,
        percent,
        f"OneMinus<HistogramQuantileAffinity<RegionGraphType, {percent}, ScoreValue, 256, {str(initmax).lower()}>>",
        initmax,
    )


_ROWS = (
    MergeFunction("mean", "1 - its mean affinity", MEAN, "OneMinus<MeanAffinity<RegionGraphType, ScoreValue>>"),
    *(_quantile(percent, initmax=initmax) for percent in (10, 25, 50, 75, 90) for initmax in (False, True)),
    MergeFunction("median", "1 - the exact median of its affinities", MEDIAN),
)
MERGE_FUNCTIONS = {row.name: row for row in _ROWS}
WATERZ_NAMES = {row.name: row.waterz for row in _ROWS if row.waterz is not None}


def names_by_score() -> dict[str, list[str]]:
    """The score of a face in words, and the merge functions that compute it: for --help and the README."""
    found: dict[str, list[str]] = {}
    for row in _ROWS:
        found.setdefault(row.words if row.waterz else f"{row.words}; seamless fragments only", []).append(row.name)
    return found
