"""The merge functions of the field, by name, and how waterz spells them.

    mean                      1 - mean affinity of the face
    hist_quant_75             1 - 75 % quantile of the affinities of the face, from a histogram of 256 bins
    hist_quant_75_initmax     the same, but the histogram of a fresh edge holds its highest bin only

Score 0 = surely the same neuron, 1 = surely different. All of them are compiled into the waterz wheel: no compiler is
needed at run time.
"""

from __future__ import annotations

QUANTILES = (10, 25, 50, 75, 90)
QUEUE_BINS = 256
HISTOGRAM_BINS = 256


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
MERGE_FUNCTIONS = tuple(WATERZ_NAMES)
