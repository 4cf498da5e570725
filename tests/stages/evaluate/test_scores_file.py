"""What scores.json becomes for people: verdict, rows, words of the worst places, tables; numbers where they belong."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from lsdflow_contract.lut import Lut
from lsdflow_evaluate.errors.ranking import write_worst
from lsdflow_evaluate.report.data import ReportData
from lsdflow_evaluate.report.findings import worst_errors
from lsdflow_evaluate.scores.run_length import Skeletons
from lsdflow_evaluate.scores.truth_scores import ThresholdScore, best_of, runs_of
from lsdflow_metrics.contingency import contingency
from lsdflow_metrics.scores import score

FIRST, SECOND = {"segment": 7, "truth": 1, "voxels": 1500}, {"segment": 9, "truth": 2, "voxels": 40}
ERROR = {"id": 5, "voxels": 1540, "bits": 0.25, "parts": 3, "first": FIRST, "second": SECOND}
SITE = {"position_nm": [410.0, 5.25, 26.25], "position_vox": [0, 0, 0], "distance_nm": 10.5}


def _row(merge_function: str, threshold: float) -> dict[str, Any]:
    truth, segments = np.array([1, 1, 2, 2], np.uint64), np.array([1, 1, 1, 2], np.uint64)
    return ThresholdScore(merge_function, threshold, 2, score(contingency(segments, truth)), None).as_dict()


def test_the_chosen_row_is_that_of_the_merge_function_and_the_threshold() -> None:
    listed = [_row("mean", 0.3), _row("hist_quant_75", 0.2), _row("hist_quant_75", 0.3)]
    facts = tuple({**row, "segments": 2} for row in listed)
    data = ReportData("a", "now", scores={**listed[2], "thresholds": listed}, luts=facts)
    assert (data.chosen_score, data.chosen_lut) == (listed[2], facts[2])
    nothing = ReportData("a", "now", luts=facts[:0])
    assert (nothing.chosen_score, nothing.chosen_lut) == (None, None)


def test_of_thresholds_with_the_same_voi_the_lowest_is_chosen() -> None:
    truth = np.array([1, 1, 2, 2], np.uint64)
    perfect, wrong = (score(contingency(s, truth)) for s in (truth, np.ones(4, np.uint64)))
    made = [("a", 0.5, perfect), ("a", 0.3, perfect), ("a", 0.4, perfect), ("a", 0.1, wrong), ("b", 0.2, perfect)]
    assert best_of([ThresholdScore(name, at, 2, found, None) for name, at, found in made], "a") == 0.3


def test_a_node_in_no_fragment_is_in_no_segment() -> None:
    skeletons = Skeletons(
        np.array([[0.0, 0, 0], [0, 0, 5], [0, 0, 9]]), np.ones(3, np.uint64), np.array([[0, 1], [1, 2]])
    )
    lut = Lut(np.array([4, 6], np.uint64), np.array([4, 4], np.uint64))
    found = runs_of(skeletons, np.array([0, 4, 6], np.uint64), lut, 1)
    assert (found.omitted_edges, found.correct_edges, found.expected_run_length_nm) == (1, 1, 4 * 4 / 9)


def test_a_split_is_described_by_its_segments_and_a_merge_by_its_truth_objects() -> None:
    listed, others = worst_errors({"worst": [{**ERROR, "kind": "split", **SITE}, {**ERROR, "kind": "merge"}]})
    assert listed == [
        {
            "kind": "split",
            "what": "truth 5 is in 3 segments; the largest are 7 (1,500 vox) and 9 (40 vox)",
            "bits": 0.25,
            "voxel": [0, 0, 0],
            "at": "410,5.25,26.25",
        },
        {
            "kind": "merge",
            "what": "segment 5 holds 3 truth objects; the largest are 1 (1,500 vox) and 2 (40 vox)",
            "bits": 0.25,
            "voxel": None,
            "at": "",
        },
    ]
    assert others == []
    assert worst_errors({}) == ([], [])


def test_six_of_each_kind_of_the_worst_are_first_and_none_is_lost() -> None:
    kinds = ["split"] * 8 + ["merge"] * 3
    first, others = worst_errors({"worst": [{**ERROR, "kind": kind, "id": n} for n, kind in enumerate(kinds)]})
    assert [row["what"].split()[1] for row in first] == ["0", "1", "2", "3", "4", "5", "8", "9", "10"]
    assert [row["what"].split()[1] for row in others] == ["6", "7"]


def test_ranks_of_the_worst_begin_at_one_for_each_kind_and_region(tmp_path: Path) -> None:
    errors = [{**ERROR, "kind": kind, **SITE} for kind in ("split", "split", "merge", "merge")]
    path = tmp_path / "worst.csv"
    write_worst(path, {"worst": errors, "regions": {"core": {"worst": errors[1:3]}}})
    with path.open() as file:
        rows = [
            (row["region"], row["kind"], row["rank"], row["segment_2"], row["z_nm"]) for row in csv.DictReader(file)
        ]
    assert rows == [
        ("", "split", "1", "9", "410.0"),
        ("", "split", "2", "9", "410.0"),
        ("", "merge", "1", "9", "410.0"),
        ("", "merge", "2", "9", "410.0"),
        ("core", "split", "1", "9", "410.0"),
        ("core", "merge", "1", "9", "410.0"),
    ]
    write_worst(path, {})
    assert not path.exists()
