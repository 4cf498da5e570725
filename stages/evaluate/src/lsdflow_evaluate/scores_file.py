"""report/scores.json: the numbers of the chosen threshold on top, the verdict, and every threshold below."""

from __future__ import annotations

from typing import Any

from lsdflow_contract.geometry import Box
from lsdflow_evaluate.report.data import Verdict
from lsdflow_evaluate.truth_scores import TruthScores

NO_TRUTH = "no truth was given for this volume: there is nothing to compare with"


def verdict(voi: float | None, limit: float, note: str = "") -> Verdict:
    """Success: VOI split + merge below the limit; not measured without truth."""
    passed = None if voi is None else voi < limit
    return Verdict("VOI split + merge (bits)", voi, "<", limit, passed, note)


def scores_with_truth(found: TruthScores, limit: float) -> dict[str, Any]:
    """What scores.json holds when there is truth."""
    chosen = found.chosen_score
    success = verdict(chosen.partition.voi if chosen else None, limit)
    return {
        **(chosen.as_dict() if chosen else {}),
        "has_truth": True,
        "success": {"criterion": f"voi < {limit:g}", "passed": success.passed},
        "roi": _box(found.box),
        "settings": found.settings,
        "thresholds": [score.as_dict() for score in found.scores],
    }


def scores_without(has_truth: bool, reason: str, limit: float) -> dict[str, Any]:
    """What scores.json holds when nothing could be compared: no number, and why."""
    success = {"criterion": f"voi < {limit:g}", "passed": None}
    return {"has_truth": has_truth, "reason": reason, "success": success, "thresholds": []}


def _box(box: Box) -> dict[str, list[int]]:
    return {"begin_vox": list(box.begin_vox), "shape_vox": list(box.shape_vox)}
