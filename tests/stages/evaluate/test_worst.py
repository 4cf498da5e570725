"""The worst splits and merges: who they are, what they cost and where they are, against whole volumes."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cdist

from lsdflow_contract.arrays import FRAGMENTS, LABELS
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.lut import lut_name, read_lut
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import made
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.errors import split_merge_sites
from lsdflow_evaluate.errors.contacts import contact_of, surface
from lsdflow_evaluate.errors.ranking import worst_errors
from lsdflow_evaluate.evaluation import compare
from lsdflow_evaluate.inputs import open_segmented
from lsdflow_evaluate.stage import Evaluate
from lsdflow_metrics.contingency import contingency
from lsdflow_metrics.scores import score
from lsdflow_runtime.io.target import target_grid
from lsdflow_runtime.io.volumes import open_volume

Make = Callable[..., Experiment]
SIZE = np.array([20.0, 10.5, 10.5])


def worst_of(experiment: Experiment) -> list[dict[str, Any]]:
    """What scores.json will hold."""
    grid = target_grid(experiment.layout)
    config = experiment.table("evaluate", EvaluateConfig)
    scores, _ = compare(experiment, config, open_segmented(experiment.layout, grid))
    return list(scores["worst"])


def volumes(experiment: Experiment, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """Segmentation and truth, whole."""
    lut = read_lut(experiment.layout.luts / lut_name("hist_quant_75", threshold))
    entries = dict(zip(lut.fragments.tolist(), lut.segments.tolist(), strict=True)) | {0: 0}
    fragments = open_volume(made(experiment.layout, "watershed"), FRAGMENTS.dataset)
    truth = open_volume(experiment.layout.target_volume, LABELS.dataset)
    segments = np.vectorize(entries.__getitem__, otypes=[np.uint64])(fragments.read(fragments.box))
    return segments, truth.read(truth.box)


def all_pairs(first: np.ndarray, second: np.ndarray) -> tuple[float, np.ndarray]:
    """The smallest distance of voxels of two parts, and the voxels of the first that have it: by every pair."""
    a, b = np.argwhere(first), np.argwhere(second)
    nearest = np.round(cdist(a * SIZE, b * SIZE).min(axis=1), 3)
    return float(nearest.min()), a[nearest == nearest.min()]


def site_by_all_pairs(error: dict[str, Any], segments: np.ndarray, truth: np.ndarray, reach: float) -> tuple[Any, Any]:
    masks = [(segments == error[p]["segment"]) & (truth == error[p]["truth"]) for p in ("first", "second")]
    distance, voxels = all_pairs(*masks)
    if distance > reach:
        return distance, min(voxels.tolist())
    away = np.round(np.linalg.norm((voxels - voxels.mean(axis=0)) * SIZE, axis=1), 3)
    return distance, min(voxels[away == away.min()].tolist())


@pytest.mark.parametrize(("shape", "reach_nm"), [("5, 9, 13 vox", 80.0), ("100 vox", 80.0), ("9, 11, 15 vox", 5.0)])
def test_sites_are_those_of_the_whole_volume_however_it_is_cut(
    make_experiment: Make, monkeypatch: pytest.MonkeyPatch, shape: str, reach_nm: float
) -> None:
    monkeypatch.setattr(split_merge_sites, "reach_of", lambda size: reach_nm)
    wanted_kinds = {"split": 0, "merge": 0}
    for threshold in (0.1, 0.9):
        chosen = f"evaluate.block_shape={shape!r}".replace("'", '"')
        experiment = make_experiment(f"at {threshold}", chosen, 'evaluate.skeletons="none"')
        take_threshold(experiment, threshold)
        segments, truth = volumes(experiment, threshold)
        for error in worst_of(experiment):
            found = (error["distance_nm"], error["position_vox"])
            assert found == site_by_all_pairs(error, segments, truth, reach_nm)
            at = tuple(error["position_vox"])
            assert (segments[at], truth[at]) == (error["first"]["segment"], error["first"]["truth"])
            assert error["position_nm"] == pytest.approx([400, 0, 21] + (np.array(at) + 0.5) * SIZE)
            wanted_kinds[error["kind"]] += 1
    assert min(wanted_kinds.values()) > 0


def take_threshold(experiment: Experiment, threshold: float) -> None:
    """As if segment had taken this threshold."""
    found = read_manifest(experiment.layout, "segment")
    facts = {**found.facts, "threshold": threshold}
    found.model_copy(update={"facts": facts}).write(experiment.layout)


def test_shares_are_bits_of_the_voi_and_the_worst_comes_first(make_experiment: Make) -> None:
    experiment = make_experiment("a", 'evaluate.skeletons="none"')
    take_threshold(experiment, 0.1)
    segments, truth = volumes(experiment, 0.1)
    splits = [error for error in worst_of(experiment) if error["kind"] == "split"]
    assert sum(error["bits"] for error in splits) == pytest.approx(score(contingency(segments, truth)).voi_split)
    assert [error["bits"] for error in splits] == sorted((error["bits"] for error in splits), reverse=True)
    for error in splits:
        assert error["voxels"] == int((truth == error["id"]).sum())
        assert error["parts"] == len(np.unique(segments[truth == error["id"]]))


def test_as_many_are_listed_as_asked_for_in_json_and_csv(make_experiment: Make) -> None:
    experiment = make_experiment("a", "evaluate.worst=2")
    take_threshold(experiment, 0.1)
    Evaluate().run(experiment)
    worst = json.loads((experiment.layout.report / "scores.json").read_text())["worst"]
    assert [error["kind"] for error in worst].count("split") == 2
    with (experiment.layout.report / "worst.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["kind"], int(row["id"]), float(row["bits"])) for row in rows] == [
        (error["kind"], error["id"], error["bits"]) for error in worst
    ]
    assert [[float(row[f"{a}_nm"]) for a in "zyx"] for row in rows] == [error["position_nm"] for error in worst]
    assert Evaluate().verify(experiment)["verified"]
    assert worst_of(make_experiment("a", "evaluate.worst=0")) == []


parts = st.lists(st.tuples(*[st.integers(0, 5)] * 3), min_size=1, max_size=12, unique=True)


@settings(max_examples=60)
@given(first=parts, second=parts, reach=st.sampled_from([25.0, 60.0, np.inf]))
def test_parts_touch_where_all_pairs_of_voxels_say(first: list[Any], second: list[Any], reach: float) -> None:
    masks = [np.zeros((6, 6, 6), bool) for _ in range(2)]
    for mask, voxels in zip(masks, (first, [v for v in second if v not in first]), strict=True):
        mask[tuple(np.array(voxels, int).reshape(-1, 3).T)] = True
    found = contact_of(*map(surface, masks), (20.0, 10.5, 10.5), reach)
    if not masks[1].any():
        assert found is None
        return
    distance, voxels = all_pairs(*masks)
    if distance > reach:
        assert found is None
    else:
        assert found is not None
        assert (found.distance_nm, found.voxels.tolist()) == (distance, voxels.tolist())


def test_segment_0_merges_nothing_and_is_the_last_part_of_a_split() -> None:
    segments = np.array([0, 0, 0, 0, 5, 6, 6, 6, 6, 6], np.uint64)
    truth = np.array([1, 1, 1, 2, 1, 1, 2, 2, 3, 3], np.uint64)
    errors = worst_errors(contingency(segments, truth), 9, "label")
    assert [error.id for error in errors if error.kind == "merge"] == [6]
    split = next(error for error in errors if error.kind == "split" and error.id == 1)
    assert (split.first.segment, split.second.segment, split.parts) == (5, 6, 3)
