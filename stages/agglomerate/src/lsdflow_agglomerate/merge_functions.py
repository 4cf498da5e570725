"""The merge functions of the field by name, and their spelling in waterz.

    mean                      1 - mean affinity of the face
    hist_quant_75             1 - 75 % quantile of the affinities of the face, from a histogram of 256 bins
    hist_quant_75_initmax     the same, but the histogram of a fresh edge holds its highest bin only
    median                    1 - median of the affinities of the face, exactly; not in waterz

Score 0 = surely the same neuron, 1 = surely different. Those of waterz are compiled into its wheel, so no compiler is
needed at run time. On complete faces (seamless fragments) hierarchical_merging computes all of them without waterz.

A merge function may be added if the score of a union is never below the scores of both parts, which
hierarchical_merging requires.
"""

from __future__ import annotations

QUANTILES = (10, 25, 50, 75, 90)
QUEUE_BINS = 256
HISTOGRAM_BINS = 256
MEDIAN = "median"


def _table() -> dict[str, str]:
    known = {"mean": "OneMinus<MeanAffinity<RegionGraphType, ScoreValue>>"}
    for quantile in QUANTILES:
        for suffix, init_with_max in (("", "false"), ("_initmax", "true")):
            known[f"hist_quant_{quantile}{suffix}"] = (
                f"OneMinus<HistogramQuantileAffinity<RegionGraphType, {quantile}, ScoreValue, "
                f"{HISTOGRAM_BINS}, {init_with_max}>>"
            )
    return known


WATERZ_NAMES = _table()
MERGE_FUNCTIONS = (*WATERZ_NAMES, MEDIAN)
