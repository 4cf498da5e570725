"""The comparison of finished results: a row of texts for each, and pictures of one section side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lsdflow_evaluate.report.content import NOTHING, Panel, duration
from lsdflow_evaluate.report.data import ComparedResult
from lsdflow_evaluate.report.figures import figure_of

COLUMNS = ("threshold", "VOI split", "VOI merge", "VOI", "adapted Rand", "segments", "age")
# The scores of the first columns.
FORMATS = {"threshold": "{:g}", **dict.fromkeys(("voi_split", "voi_merge", "voi", "adapted_rand_error"), "{:.4f}")}


@dataclass(frozen=True)
class ComparedRow:
    """One result: its key, what differs from the current chain, and a text for each of COLUMNS."""

    key: str
    current: bool
    settings: tuple[str, ...]
    values: tuple[str, ...]


@dataclass(frozen=True)
class ComparedView:
    """All results, and the pictures of those that have one."""

    rows: tuple[ComparedRow, ...]
    panels: tuple[Panel, ...]


def compared_view(results: tuple[ComparedResult, ...]) -> ComparedView | None:
    """The comparison; none without results."""
    if not results:
        return None
    panels = tuple(Panel(_name(r), figure_of(r.picture)) for r in results if r.picture is not None)
    return ComparedView(tuple(_row(r) for r in results), panels)


def _row(result: ComparedResult) -> ComparedRow:
    segments = NOTHING if result.segments is None else f"{result.segments:,}"
    values = (*_scores(result.scores), segments, duration(result.age_s))
    return ComparedRow(result.key, result.current, result.settings, values)


def _scores(scores: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(text.format(scores[name]) if name in scores else NOTHING for name, text in FORMATS.items())


def _name(result: ComparedResult) -> str:
    """What stands below a picture: the result, and its threshold and VOI if they are known."""
    name = f"{result.key}, current" if result.current else result.key
    if "voi" not in result.scores:
        return name
    return f"{name}: threshold {result.scores['threshold']:g}, VOI {result.scores['voi']:.3f}"
