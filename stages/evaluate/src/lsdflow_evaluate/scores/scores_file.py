"""report/scores.json: the numbers of the chosen threshold on top, every threshold below, then regions and errors.

Each result keeps the same file beside its manifest.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import StageError
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, finished_manifests, read_manifest
from lsdflow_contract.sealing import read_sealed
from lsdflow_evaluate.config import STAGE, EvaluateConfig
from lsdflow_evaluate.scores.counting import NAMED, ROI, box_dict
from lsdflow_evaluate.scores.truth_scores import TruthScores

# Settings of pictures: they do not change scores.
SHOWING = {"picture_edge_vox", "viewer_url"}


def scores_with_truth(
    found: TruthScores, worst: Mapping[str, list[dict[str, Any]]], voi_limit: float
) -> dict[str, Any]:
    """What scores.json holds when there is truth; `worst`: the worst splits, then merges, of each region.

    `regions`: scores, thresholds and worst errors of each of [evaluate.regions].
    """
    chosen, whole = found.chosen_score, found.regions[ROI]
    passed = chosen.partition.voi < voi_limit if chosen else None
    scores = {
        **(chosen.as_dict() if chosen else {}),
        "has_truth": True,
        "success": {"criterion": f"voi < {voi_limit:g}", "passed": passed},
        "roi": box_dict(whole.region.box),
        "settings": found.settings,
        "thresholds": [score.as_dict() for score in whole.scores],
        "worst": worst.get(ROI, []),
    }
    regions = {}
    for key, region in found.regions.items():
        if key.startswith(NAMED):
            own = region.at(found.chosen)
            regions[key.removeprefix(NAMED)] = {
                **(own.as_dict() if own else {}),
                "roi": region.region.as_dict(),
                "thresholds": [score.as_dict() for score in region.scores],
                "worst": worst.get(key, []),
            }
    return {**scores, "regions": regions} if regions else scores


def scores_without(has_truth: bool, reason: str, voi_limit: float) -> dict[str, Any]:
    """What scores.json holds when nothing could be compared: no number, and why."""
    success = {"criterion": f"voi < {voi_limit:g}", "passed": None}
    return {"has_truth": has_truth, "reason": reason, "success": success, "thresholds": []}


def kept_scores(layout: ExperimentLayout, key: str) -> Path:
    """The scores that the result of `key` keeps: a later result replaces report/scores.json."""
    return layout.result(STAGE, key) / "scores.json"


def present_result(layout: ExperimentLayout, config: EvaluateConfig) -> tuple[Manifest | None, dict[str, Any]]:
    """The scores of the present segmentation, fragments and settings, and their manifest, whether it is the current one
    or not; none if there are none.

    Settings that the version which scored did not know do not count, nor do those of pictures.
    """
    settings = config.model_dump(mode="json")
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
