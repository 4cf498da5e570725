"""report/scores.json: the numbers of the chosen threshold on top, the verdict, and every threshold below.

Each result keeps the same file beside its manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, finished_manifests, read_manifest
from lsdflow_contract.sealing import read_sealed
from lsdflow_evaluate.config import STAGE, EvaluateConfig
from lsdflow_evaluate.report.data import Score, Verdict, WorstPlace
from lsdflow_evaluate.scores.truth_scores import TruthScores

MOST_NAMED = 5
SHOWING = {"picture_edge_vox", "viewer_url"}
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


def score_rows(scores: Mapping[str, Any]) -> tuple[Score, ...]:
    """The rows of the report from what scores.json holds."""
    names = [field.name for field in fields(Score) if field.name != "chosen"]
    chosen = (scores.get("merge_function"), scores.get("threshold"))
    return tuple(
        Score(chosen=(row["merge_function"], row["threshold"]) == chosen, **{n: row.get(n) for n in names})
        for row in scores.get("thresholds", ())
    )


def worst_places(scores: Mapping[str, Any]) -> tuple[WorstPlace, ...]:
    """The worst splits and merges that scores.json lists, with words for people; none if it lists none."""
    listed = scores.get("worst")
    return tuple(_worst_place(told) for told in listed) if isinstance(listed, list) else ()


def _worst_place(told: Mapping[str, Any]) -> WorstPlace:
    first, second = told["first"], told["second"]
    if told["kind"] == "split":
        parts = f"{first['segment']} ({first['voxels']:,} vox) and {second['segment']} ({second['voxels']:,} vox)"
        what = f"truth {told['id']} lies in {told['parts']} segments; the largest are {parts}"
    else:
        parts = f"{first['truth']} ({first['voxels']:,} vox) and {second['truth']} ({second['voxels']:,} vox)"
        what = f"segment {told['id']} holds {told['parts']} truth objects; the largest are {parts}"
    voxel: tuple[int, int, int] | None = None
    if "position_vox" in told:
        z, y, x = told["position_vox"]
        voxel = z, y, x
    at_nm = told.get("position_nm")
    return WorstPlace(
        kind=told["kind"],
        what=what,
        bits=told["bits"],
        voxel=voxel,
        at=",".join(f"{value:g}" for value in at_nm) if at_nm else "",
    )


def lsd_error_text(scores: Mapping[str, Any]) -> str:
    """How far the LSDs of the segmentation are from those predicted, without any truth; empty where it is not known."""
    told = scores.get("lsd_error")
    if not isinstance(told, Mapping) or "mean" not in told:
        return ""
    most = [f"{row['segment']} ({row['mean']:.2f})" for row in told.get("worst", ())[:MOST_NAMED]]
    most_text = f"; most in segments {', '.join(most)}" if most else ""
    return f"the LSDs of the segmentation differ by {told['mean']:.3f} (of 1) from those predicted{most_text}"


def kept_scores(layout: ExperimentLayout, key: str) -> Path:
    """The scores that the result of `key` keeps: a later result replaces report/scores.json."""
    return layout.result(STAGE, key) / "scores.json"


def present_scores(experiment: Experiment, config: EvaluateConfig) -> dict[str, Any]:
    """The scores of the segmentation, the fragments and the settings of now; nothing if there are none."""
    return present_result(experiment, config)[1]


def present_result(experiment: Experiment, config: EvaluateConfig) -> tuple[Manifest | None, dict[str, Any]]:
    """The same with their manifest, whether it is the current one or not.

    Settings that the version which scored did not know do not count, nor do those of pictures.
    """
    layout, settings = experiment.layout, config.model_dump(mode="json")
    for manifest in finished_manifests(layout, STAGE).values():
        counted = {name for name in manifest.config if name in settings} - SHOWING
        if all(settings[name] == manifest.config[name] for name in counted):
            with suppress(StageError):
                inputs = {stage: read_manifest(layout, stage).identity for stage in manifest.inputs}
                scores = _scores_of(layout, manifest)
                if scores and inputs == manifest.inputs:
                    return manifest, scores
    return None, {}


def _scores_of(layout: ExperimentLayout, manifest: Manifest) -> dict[str, Any]:
    """The scores of a manifest; nothing if no file has them. BadData (65) for a damaged file."""
    for path in (layout.report / "scores.json", kept_scores(layout, manifest.key)):
        if path.exists():
            scores = read_sealed(path, "run: evaluate run")
            if isinstance(scores, dict) and hash_of([manifest.key, scores]) == manifest.identity:
                return dict(scores)
    return {}
