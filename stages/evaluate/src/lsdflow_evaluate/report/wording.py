"""Sentences of the report: what is missing, and what to cite."""

from __future__ import annotations

from lsdflow_contract.citations import REFERENCES
from lsdflow_evaluate.report.data import ReportData

CITATIONS = tuple(reference.text() for reference in REFERENCES)


def missing_parts(data: ReportData) -> tuple[str, ...]:
    """Sentences for the parts of a full report that this one lacks."""
    parts = (
        (
            not data.scores,
            "There are no scores: "
            + (data.no_scores or ("none was made" if data.has_truth else "no truth was given"))
            + ".",
        ),
        (not data.segment_counts, "The number of segments per threshold is not known."),
        (data.segment_sizes is None, "The sizes of the segments are not known."),
        (not data.losses, "There are no loss curves: no training log was found."),
    )
    return tuple(text for missing, text in parts if missing)
