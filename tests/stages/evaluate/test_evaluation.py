"""The whole stage: scores equal to whole volumes, regions, no truth, and a report after every failure."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from lsdflow_contract.arrays import FRAGMENTS, LABELS, MASK, RAW, SEGMENTATION
from lsdflow_contract.errors import BadData, ConfigError, ContractMismatch, MissingInput, StageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.files import write_json
from lsdflow_contract.lut import lut_name, read_lut
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.sealing import read_sealed
from lsdflow_contract.testing import made
from lsdflow_evaluate.cli import app
from lsdflow_evaluate.inputs import require_counting
from lsdflow_evaluate.scores.counting import overlaps_of, table_of
from lsdflow_evaluate.stage import Evaluate
from lsdflow_metrics.contingency import Contingency, contingency
from lsdflow_metrics.scores import ZERO_POLICIES, ZeroPolicy, score
from lsdflow_runtime.io.volumes import OutputArray, open_volume
from lsdflow_runtime.store.done_marks import DoneMarks

Make = Callable[..., Experiment]
Scores = Callable[[Experiment], dict[str, Any]]
# For tests of what else is scored.
BARE = ('evaluate.skeletons="none"', "evaluate.worst=0")
NUMBERS = ("voi_split", "voi_merge", "voi", "rand", "rand_split", "rand_merge", "adapted_rand_error", "nvi_split")


def scores_of(experiment: Experiment) -> dict[str, Any]:
    return read_sealed(experiment.layout.report / "scores.json", "")


def page_of(experiment: Experiment) -> str:
    return (experiment.layout.report / "index.html").read_text()


def segmentation_at(experiment: Experiment, threshold: float) -> np.ndarray:
    """The whole segmented volume of a threshold, by a dictionary."""
    lut = read_lut(experiment.layout.luts / lut_name("hist_quant_75", threshold))
    entries = dict(zip(lut.fragments.tolist(), lut.segments.tolist(), strict=True)) | {0: 0}
    volume = open_volume(made(experiment.layout, "watershed"), FRAGMENTS.dataset)
    return np.vectorize(entries.__getitem__, otypes=[np.uint64])(volume.read(volume.box))


def truth_of(experiment: Experiment) -> np.ndarray:
    volume = open_volume(experiment.layout.target_volume, LABELS.dataset)
    return volume.read(volume.box)


@pytest.mark.proves("EVA-03")
@pytest.mark.parametrize("zeros", ZERO_POLICIES)
def test_every_threshold_scores_exactly_what_the_whole_volume_scores(
    make_experiment: Make, scores_now: Scores, zeros: ZeroPolicy
) -> None:
    experiment = make_experiment("a", f"evaluate.zeros={zeros}", *BARE)
    rows = scores_now(experiment)["thresholds"]
    assert [row["threshold"] for row in rows] == [0.1, 0.28, 0.29, 0.9]
    for row in rows:
        whole = score(contingency(segmentation_at(experiment, row["threshold"]), truth_of(experiment)), zeros)
        assert {name: row[name] for name in NUMBERS} == {name: getattr(whole, name) for name in NUMBERS}
        assert row["zeros"] == zeros


def test_the_numbers_on_top_are_those_of_the_threshold_that_segment_took(finished: Experiment) -> None:
    found = scores_of(finished)
    assert (found["threshold"], found["merge_function"], found["has_truth"]) == (0.28, "hist_quant_75", True)
    written = open_volume(made(finished.layout, "segment"), SEGMENTATION.dataset)
    whole = score(contingency(written.read(written.box), truth_of(finished)))
    assert {name: found[name] for name in NUMBERS} == {name: getattr(whole, name) for name in NUMBERS}


@pytest.mark.proves("EVA-01")
def test_a_region_scores_what_its_crop_scores(make_experiment: Make, scores_now: Scores) -> None:
    experiment = make_experiment("a", 'evaluate.roi={begin="3, 5, 2 vox", shape="10, 15, 20 vox"}', *BARE)
    found = scores_now(experiment)
    crop = (slice(3, 13), slice(5, 20), slice(2, 22))
    whole = score(contingency(segmentation_at(experiment, 0.28)[crop], truth_of(experiment)[crop]))
    assert found["voi"] == whole.voi
    assert found["roi"] == {"begin_vox": [3, 5, 2], "shape_vox": [10, 15, 20]}


# In its lower half each cell is one fragment: there all thresholds but the last are alike, and the lowest is taken.
@pytest.mark.parametrize(("shape", "best"), [("18, 24, 10 vox", 0.29), ("9, 24, 10 vox", 0.1)])
def test_the_threshold_is_chosen_on_one_region_and_reported_on_another(
    make_experiment: Make, scores_now: Scores, shape: str, best: float
) -> None:
    regions = (
        f'evaluate.threshold_roi={{begin="0 vox", shape="{shape}"}}',
        'evaluate.roi={begin="0, 0, 10 vox", shape="18, 24, 16 vox"}',
    )
    experiment = make_experiment("a", *regions, *BARE)
    found = scores_now(experiment)
    there = (slice(0, int(shape.partition(",")[0])), slice(None), slice(0, 10))
    by_hand = min(
        (0.1, 0.28, 0.29, 0.9),
        key=lambda t: score(contingency(segmentation_at(experiment, t)[there], truth_of(experiment)[there])).voi,
    )
    assert found["threshold"] == by_hand == best
    here = (slice(None), slice(None), slice(10, 26))
    whole = score(contingency(segmentation_at(experiment, best)[here], truth_of(experiment)[here]))
    assert found["voi"] == whole.voi


REGIONS = (
    'evaluate.roi={begin="3, 5, 2 vox", shape="10, 15, 20 vox"}',
    'evaluate.threshold_roi={begin="14, 0, 9 vox", shape="4, 11, 17 vox"}',
)


@pytest.fixture(scope="module")
def two_regions(finished: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """An experiment after a run with REGIONS. Only to be read."""
    root = tmp_path_factory.mktemp("two_regions") / "a"
    shutil.copytree(finished.layout.root, root)
    Evaluate().run(load_experiment(root, list(REGIONS)))
    return load_experiment(root, list(REGIONS))


@pytest.mark.parametrize("shape", ["1, 24, 26 vox", "5, 7, 11 vox", "100 vox"])
@pytest.mark.parametrize("regions", [(), REGIONS], ids=["everywhere", "two regions"])
def test_scores_do_not_depend_on_how_the_volume_is_cut(
    make_experiment: Make,
    finished: Experiment,
    two_regions: Experiment,
    scores_now: Scores,
    shape: str,
    regions: tuple[str, ...],
) -> None:
    found = scores_now(make_experiment("b", *regions, f'evaluate.block_shape="{shape}"'))
    whole = scores_of(two_regions if regions else finished)
    assert found == {name: value for name, value in whole.items() if name not in ("seams", "advice", "lsd_error")}


def test_worker_processes_count_the_same_as_one(make_experiment: Make, two_regions: Experiment) -> None:
    experiment = make_experiment("b", *REGIONS, "compute.runner=daisy", "compute.workers=2")
    Evaluate().run(experiment)
    assert scores_of(experiment) == scores_of(two_regions)
    identities = [read_manifest(e.layout, "evaluate").identity for e in (experiment, two_regions)]
    assert identities[0] == identities[1]


def test_what_was_counted_is_not_counted_again_but_other_fragments_are(finished: Experiment, copy_of: Make) -> None:
    experiment = copy_of(finished, "a")

    def counted() -> dict[int, float]:
        marks = require_counting(experiment).task.marks
        return {number: record["finished"] for number, record in marks.records().items()}

    first = counted()
    assert len(first) == 18
    Evaluate().run(experiment)
    assert counted() == first
    spoil_watershed(experiment)
    assert counted() == {}


def test_verify_finds_what_was_counted_lost_or_damaged(two_regions: Experiment, copy_of: Make) -> None:
    experiment = copy_of(two_regions, "a", *REGIONS)
    counting = require_counting(experiment).task
    rows = (experiment.layout.store / "overlaps_roi" / counting.key).rglob("*.parquet")
    assert Evaluate().verify(experiment)["blocks_read_back"] == len(list(rows)) == 18
    path = sorted((experiment.layout.store / "overlaps_threshold_roi").rglob("*.parquet"))[-1]
    content = path.read_bytes()
    path.write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    with pytest.raises(BadData, match="lost or damaged"):
        Evaluate().verify(experiment)
    path.unlink()
    with pytest.raises(BadData, match="lost or damaged"):
        Evaluate().verify(experiment)


@given(
    rows=st.lists(st.tuples(*[st.integers(0, 2**64 - 1)] * 2, st.integers(1, 2**40)), max_size=20),
    rest=st.integers(0, 9),
)
def test_a_table_comes_back_from_its_rows(rows: list[tuple[int, int, int]], rest: int) -> None:
    known = sorted({(label, max(truth, 1)): size for label, truth, size in rows}.items())
    columns = zip(*((label, truth, size) for (label, truth), size in known), strict=True) if known else [(), (), ()]
    labels, truths, sizes = (
        np.array(c, kind) for c, kind in zip(columns, (np.uint64, np.uint64, np.int64), strict=True)
    )
    found = table_of(overlaps_of(Contingency(labels, truths, sizes, rest)))
    assert [found.labels.tolist(), found.truths.tolist(), found.voxels.tolist()] == [
        c.tolist() for c in (labels, truths, sizes)
    ]
    assert found.unlabelled_vox == rest


@pytest.mark.proves("EVA-04")
def test_success_is_voi_below_the_limit(finished: Experiment, copy_of: Make, scores_now: Scores) -> None:
    assert scores_of(finished)["success"] == {"criterion": "voi < 2", "passed": True}
    strict = scores_now(copy_of(finished, "a", "evaluate.voi_limit=0.01", *BARE))
    assert strict["success"] == {"criterion": "voi < 0.01", "passed": False}


def trace_columns(experiment: Experiment) -> None:
    """Skeletons along z in some columns: each truth cell is one neuron, traced voxel by voxel."""
    truth = truth_of(experiment)
    rows, node = ["neuron,node,z,y,x,parent"], 0
    for y, x in ((6, 5), (12, 20), (20, 10), (20, 22)):
        for z, neuron in enumerate(truth[:, y, x].tolist()):
            node += 1
            parent = str(node - 1) if z and truth[z - 1, y, x] == neuron else ""
            rows.append(f"{neuron},{node},{400 + 20 * (z + 0.5)},{10.5 * (y + 0.5)},{21 + 10.5 * (x + 0.5)},{parent}")
    (experiment.layout.root / "traced.csv").write_text("\n".join(rows))


def test_a_better_threshold_has_longer_runs(make_experiment: Make, scores_now: Scores) -> None:
    experiment = make_experiment("a", "evaluate.skeletons=traced.csv", "evaluate.worst=0")
    trace_columns(experiment)
    rows = {row["threshold"]: row for row in scores_now(experiment)["thresholds"]}
    assert 0 < rows[0.1]["normalized_erl"] < rows[0.28]["normalized_erl"] < rows[0.29]["normalized_erl"] == 1
    assert rows[0.9]["normalized_erl"] == 0
    assert rows[0.1]["split_edges"] > rows[0.28]["split_edges"] > rows[0.29]["split_edges"] == 0
    assert rows[0.9]["merged_edges"] > rows[0.29]["merged_edges"] == 0


def test_thinned_truth_of_a_perfect_segmentation_has_the_longest_runs(
    make_experiment: Make, scores_now: Scores
) -> None:
    found = scores_now(make_experiment("a", "evaluate.skeleton_lattice=[1, 1, 1]", "evaluate.worst=0"))
    rows = {row["threshold"]: row for row in found["thresholds"]}
    assert rows[0.29]["normalized_erl"] == 1
    assert rows[0.9]["normalized_erl"] < 0.01
    assert "thinned truth" in found["settings"]["skeletons"]


def test_traced_skeletons_are_used_and_cropped(make_experiment: Make, scores_now: Scores) -> None:
    experiment = make_experiment("a", "evaluate.skeletons=traced.csv", "evaluate.worst=0")
    rows = ["neuron,node,z,y,x,parent"]
    rows += [f"7,{i + 1},{405 + 20 * i},131,150,{i or ''}" for i in range(25)]
    (experiment.layout.root / "traced.csv").write_text("\n".join(rows))
    found = scores_now(experiment)
    assert found["edges"] == 17
    assert found["settings"]["skeletons"] == "traced: traced.csv"


def test_masked_truth_does_not_count(make_experiment: Make, scores_now: Scores) -> None:
    experiment = make_experiment("a", *BARE)
    volume = open_volume(experiment.layout.target_volume, LABELS.dataset)
    states = np.ones(volume.geometry.shape_vox, np.uint8)
    states[:9] = 0
    output = OutputArray(experiment.layout.target_volume, MASK, volume.geometry, volume.box, (8, 8, 16))
    output.create({"key": "made by the test"})
    output.open().write(volume.box, states)
    whole = score(contingency(segmentation_at(experiment, 0.28)[9:], truth_of(experiment)[9:]))
    assert scores_now(experiment)["voi"] == whole.voi


def test_without_truth_there_is_a_report_and_no_score(finished_without_truth: Experiment) -> None:
    experiment = finished_without_truth
    found = scores_of(experiment)
    assert found["has_truth"] is False
    assert "no truth" in found["reason"]
    assert "voi" not in found
    assert "no truth was given" in page_of(experiment)
    assert read_manifest(experiment.layout, "evaluate").facts["has_truth"] is False


def test_the_page_shows_layers_losses_times_versions_and_the_viewer_state(finished: Experiment) -> None:
    page = page_of(finished)
    for words in ("Affinities", "Segmentation", "hist_quant_75", "0.1.0", "the widest plateau"):
        assert words in page
    assert page.count("data:image/png") >= 18
    state = json.loads((finished.layout.report / "neuroglancer.json").read_text())
    names = [layer["name"] for layer in state["layers"]]
    assert names == ["raw", "affinities", "fragments", "segmentation", "truth"]
    assert str(finished.layout.root) not in page


def spoil_fragments(experiment: Experiment) -> None:
    shutil.rmtree(made(experiment.layout, "watershed"))


def spoil_chunk(experiment: Experiment) -> None:
    chunk = next(p for p in (made(experiment.layout, "watershed") / FRAGMENTS.dataset / "c").rglob("*") if p.is_file())
    chunk.unlink()
    shutil.rmtree(experiment.layout.store / "blocks" / "evaluate")


def spoil_segment(experiment: Experiment) -> None:
    experiment.layout.manifest("segment").unlink()


def spoil_tables(experiment: Experiment) -> None:
    shutil.rmtree(experiment.layout.luts)


def spoil_target(experiment: Experiment) -> None:
    shutil.rmtree(experiment.layout.target_volume / RAW.dataset)


def spoil_watershed(experiment: Experiment) -> None:
    found = read_manifest(experiment.layout, "watershed")
    found.model_copy(update={"identity": "another"}).write(experiment.layout)


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (spoil_fragments, MissingInput),
        (spoil_chunk, BadData),
        (spoil_segment, MissingInput),
        (spoil_tables, MissingInput),
        (spoil_target, MissingInput),
        (spoil_watershed, ContractMismatch),
    ],
)
def test_a_report_is_made_also_when_something_is_missing_and_the_command_fails(
    finished: Experiment, copy_of: Make, spoil: Callable[[Experiment], None], kind: type[StageError]
) -> None:
    experiment = copy_of(finished, "a")
    spoil(experiment)
    shutil.rmtree(experiment.layout.report)
    with pytest.raises(kind) as error:
        Evaluate().run(experiment)
    assert error.value.what in page_of(experiment)
    assert scores_of(experiment)["thresholds"] == []
    assert not experiment.layout.manifest("evaluate").exists()
    assert (Evaluate().status(experiment)["report"], Evaluate().status(experiment)["finished"]) == (True, False)


def test_errors_of_earlier_stages_and_failed_blocks_come_first_on_the_page(finished: Experiment, copy_of: Make) -> None:
    experiment = copy_of(finished, "a")
    failure = BadData("the affinities are spoilt", where="block 3").as_dict()
    DoneMarks.of(experiment.layout.store, "watershed", "watershed-key").mark_failed(3, failure)
    outcome = {"exit_code": 79, "error": MissingInput("agglomerate stopped early").as_dict()}
    write_json(experiment.layout.stage_runs("agglomerate") / "20260101T000000-1" / "outcome.json", outcome)
    Evaluate().run(experiment)
    page = page_of(experiment)
    assert "agglomerate stopped early" in page
    assert "block 3: the affinities are spoilt" in page


def test_tables_of_other_fragments_are_not_scored(finished: Experiment) -> None:
    assert len(list(finished.layout.luts.glob("lut_mean_*.npz"))) == 1
    assert {row["merge_function"] for row in scores_of(finished)["thresholds"]} == {"hist_quant_75"}


@pytest.mark.parametrize(("fragments", "warned"), [(1000, True), (20, False), (0, False)])
def test_the_page_of_a_network_that_has_hardly_learnt_warns(
    make_experiment: Make, fragments: int, warned: bool
) -> None:
    experiment = make_experiment("a")
    found = read_manifest(experiment.layout, "watershed")
    found.model_copy(update={"facts": {"totals": {"fragments": float(fragments)}}}).write(experiment.layout)
    Evaluate().run(experiment)
    text = "1,000 fragments of 11 voxels on average. A network that knows membranes"
    assert (text in page_of(experiment)) == ("train longer" in page_of(experiment)) == warned


def test_truth_without_a_label_in_the_region_is_reported_not_scored_as_perfect(make_experiment: Make) -> None:
    experiment = make_experiment("a", 'evaluate.roi={begin="0 vox", shape="18, 3, 26 vox"}')
    with pytest.raises(BadData, match="nothing to compare"):
        Evaluate().run(experiment)
    assert "nothing to compare" in page_of(experiment)


def test_validate_and_plan_report_what_can_be_known(make_experiment: Make) -> None:
    assert Evaluate().validate(make_experiment("a")) == []
    outside = Evaluate().validate(make_experiment("a", 'evaluate.roi={begin="0 vox", shape="99 vox"}'))
    assert [type(p) for p in outside] == [ConfigError]
    assert [type(p) for p in Evaluate().validate(make_experiment("a", "evaluate.skeletons=absent.csv"))] == [
        MissingInput
    ]
    assert Evaluate().plan(make_experiment("a"))["voxels_compared"] == 18 * 24 * 26


def test_validate_does_not_wait_for_what_scores_and_draws(make_experiment: Make) -> None:
    code = (
        "import sys; from lsdflow_evaluate.cli import app;"
        "app(['validate', '--experiment', sys.argv[1]], standalone_mode=False);"
        "print({'scipy', 'skimage', 'jinja2', 'matplotlib'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code, str(make_experiment("a").path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["evaluate: no problems found", "set()"]


def test_the_command_ends_with_its_exit_code(finished: Experiment, copy_of: Make) -> None:
    experiment = copy_of(finished, "a")
    experiment.layout.manifest("evaluate").unlink()
    assert CliRunner().invoke(app, ["run", "-e", str(experiment.path)]).exit_code == 0
    status = Evaluate().status(experiment)
    assert (status["report"], status["finished"], status["done"]) == (True, True, status["blocks"])
    spoil_segment(experiment)
    assert CliRunner().invoke(app, ["run", "-e", str(experiment.path)]).exit_code == 66
    assert CliRunner().invoke(app, ["run", "-e", str(experiment.path), "--set", "evaluate.voi=1"]).exit_code == 78
