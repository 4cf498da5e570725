"""Finished results side by side: every result keeps its scores, and the report compares it with the current one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from lsdflow_contract.arrays import FRAGMENTS, SEGMENTATION
from lsdflow_contract.errors import BadData
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.files import write_json
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.manifest import finished_manifests, read_kept_manifest, read_manifest
from lsdflow_contract.sealing import read_sealed
from lsdflow_contract.testing import made
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.evaluation import write_report
from lsdflow_evaluate.report.collect import compared_results
from lsdflow_evaluate.report.content import compared_rows
from lsdflow_evaluate.report.data import ComparedResult
from lsdflow_evaluate.report.stage_records import finished_stages
from lsdflow_evaluate.report.volumes import central_planes
from lsdflow_evaluate.scores.scores_file import kept_scores, present_result
from lsdflow_evaluate.stage import Evaluate
from lsdflow_runtime.io.target import target_grid
from lsdflow_runtime.io.volumes import OutputArray, open_volume

Make = Callable[..., Experiment]
OTHER = 0.1


def segment_again(experiment: Experiment) -> None:
    """Another result of segment: nothing is merged, so its segments are the fragments."""
    fragments = open_volume(made(experiment.layout, "watershed"), FRAGMENTS.dataset)
    folder = experiment.layout.result("segment", "2nd-segment")
    output = OutputArray(folder / "segmentation.zarr", SEGMENTATION, fragments.geometry, fragments.box, (8, 8, 16))
    output.create({"key": "made by the test"})
    output.open().write(fragments.box, fragments.read(fragments.box))
    first = read_manifest(experiment.layout, "segment")
    path = str((folder / "segmentation.zarr" / SEGMENTATION.dataset).relative_to(experiment.layout.root))
    facts = {**first.facts, "threshold": OTHER, "segments": 12}
    changed = {"key": "2nd-segment", "identity": "2nd-segment-identity", "outputs": {"segmentation": path}}
    first.model_copy(update={**changed, "facts": facts, "config": {"threshold": OTHER}}).write(experiment.layout)


@pytest.fixture(scope="module")
def made_twice(finished: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """The experiment with results of two thresholds; the second is current. Only to be read."""
    root = tmp_path_factory.mktemp("twice") / "a"
    shutil.copytree(finished.layout.root, root)
    experiment = load_experiment(root)
    segment_again(experiment)
    Evaluate().run(experiment)
    return load_experiment(root)


def compared(experiment: Experiment) -> tuple[ComparedResult, ...]:
    grid: Geometry = target_grid(experiment.layout)
    layout = experiment.layout
    result, _ = present_result(layout, EvaluateConfig())
    return compared_results(layout, finished_stages(layout), result, grid, central_planes(grid.box, 1000)[0])


def scores_of(experiment: Experiment) -> dict[str, Any]:
    return dict(read_sealed(experiment.layout.report / "scores.json", ""))


def test_each_result_has_its_own_scores_settings_and_section(finished: Experiment, made_twice: Experiment) -> None:
    second, first = compared(made_twice)
    assert (second.current, second.settings, second.segments) == (True, (), 12)
    assert (first.current, first.settings, first.segments) == (False, ("segment segment-: threshold 0.1 -> none",), 9)
    wanted = scores_of(made_twice), scores_of(finished)
    names = ("threshold", "voi_split", "voi_merge", "voi", "adapted_rand_error")
    assert [[r.scores[n] for n in names] for r in (second, first)] == [[w[n] for n in names] for w in wanted]
    assert second.scores["voi"] != first.scores["voi"]
    for result, stage_key in ((second, "2nd-segment"), (first, "segment-key")):
        segment = read_kept_manifest(made_twice.layout, "segment", stage_key)
        volume = open_volume(*segment.output_array(made_twice.layout, "segmentation"))
        assert result.picture is not None
        assert np.array_equal(result.picture.image, volume.read(volume.box)[volume.box.shape_vox[0] // 2])


@pytest.mark.proves("NEW-01")
def test_the_page_compares_results_if_there_are_several(finished: Experiment, made_twice: Experiment) -> None:
    assert 'id="compared"' not in (finished.layout.report / "index.html").read_text()
    page = (made_twice.layout.report / "index.html").read_text()
    section = page.partition('id="compared"')[2].partition("</section>")[0]
    for result, texts in compared_rows(compared(made_twice)):
        assert result.key in section
        assert all(f'<td class="number">{text}</td>' in section for text in texts[:-1])
    assert section.count("data:image/png") == 2
    assert section.count(">current<") == 1


def test_scores_of_an_earlier_result_are_reported_at_once_when_it_is_current_again(
    finished: Experiment, made_twice: Experiment, copy_of: Make
) -> None:
    experiment = copy_of(made_twice, "a")
    read_kept_manifest(experiment.layout, "segment", "segment-key").write(experiment.layout)
    assert present_result(experiment.layout, EvaluateConfig())[1] == scores_of(finished)
    write_report(experiment)
    assert f"{scores_of(finished)['voi']:.3f}" in (experiment.layout.report / "index.html").read_text()
    assert [result.current for result in compared(experiment)] == [True, False]
    assert compared(experiment)[0].scores["voi"] == scores_of(finished)["voi"]


def test_what_was_dropped_or_damaged_of_another_result_is_no_error(made_twice: Experiment, copy_of: Make) -> None:
    experiment = copy_of(made_twice, "a")
    segment = read_kept_manifest(experiment.layout, "segment", "segment-key")
    shutil.rmtree(segment.output_array(experiment.layout, "segmentation")[0])
    assert compared(experiment)[1].picture is None
    Evaluate().run(experiment)
    shutil.rmtree(experiment.layout.result("segment", "segment-key"))
    assert compared(experiment)[1].settings == ("segment: the result was dropped",)


def test_results_of_the_same_segmentation_share_a_picture(finished: Experiment, copy_of: Make) -> None:
    experiment = copy_of(finished, "a", "evaluate.zeros=ignore")
    Evaluate().run(experiment)
    again = load_experiment(experiment.layout.root)
    current, other = compared(again)
    assert (current.picture is None, other.picture is None) == (False, True)
    assert other.settings == ("evaluate " + other.key + ": zeros label -> ignore",)


def test_damaged_kept_scores_are_found_and_not_reported(made_twice: Experiment, copy_of: Make) -> None:
    experiment = copy_of(made_twice, "a")
    key = read_manifest(experiment.layout, "evaluate").key
    assert Evaluate().verify(experiment)["verified"]
    other = next(m.key for m in finished_manifests(experiment.layout, "evaluate").values() if m.key != key)
    for changed in (key, other):
        path = kept_scores(experiment.layout, changed)
        write_json(path, {**read_sealed(path, ""), "voi": 0.001})
    with pytest.raises(BadData, match=r"scores\.json"):
        Evaluate().verify(experiment)
    read_kept_manifest(experiment.layout, "segment", "segment-key").write(experiment.layout)
    assert present_result(experiment.layout, EvaluateConfig())[1] == {}
