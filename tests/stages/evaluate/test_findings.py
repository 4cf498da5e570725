"""Is it good, and what next: affinities, short trainings, doubtful places, a box to label; planes with truth."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.lut import Lut
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_evaluate.errors.doubtful_place import DoubtfulPlace, doubtful_place
from lsdflow_evaluate.report.data import Picture, ReportData, StageRecord, ToLabel
from lsdflow_evaluate.report.findings import affinities_in_pictures, findings, next_steps, too_large_segment
from lsdflow_evaluate.report.page import render_page
from lsdflow_evaluate.report.stage_records import stage_record
from lsdflow_evaluate.report.to_label import box_around
from lsdflow_evaluate.report.volumes import labelled_voxel

EARLY = {
    "iteration": 56,
    "max_iteration": 800,
    "ended_by": "max_minutes",
    "minutes": 1.0,
    "it_per_s": 1.0,
    "loss_begin": 0.5,
    "loss_end": 0.48,
}


def affinities(values: Any) -> ReportData:
    """A report with one picture of affinities that has these values, 0 to 1."""
    image = np.resize(np.rint(255 * np.asarray(values)), (6, 10, 3)).astype(np.uint8)
    return ReportData("a", "now", pictures=(Picture("affinities", "colour", "z", 3, image, (10.0, 10.0)),))


def trained(**facts: Any) -> ReportData:
    """A report without truth of a training with these facts of its manifest."""
    manifest = Manifest(
        writer=Writer(stage="train-acrlsd", version="1"),
        key="k",
        config={},
        inputs={},
        outputs={},
        facts={**EARLY, **facts},
        identity="i",
    )
    record = StageRecord("train-acrlsd", "finished short", manifest=manifest)
    return dataclasses.replace(affinities([0.5]), manifests={"train-acrlsd": manifest}, stages=(record,), folder="exp")


@pytest.mark.parametrize(
    ("values", "begin", "state"),
    [
        ([0.0, 1.0, 0.95, 0.05, 0.9], "Clear: ", "good"),
        ([0.5, 1.0, 0.0, 0.6, 1.0], "Partly undecided: ", ""),
        ([0.5, 0.4, 0.6, 1.0], "Undecided almost everywhere: ", "bad"),
        ([0.95, 1.0, 0.9], "Almost no boundaries: ", "bad"),
    ],
)
def test_affinities_are_judged_by_how_many_are_decided(values: list[float], begin: str, state: str) -> None:
    found = affinities_in_pictures(affinities(values))
    assert found.text.startswith(begin)
    assert found.state == state
    assert affinities_in_pictures(ReportData("a", "now")).text == ""


def test_a_training_that_ended_early_is_the_first_finding_and_its_page_has_no_green_tick() -> None:
    data = trained()
    assert findings(data)[0] == (
        "train-acrlsd",
        "Trained 7 % of its iterations (56 of 800), ended by max_minutes; the loss hardly fell (0.5 to 0.48).",
        "bad",
    )
    step = next_steps(data)[0]
    assert "about 13 min" in step.text
    assert step.command == "lsdflow run exp --set train-acrlsd.max_minutes=17"
    index = render_page(data)
    assert index.index('id="summary"') < index.index("Trained 7 % of its iterations") < index.index('id="pictures"')
    assert "✓ finished" not in index
    assert "! ended early" in index


def test_the_record_of_a_training_that_ended_early_is_not_that_of_a_finished_one(tmp_path: Path) -> None:
    for facts, state in (({}, "finished short"), ({"iteration": 800, "loss_end": 0.1}, "finished")):
        manifest = trained(**facts).manifests["train-acrlsd"]
        assert stage_record(ExperimentLayout(tmp_path), "train-acrlsd", manifest).state == state


def test_a_whole_training_is_no_finding_and_one_that_learnt_nothing_is() -> None:
    whole = {"iteration": 800, "ended_by": "max_iteration", "loss_end": 0.1}
    assert [finding.title for finding in findings(trained(**whole))] == ["Affinities"]
    flat = trained(**{**whole, "loss_end": 0.6})
    assert findings(flat)[0].text == "The loss did not fall (0.5 to 0.6)."
    assert next_steps(flat)[0].command.endswith("train-acrlsd.max_iteration=1600")
    more_labels = next_steps(trained(ended_by="overfit"))[0]
    assert ("more labels" in more_labels.text, more_labels.command) == (True, "")


def test_a_segment_that_is_most_of_the_volume_is_named() -> None:
    lut = {"merge_function": "m", "threshold": 0.5, "segments": 2, "largest_segment_vox": 60}
    segment = Manifest(
        writer=Writer(stage="segment", version="1"),
        key="k",
        config={},
        inputs={},
        outputs={},
        facts={"merge_function": "m", "threshold": 0.5},
        identity="i",
    )
    data = ReportData("a", "now", luts=(lut,), fragment_voxels=100, manifests={"segment": segment})
    assert too_large_segment(data).startswith("The largest holds 60% of the volume")
    assert too_large_segment(dataclasses.replace(data, fragment_voxels=200)) == ""


def three_slabs() -> tuple[np.ndarray, Lut, Lut]:
    """Fragments 1, 2, 3 as slabs along x; all apart, and 2 and 3 together."""
    fragments = np.repeat(np.array([1, 2, 3], np.uint64), 4) * np.ones((5, 6, 1), np.uint64)
    ids = np.array([1, 2, 3], np.uint64)
    return fragments, Lut(ids, ids), Lut(ids, np.array([1, 2, 2], np.uint64))


@pytest.mark.parametrize("joined", [False, True])
def test_the_doubtful_place_is_where_the_nearest_other_threshold_decides_otherwise(joined: bool) -> None:
    fragments, apart, together = three_slabs()
    chosen, other = (together, apart) if joined else (apart, together)
    found = doubtful_place(fragments, chosen, [(0.4, chosen), (0.5, other)], (10.0, 10.0, 10.0))
    assert found is not None
    assert (found.joined, found.other_threshold, set(found.parts)) == (joined, 0.5, {2, 3})
    assert found.voxel[2] in (7, 8)
    assert doubtful_place(fragments, chosen, [(0.4, chosen)], (10.0, 10.0, 10.0)) is None


def test_a_segment_that_was_left_out_as_too_small_is_not_doubtful() -> None:
    fragments, apart, _ = three_slabs()
    chosen, other = (Lut(apart.fragments, np.array(found, np.uint64)) for found in ([0, 2, 3], [1, 1, 3]))
    assert doubtful_place(fragments, chosen, [(0.5, other)], (10.0, 10.0, 10.0)) is None


def test_a_box_around_a_voxel_stays_inside() -> None:
    whole = Box((10, 0, 0), (20, 30, 8))
    for at in itertools.product((10, 20, 29), (0, 15, 29), (0, 7)):
        box = box_around(at, (6, 6, 16), whole)
        assert whole.contains(box)
        assert box.shape_vox == (6, 6, 8)
        assert box.contains(Box(at, (1, 1, 1)))
    assert box_around((20, 15, 4), (6, 6, 4), whole) == Box((17, 12, 2), (6, 6, 4))


class Truth(SimpleNamespace):
    """A truth volume of zeros but for a box."""

    def read(self, box: Box) -> np.ndarray:
        begins = zip(box.begin_vox, box.shape_vox, self.box.begin_vox, strict=True)
        return self.labels[tuple(slice(b - own, b - own + n) for b, n, own in begins)]


@pytest.mark.parametrize(
    "labelled",
    [((60, 60, 60), (8, 8, 8)), ((5, 0, 90), (3, 40, 10)), ((0, 0, 0), (30, 100, 100)), ((0, 0, 0), (100, 100, 100))],
)
def test_pictures_show_planes_with_truth_and_the_middle_where_there_is_some(labelled: tuple[Any, Any]) -> None:
    box = Box((0, 0, 0), (100, 100, 100))
    labels = np.zeros(box.shape_vox, np.uint64)
    labels[Box(*labelled).slices()] = 7
    at: Any = labelled_voxel(Truth(box=box, labels=labels), box)  # type: ignore[arg-type]
    assert all(labels.take(voxel, axis).any() for axis, voxel in enumerate(at))
    assert (at == (50, 50, 50)) == bool(labels[50].any())


def test_without_any_label_pictures_show_the_middle() -> None:
    box = Box((0, 0, 0), (40, 40, 40))
    nothing = Truth(box=box, labels=np.zeros(box.shape_vox, np.uint64))
    assert labelled_voxel(nothing, box) == (20, 20, 20)  # type: ignore[arg-type]


def test_without_truth_a_box_to_label_is_named_with_what_is_doubtful_there() -> None:
    box = ToLabel(Box((0, 1, 2), (16, 64, 64)), (0.0, 10.0, 20.0), (80.0, 330.0, 340.0), None)
    place = DoubtfulPlace((8, 33, 34), True, (4, 5), 0.6)
    segmented = {"has_truth": False, "threshold": 0.5, "merge_function": "m", "lsd_error": {"made": False}}
    data = dataclasses.replace(affinities([0.0, 1.0]), scores=segmented, to_label=box, folder="exp")
    look, label, store, _ = next_steps(dataclasses.replace(data, to_label=dataclasses.replace(box, place=place)))
    assert "segments 4 and 5 are one at the chosen threshold 0.5 and two at 0.6" in look.text
    assert look.command == "lsdflow view exp --at 80,330,340"
    assert "begin 0, 10, 20 nm, 16×64×64 voxels" in label.text
    assert store.command == "lsdflow run exp --set predict.store_lsds=true"
    assert next_steps(data)[0].text.startswith("The middle of the volume")
    assert next_steps(dataclasses.replace(data, scores={**segmented, "has_truth": True})) == ()


def test_the_report_without_truth_answers_and_the_one_with_truth_does_not_repeat_it(
    finished: Experiment, finished_without_truth: Experiment
) -> None:
    page = (finished_without_truth.layout.report / "index.html").read_text()
    answer = page.split('<section id="answer">')[1].split("</section>")[0]
    assert answer.count("<figure>") == 3, "these affinities, good ones, and those of an untrained network"
    assert "lsdflow view a --at" in answer
    assert "No picture: no truth" not in page
    with_truth = (finished.layout.report / "index.html").read_text()
    assert "lsdflow view a --at" not in with_truth.split('<section id="answer">')[1].split("</section>")[0]
