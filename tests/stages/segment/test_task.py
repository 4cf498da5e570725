"""The whole stage on a small graph: tables, choice, segmentation, verification, resume and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lsdflow_contract.arrays import FRAGMENTS, LABELS, MASK, SEGMENTATION
from lsdflow_contract.checkpoint import BestCheckpoint, Calibration, write_best
from lsdflow_contract.errors import BadData, ConfigError, ContractMismatch, MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.graph import RagEdges
from lsdflow_contract.lut import lut_name, read_lut
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_contract.testing import made, same_partition, tables_of
from lsdflow_runtime.io.volumes import OutputArray, open_volume
from lsdflow_runtime.store.rag_store import FilesRagStore
from lsdflow_segment.cli import app
from lsdflow_segment.stage import Segment

Make = Callable[..., Experiment]


def array(experiment: Experiment, path: Path, dataset: str) -> np.ndarray:
    volume = open_volume(path, dataset)
    return volume.read(volume.box)


def segmentation(experiment: Experiment, name: str = SEGMENTATION.dataset) -> np.ndarray:
    return array(experiment, made(experiment.layout, "segment"), name)


def cells_without_background(experiment: Experiment) -> tuple[np.ndarray, np.ndarray]:
    """Truth and segmentation, both 0 where there is no fragment or where the slab outside the truth lies."""
    truth = array(experiment, experiment.layout.target_volume, LABELS.dataset)
    found = segmentation(experiment)
    truth[found == 0] = 0
    return truth, np.where(truth == 0, np.uint64(0), found)


def test_the_cells_come_back_and_every_segment_is_named_by_its_smallest_fragment(make_experiment: Make) -> None:
    experiment = make_experiment()
    Segment().run(experiment)
    truth, found = cells_without_background(experiment)
    assert same_partition(truth, found)
    fragments = array(experiment, experiment.layout.root / "fragments.zarr", FRAGMENTS.dataset)
    whole = segmentation(experiment)
    assert np.array_equal(whole == 0, fragments == 0)
    for segment in np.unique(whole[whole != 0]):
        assert fragments[whole == segment].min() == segment


@pytest.mark.proves("SEG-01")
def test_one_table_per_threshold_under_both_names(make_experiment: Make) -> None:
    experiment = make_experiment("a", "segment.thresholds_step=0.01")
    Segment().run(experiment)
    names = {path.name for path in tables_of(experiment.layout).glob("lut_hist_quant_75_*.npz")}
    assert len(names) == 101
    table = np.load(tables_of(experiment.layout) / "lut_hist_quant_75_0.2900.npz")["fragment_segment_lut"]
    assert (table.shape[0], table.dtype) == (2, np.uint64)
    side_car = json.loads((tables_of(experiment.layout) / "lut_hist_quant_75_0.2900.json").read_text())
    assert (side_car["threshold"], side_car["merge_function"]) == (0.29, "hist_quant_75")
    assert side_car["score_convention"] == "one_minus_affinity, low=merge"
    assert side_car["fingerprint"] == "agglomerate-key-identity"
    for row in json.loads((tables_of(experiment.layout) / "thresholds_hist_quant_75.json").read_text())["thresholds"]:
        if row["legacy_lut"]:
            own, legacy = (read_lut(tables_of(experiment.layout) / row[name]) for name in ("lut", "legacy_lut"))
            assert np.array_equal(own.segments, legacy.segments)


def calibrated(experiment: Experiment, **thresholds: float) -> Experiment:
    """The experiment with affinities of a network that came with these thresholds."""
    calibration = {"thresholds": thresholds, "voxels": 9, "on": "other volumes"}
    facts = {"inputs": {"network": "network"}, "outputs": {}, "identity": "predict-identity"}
    config = {"resolved": {"calibration": calibration}}
    Manifest(writer=Writer.of("predict"), key="predict-key", config=config, **facts).write(experiment.layout)
    return experiment


def chosen_by(experiment: Experiment) -> tuple[float, str]:
    Segment().run(experiment)
    facts = read_manifest(experiment.layout, "segment").facts
    return facts["threshold"], facts["advice"]["method"]


def test_the_threshold_of_select_checkpoint_is_used_also_if_it_was_chosen_after_predict(make_experiment: Make) -> None:
    experiment = calibrated(make_experiment(truth=False), hist_quant_75=0.3)
    assert chosen_by(experiment) == (0.3, "network")
    later = Calibration(thresholds={"hist_quant_75": 0.5}, voxels=9, on="held out: a")
    best = BestCheckpoint(iteration=1, weights_sha256="of another network", chosen_by="voi", calibration=later)
    write_best(experiment.layout.best_checkpoint("train-acrlsd"), best)
    assert chosen_by(experiment) == (0.3, "network")
    write_best(experiment.layout.best_checkpoint("train-acrlsd"), best.model_copy(update={"weights_sha256": "network"}))
    assert chosen_by(experiment) == (0.5, "network")


def test_the_merge_function_of_select_checkpoint_is_used_if_it_has_edges_and_none_is_set(make_experiment: Make) -> None:
    experiment = calibrated(make_experiment("a", truth=False), hist_quant_75=0.3)
    best = BestCheckpoint(iteration=1, weights_sha256="network", chosen_by="voi", merge_function="median")
    write_best(experiment.layout.best_checkpoint("train-acrlsd"), best)
    assert chosen_by(experiment) == (0.3, "network")
    assert read_manifest(experiment.layout, "segment").facts["merge_function"] == "hist_quant_75"
    write_best(experiment.layout.best_checkpoint("train-acrlsd"), best.model_copy(update={"merge_function": "mean"}))
    Segment().run(experiment)
    assert read_manifest(experiment.layout, "segment").facts["merge_function"] == "mean"


def test_without_truth_the_threshold_of_the_network_is_chosen(make_experiment: Make) -> None:
    experiment = make_experiment(truth=False)
    assert chosen_by(experiment)[1] == "stability"
    assert chosen_by(calibrated(experiment, hist_quant_75=0.81)) == (0.8, "network")
    assert chosen_by(calibrated(experiment, hist_quant_75=0.1)) == (0.1, "network"), "another network: chosen again"
    assert chosen_by(calibrated(experiment, mean=0.5))[1] == "stability", "that of another merge function says nothing"
    assert Segment().verify(experiment)["verified"]


def test_truth_and_settings_go_before_the_threshold_of_the_network(make_experiment: Make) -> None:
    with_truth = calibrated(make_experiment("a"), hist_quant_75=0.8)
    assert chosen_by(with_truth)[1] == "voi"
    assert chosen_by(make_experiment("a", 'segment.advice="network"')) == (0.8, "network")
    assert chosen_by(make_experiment("a", 'segment.advice="stability"'))[1] == "stability"
    assert chosen_by(make_experiment("a", "segment.threshold=0.4"))[0] == 0.4


@pytest.mark.parametrize("thresholds", [{}, {"mean": 0.5}])
def test_the_threshold_of_a_network_that_has_none_is_refused(
    make_experiment: Make, thresholds: dict[str, float]
) -> None:
    experiment = calibrated(make_experiment("a", 'segment.advice="network"', truth=False), **thresholds)
    with pytest.raises(MissingInput, match="came without a threshold"):
        Segment().run(experiment)


@pytest.mark.proves("SEG-06")
def test_with_truth_the_threshold_with_the_smallest_voi_is_chosen(make_experiment: Make) -> None:
    experiment = make_experiment()
    Segment().run(experiment)
    facts = read_manifest(experiment.layout, "segment").facts
    assert facts["advice"]["method"] == "voi"
    assert 0.3 <= facts["threshold"] < 0.7
    rows = json.loads((tables_of(experiment.layout) / "thresholds_hist_quant_75.json").read_text())["thresholds"]
    assert min(rows, key=lambda r: r["voi_split"] + r["voi_merge"])["threshold"] == facts["threshold"]


@pytest.mark.proves("SEG-06")
def test_without_truth_the_plateau_is_chosen(make_experiment: Make) -> None:
    experiment = make_experiment("a", truth=False)
    Segment().run(experiment)
    facts = read_manifest(experiment.layout, "segment").facts
    assert facts["advice"]["method"] == "stability"
    assert 0.4 <= facts["threshold"] <= 0.6


def test_truth_outside_the_advice_region_is_not_used(make_experiment: Make) -> None:
    overrides = ('segment.truth_roi={begin="0 vox", shape="8, 8, 10 vox"}', "segment.advice=truth")
    experiment = make_experiment("a", *overrides)
    Segment().run(experiment)
    inside = read_manifest(experiment.layout, "segment").facts["threshold"]
    truth = open_volume(experiment.layout.target_volume, LABELS.dataset)
    spoilt = truth.read(truth.box)
    spoilt[8:] = np.random.default_rng(0).permutation(spoilt[8:].ravel()).reshape(spoilt[8:].shape)
    truth.write(truth.box, spoilt)
    Segment().run(experiment)
    assert read_manifest(experiment.layout, "segment").facts["threshold"] == inside


def test_a_set_threshold_and_extra_thresholds_are_written(make_experiment: Make) -> None:
    experiment = make_experiment("a", "segment.threshold=0.2", "segment.extra_thresholds=[0.55, 0.9999]")
    Segment().run(experiment)
    fragments = array(experiment, experiment.layout.root / "fragments.zarr", FRAGMENTS.dataset)
    for name, threshold in (("", "0.2000"), ("_0.5500", "0.5500"), ("_0.9999", "0.9999")):
        lut = read_lut(tables_of(experiment.layout) / f"lut_hist_quant_75_{threshold}.npz")
        entries = dict(zip(lut.fragments.tolist(), lut.segments.tolist(), strict=True)) | {0: 0}
        wanted = np.vectorize(entries.__getitem__, otypes=[np.uint64])(fragments)
        assert np.array_equal(segmentation(experiment, SEGMENTATION.dataset + name), wanted)
    assert read_manifest(experiment.layout, "segment").facts["threshold"] == 0.2


def test_a_threshold_that_is_not_computed_is_refused_before_anything_is_written(make_experiment: Make) -> None:
    experiment = make_experiment("a", "segment.threshold=0.25", "segment.thresholds_step=0.1")
    with pytest.raises(MissingInput, match=r"0\.2000, 0\.3000"):
        Segment().run(experiment)
    assert not experiment.layout.luts.exists()
    assert not (experiment.layout.results / "segment").exists()
    assert [p.exit_code for p in Segment().validate(experiment)] == [66]


@pytest.mark.proves("SEG-04")
def test_a_region_writes_the_same_voxels_as_the_whole(make_experiment: Make) -> None:
    whole, part = (
        make_experiment("a"),
        make_experiment("b", 'segment.roi={begin="3, 4, 5 vox", shape="10, 11, 12 vox"}'),
    )
    Segment().run(whole)
    Segment().run(part)
    volume = open_volume(made(part.layout, "segment"), SEGMENTATION.dataset)
    assert np.array_equal(volume.read(volume.box), segmentation(whole)[3:13, 4:15, 5:17])
    assert volume.geometry.offset_nm == (400 + 3 * 40.0, 4 * 8.5, 17 + 5 * 8.5)


@pytest.mark.parametrize("overrides", [("compute.runner=daisy",), ('segment.block_shape="5, 7, 9 vox"',)])
def test_workers_and_block_shape_change_no_voxel(make_experiment: Make, overrides: tuple[str, ...]) -> None:
    one, other = make_experiment("a"), make_experiment("b", *overrides)
    Segment().run(one)
    Segment().run(other)
    assert np.array_equal(segmentation(one), segmentation(other))


def test_the_manifest_counts_what_is_in_the_volume(make_experiment: Make) -> None:
    experiment = make_experiment()
    Segment().run(experiment)
    facts, found = read_manifest(experiment.layout, "segment").facts, segmentation(experiment)
    ids, voxels = np.unique(found[found != 0], return_counts=True)
    assert facts["segments"] == len(ids)
    assert (facts["largest_segment"], facts["largest_segment_vox"]) == (ids[np.argmax(voxels)], voxels.max())
    assert facts["background_vox"] == (found == 0).sum()
    assert sum(facts["size_segments"]) == len(ids)


def test_a_second_run_does_no_block_again(make_experiment: Make) -> None:
    experiment = make_experiment()
    Segment().run(experiment)
    first = read_manifest(experiment.layout, "segment")
    Segment().run(experiment)
    assert read_manifest(experiment.layout, "segment") == first


def test_the_segmentations_of_two_thresholds_exist_side_by_side(make_experiment: Make) -> None:
    first = make_experiment("a", "segment.threshold=0.2")
    Segment().run(first)
    manifest, voxels = read_manifest(first.layout, "segment"), segmentation(first)
    other = make_experiment("a", "segment.threshold=0.9")
    Segment().run(other)
    assert read_manifest(other.layout, "segment").facts["threshold"] == 0.9
    assert not np.array_equal(segmentation(other), voxels)
    Segment().run(first)
    assert read_manifest(first.layout, "segment") == manifest
    assert np.array_equal(segmentation(first), voxels)


def other_graph(experiment: Experiment) -> None:
    """Another result of agglomerate, of the same fragments: no edge is below a threshold."""
    store = FilesRagStore(experiment.layout.store)
    for name in ("hist_quant_75", "mean"):
        for block in (0, 1):
            rows = store.read_edges("agglomerate-key", name, block)
            store.write_edges("2nd-agglomerate", name, block, RagEdges(rows.u, rows.v, np.ones_like(rows.merge_score)))
    found = read_manifest(experiment.layout, "agglomerate")
    changed = {"key": "2nd-agglomerate", "identity": "2nd-agglomerate-identity"}
    found.model_copy(update=changed).write(experiment.layout)


def test_the_tables_of_two_graphs_exist_side_by_side(make_experiment: Make) -> None:
    experiment = make_experiment("a", "segment.threshold=0.3")
    Segment().run(experiment)
    agglomerate, manifest = (read_manifest(experiment.layout, stage) for stage in ("agglomerate", "segment"))
    folder = tables_of(experiment.layout)
    assert folder == experiment.layout.root / manifest.facts["luts"]
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    other_graph(experiment)
    Segment().run(experiment)
    name = lut_name("hist_quant_75", 0.3)
    assert tables_of(experiment.layout) != folder
    now, then = (np.unique(read_lut(f / name).segments) for f in (tables_of(experiment.layout), folder))
    assert len(now) > len(then)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    for earlier in (agglomerate, manifest):
        earlier.write(experiment.layout)
    assert tables_of(experiment.layout) == folder
    assert Segment().verify(experiment)["verified"]


def test_a_fragment_that_the_graph_lacks_stops_the_run_by_name(make_experiment: Make) -> None:
    experiment = make_experiment("a", truth=False)
    volume = open_volume(experiment.layout.root / "fragments.zarr", FRAGMENTS.dataset)
    values = volume.read(volume.box)
    values[10, 10, 10] = 123
    volume.write(volume.box, values)
    with pytest.raises(BadData, match="fragment 123 "):
        Segment().run(experiment)


def test_voxels_that_differ_from_the_graph_remove_the_manifest(make_experiment: Make) -> None:
    experiment = make_experiment()
    volume = open_volume(experiment.layout.root / "fragments.zarr", FRAGMENTS.dataset)
    values = volume.read(volume.box)
    values[10, 10, 10] = 0
    volume.write(volume.box, values)
    with pytest.raises(BadData, match="segment sizes in the volume and in the graph differ"):
        Segment().run(experiment)
    assert not experiment.layout.manifest("segment").exists()


def test_edges_of_other_fragments_are_refused(make_experiment: Make) -> None:
    experiment = make_experiment()
    found = read_manifest(experiment.layout, "watershed")
    found.model_copy(update={"identity": "another"}).write(experiment.layout)
    with pytest.raises(ContractMismatch, match="different runs"):
        Segment().run(experiment)


def test_scores_outside_zero_to_one_are_refused(make_experiment: Make) -> None:
    experiment = make_experiment()
    ids = next(FilesRagStore(experiment.layout.store).iter_nodes("watershed-key")).id
    rows = RagEdges(ids[:1], ids[1:2], np.array([1.5], np.float32))
    FilesRagStore(experiment.layout.store).write_edges("agglomerate-key", "hist_quant_75", 1, rows)
    with pytest.raises(BadData, match=r"outside \[0, 1\]"):
        Segment().run(experiment)


@pytest.mark.parametrize(
    ("collection", "key"),
    [
        ("nodes", "watershed-key"),
        ("edges_hist_quant_75", "agglomerate-key"),
        ("edges_mean", "agglomerate-key"),
    ],
)
@pytest.mark.parametrize("block", [0, 1])
def test_a_block_without_its_rows_is_refused_naming_it_and_its_repair(
    make_experiment: Make, collection: str, key: str, block: int
) -> None:
    experiment = make_experiment()
    (experiment.layout.store / collection / key / f"{block}.parquet").unlink()
    with pytest.raises(BadData, match=f"the rows of block {block}") as caught:
        Segment().run(experiment)
    assert (caught.value.exit_code, caught.value.fix) == (65, "recompute it: lsdflow repair EXPERIMENT")
    assert not experiment.layout.manifest("segment").exists()


def test_an_unknown_merge_function_is_refused_with_those_there(make_experiment: Make) -> None:
    experiment = make_experiment("a", "segment.merge_function=hist_quant_57")
    with pytest.raises(MissingInput, match="edges_hist_quant_75"):
        Segment().run(experiment)


def test_nothing_agglomerated_yet_is_a_missing_input_and_no_problem_of_validate(make_experiment: Make) -> None:
    experiment = make_experiment()
    experiment.layout.manifest("agglomerate").unlink()
    with pytest.raises(MissingInput, match="agglomerate has not finished"):
        Segment().run(experiment)
    assert Segment().validate(experiment) == []


def test_validate_names_a_region_outside_and_missing_truth(make_experiment: Make) -> None:
    roi = 'segment.roi={begin="0 vox", shape="99 vox"}'
    problems = Segment().validate(make_experiment("a", roi, "segment.advice=truth", truth=False))
    assert [type(p) for p in problems] == [ConfigError]
    problems = Segment().validate(make_experiment("a", "segment.advice=truth", truth=False))
    assert [type(p) for p in problems] == [MissingInput]
    assert Segment().validate(make_experiment("b")) == []


def test_plan_and_status_before_during_and_after(make_experiment: Make) -> None:
    experiment = make_experiment()
    assert Segment().plan(experiment)["blocks"] == 18
    assert Segment().plan(experiment)["tables"] == 21
    assert Segment().status(experiment)["finished"] is False
    Segment().run(experiment)
    assert (Segment().status(experiment)["done"], Segment().status(experiment)["finished"]) == (18, True)


def test_every_merge_function_has_its_tables_and_one_makes_the_segmentation(make_experiment: Make) -> None:
    experiment = make_experiment("a", "segment.merge_function=mean")
    Segment().run(experiment)
    assert len(list(tables_of(experiment.layout).glob("lut_hist_quant_75_*.npz"))) == 21
    assert len(list(tables_of(experiment.layout).glob("lut_mean_*.npz"))) == 21
    facts = read_manifest(experiment.layout, "segment").facts
    assert facts["merge_function"] == "mean"
    assert 0.15 <= facts["threshold"] < 0.35
    truth, found = cells_without_background(experiment)
    assert same_partition(truth, found)


def test_truth_under_an_ignore_mask_does_not_decide(make_experiment: Make) -> None:
    experiment = make_experiment()
    truth = open_volume(experiment.layout.target_volume, LABELS.dataset)
    output = OutputArray(experiment.layout.target_volume, MASK, truth.geometry, truth.box, (8, 8, 16))
    output.create({"key": "made by the test"})
    output.open().write(truth.box, np.zeros(truth.geometry.shape_vox, np.uint8))
    Segment().run(experiment)
    assert read_manifest(experiment.layout, "segment").facts["advice"]["method"] == "stability"


@pytest.mark.proves("SEG-05")
def test_run_type_puts_the_tables_into_a_folder(make_experiment: Make) -> None:
    experiment = make_experiment("a", "segment.run_type=trial", "segment.thresholds_minmax=[0.4, 0.5]")
    Segment().run(experiment)
    assert (tables_of(experiment.layout) / "lut_hist_quant_75_0.4000.npz").exists()
    assert tables_of(experiment.layout).parent == experiment.layout.luts / "trial"
    assert list(experiment.layout.luts.glob("*.npz")) == []


def test_the_command_runs_and_returns_its_exit_code(make_experiment: Make) -> None:
    experiment = make_experiment()
    runner = CliRunner()
    assert runner.invoke(app, ["run", "-e", str(experiment.path), "--set", "segment.threshold=0.5"]).exit_code == 0
    other = ["-e", str(experiment.path), "--set", "segment.threshold=0.9"]
    assert runner.invoke(app, ["run", *other]).exit_code == 0
    assert len(list((experiment.layout.results / "segment").iterdir())) == 2
    assert runner.invoke(app, ["run", "-e", str(experiment.path), "--set", "segment.treshold=0.9"]).exit_code == 78
    assert runner.invoke(app, ["schema"]).exit_code == 0
