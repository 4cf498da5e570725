"""Named regions and masks: each scores what its crop scores; skeletons are looked up by blocks as in whole volumes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bson
import numpy as np
import pymongo
import pytest

from lsdflow_contract.arrays import FRAGMENTS, LABELS, MASK, ArraySpec
from lsdflow_contract.errors import BadData, ConfigError, ContractMismatch, MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.lut import lut_name, read_lut
from lsdflow_contract.sealing import read_sealed
from lsdflow_contract.testing import made
from lsdflow_evaluate import passes
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.inputs import require_counting
from lsdflow_evaluate.pass_files import drop_pass_files, find_pass_files, keys_of_pass_files, write_pass_files
from lsdflow_evaluate.scores.run_length import Skeletons, run_lengths
from lsdflow_evaluate.skeletons.files import read_skeletons
from lsdflow_evaluate.stage import Evaluate
from lsdflow_metrics.contingency import contingency
from lsdflow_metrics.scores import score
from lsdflow_runtime.io.volumes import OutputArray, open_volume

Make = Callable[..., Experiment]
OFFSET, SIZE = np.array([400.0, 0.0, 21.0]), np.array([20.0, 10.5, 10.5])
CORE = 'evaluate.regions.core={begin="3, 5, 2 vox", shape="10, 15, 20 vox"}'
PIL = 'evaluate.regions.neuropil={mask="volumes/neuropil"}'
BOTH = 'evaluate.regions.both={begin="0 vox", shape="18, 24, 13 vox", mask="volumes/neuropil"}'
TRACED = "evaluate.skeletons=traced.csv"


def scores_of(experiment: Experiment) -> dict[str, Any]:
    Evaluate().run(experiment)
    return read_sealed(experiment.layout.report / "scores.json", "")


def whole(experiment: Experiment, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    lut = read_lut(experiment.layout.luts / lut_name("hist_quant_75", threshold))
    entries = dict(zip(lut.fragments.tolist(), lut.segments.tolist(), strict=True)) | {0: 0}
    fragments = open_volume(made(experiment.layout, "watershed"), FRAGMENTS.dataset)
    truth = open_volume(experiment.layout.target_volume, LABELS.dataset)
    segments = np.vectorize(entries.__getitem__, otypes=[np.uint64])(fragments.read(fragments.box))
    return segments, truth.read(truth.box)


def write_mask(experiment: Experiment) -> np.ndarray:
    """A mask with holes, in the target volume."""
    volume = open_volume(experiment.layout.target_volume, LABELS.dataset)
    mask = (np.random.default_rng(3).random(volume.geometry.shape_vox) < 0.7).astype(np.uint8)
    spec = ArraySpec("volumes/neuropil", "uint8", 0, MASK.kind)
    output = OutputArray(experiment.layout.target_volume, spec, volume.geometry, volume.box, (8, 8, 16))
    output.create({"key": "made by the test"})
    output.open().write(volume.box, mask)
    return mask


def trace(experiment: Experiment) -> Skeletons:
    """Lines through the volume, some of them out of it."""
    random = np.random.default_rng(5)
    rows, node = ["neuron,node,z,y,x,parent"], 0
    for neuron in range(1, 9):
        at = random.uniform(0, 1, 3) * (18, 24, 26)
        for step in range(30):
            node += 1
            z, y, x = OFFSET + at * SIZE
            rows.append(f"{neuron},{node},{z},{y},{x},{node - 1 if step else ''}")
            at = at + random.uniform(-1, 1.3, 3)
    (experiment.layout.root / "traced.csv").write_text("\n".join(rows))
    return read_skeletons(experiment.layout.root / "traced.csv")


def traced_of(experiment: Experiment) -> passes.Traced:
    """The skeletons that the settings ask for."""
    return passes.trace(experiment, experiment.table("evaluate", EvaluateConfig), require_counting(experiment).volumes)


def regions_of(mask: np.ndarray) -> dict[str, np.ndarray]:
    """Which voxels count in each region, in the order of the file."""
    core, half = np.zeros(mask.shape, bool), np.zeros(mask.shape, bool)
    core[3:13, 5:20, 2:22] = True
    half[:, :, :13] = True
    return {"core": core, "neuropil": mask > 0, "both": half & (mask > 0)}


def test_named_regions_and_masks_score_what_their_voxels_score_at_every_threshold(make_experiment: Make) -> None:
    experiment = make_experiment("a", CORE, PIL, BOTH, TRACED, 'evaluate.block_shape="7, 9, 15 vox"')
    skeletons, counted = trace(experiment), regions_of(write_mask(experiment))
    found = scores_of(experiment)
    voxels = np.floor((skeletons.positions_nm - OFFSET) / SIZE).astype(int)
    inside = ((voxels >= 0) & (voxels < (18, 24, 26))).all(axis=1)
    assert 0 < inside.sum() < len(inside)
    assert list(found["regions"]) == ["core", "neuropil", "both"]
    for row_number, threshold in enumerate((0.1, 0.28, 0.29, 0.9)):
        segments, truth = whole(experiment, threshold)
        everywhere = np.ones(truth.shape, bool)
        for name, counts in {"": everywhere, **counted}.items():
            own = (found["regions"][name] if name else found)["thresholds"][row_number]
            wanted = score(contingency(segments, np.where(counts, truth, 0)))
            for number in ("voi_split", "voi_merge", "nvi_split", "nvi_merge", "nid", "rand", "adapted_rand_error"):
                assert own[number] == getattr(wanted, number)
            kept = inside.copy()
            kept[inside] = counts[tuple(voxels[inside].T)]
            runs = run_lengths(skeletons.only(kept), segments[tuple(voxels[kept].T)])
            assert {n: own[n] for n in vars(runs)} == vars(runs)
    assert found["regions"]["core"]["threshold"] == found["threshold"] == 0.28
    assert found["regions"]["both"]["roi"]["mask"] == "volumes/neuropil"
    assert found["advice"]["method"] == "stability"
    assert Evaluate().verify(experiment)["verified"]


def test_another_region_is_counted_again_and_the_key_without_regions_stays_the_same(make_experiment: Make) -> None:
    plain, named = (require_counting(make_experiment("a", *given)).task for given in ((), (CORE,)))
    assert set(plain.config["regions"]) == {"roi"}
    assert plain.key != named.key


def test_a_mask_that_is_not_there_and_a_region_outside_are_reported_before_anything_is_counted(
    make_experiment: Make,
) -> None:
    outside = 'evaluate.regions.far={begin="0 vox", shape="99 vox"}'
    assert [type(p) for p in Evaluate().validate(make_experiment("a", PIL))] == [MissingInput]
    assert [type(p) for p in Evaluate().validate(make_experiment("a", outside))] == [ConfigError]
    for wrong in ('evaluate.regions.x={begin="0 vox"}', "evaluate.regions.x={}", 'evaluate.regions.X={mask="m"}'):
        with pytest.raises(ConfigError):
            make_experiment("a", wrong).table("evaluate", EvaluateConfig)


def test_the_advice_of_segment_is_in_the_scores_without_truth(finished_without_truth: Experiment) -> None:
    report = finished_without_truth.layout.report
    found = json.loads((report / "scores.json").read_text())
    wanted = {"threshold": 0.28, "method": "stability", "reason": "the widest plateau"}
    assert (found["has_truth"], found["advice"]) == (
        False,
        {**wanted, "merge_function": "hist_quant_75", "taken": 0.28},
    )
    assert not (report / "worst.csv").exists()


def test_skeletons_in_a_dump_of_a_mongodb_are_found_by_their_name(make_experiment: Make) -> None:
    experiment = make_experiment("a", 'evaluate.skeletons="mongo:gt@dump"')
    folder = experiment.layout.root / "dump"
    folder.mkdir()
    nodes = [{"id": n, "z": 410.0 + 20 * n, "y": 60.0, "x": 80.0} for n in range(3)]
    (folder / "gt.nodes.bson").write_bytes(b"".join(bson.encode(node) for node in nodes))
    (folder / "gt.edges.bson").write_bytes(bson.encode({"source": 0, "target": 1}))
    assert Evaluate().validate(experiment) == []
    found = traced_of(experiment)
    assert found.skeletons is not None
    assert (found.skeletons.edges.tolist(), found.kind) == ([[0, 1]], "traced: mongo:gt@dump")
    wrong = Evaluate().validate(make_experiment("a", 'evaluate.skeletons="mongo:gt"'))
    assert [type(problem) for problem in wrong] == [ConfigError]


def test_traced_nodes_merge_by_one_thinned_ones_by_five_or_as_the_settings_say(
    make_experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(*given: str) -> tuple[int, bool]:
        experiment = make_experiment("a", *given)
        traced = traced_of(experiment)
        return traced.merge_min_nodes, traced.skeletons is not None

    trace(make_experiment("a"))
    assert found(TRACED) == (1, True)
    assert found() == found('evaluate.skeletons="truth"') == (5, True)
    assert found("evaluate.merge_min_nodes=3") == found(TRACED, "evaluate.merge_min_nodes=3") == (3, True)
    monkeypatch.setattr(passes, "MOST_LATTICE_POINTS", 1000)
    assert found()[1] is False
    assert found('evaluate.skeletons="truth"')[1] is True


def test_thinned_truth_of_a_region_is_in_its_neurons(make_experiment: Make) -> None:
    roi = 'evaluate.roi={begin="3, 5, 2 vox", shape="10, 15, 20 vox"}'
    experiment = make_experiment("a", roi, "evaluate.skeleton_lattice=[1, 2, 1]")
    skeletons, truth = traced_of(experiment).skeletons, require_counting(experiment).volumes.truth
    assert skeletons is not None
    assert len(skeletons.edges) > 10
    middles = (skeletons.positions_nm - OFFSET) / SIZE - 0.5
    voxels = np.rint(middles).astype(int)
    assert np.abs(middles - voxels).max() < 1e-6
    assert ((voxels >= (3, 5, 2)) & (voxels < (13, 20, 22))).all()
    assert np.array_equal(truth.read(truth.labels.box)[tuple(voxels.T)], skeletons.neurons)


def test_only_the_files_of_present_passes_are_kept(tmp_path: Path) -> None:
    for key in ("old", "new"):
        write_pass_files(tmp_path, key, {"part": key}, {"node": np.arange(3)})
    drop_pass_files(tmp_path, ["new"])
    assert keys_of_pass_files(tmp_path) == ["new"]
    assert find_pass_files(tmp_path, "new").array("node").tolist() == [0, 1, 2]
    with pytest.raises(ContractMismatch):
        find_pass_files(tmp_path, "old")


def test_lost_rows_and_files_of_the_look_up_are_found_and_repaired_to_the_same_scores(make_experiment: Make) -> None:
    experiment = make_experiment("a", TRACED, 'evaluate.block_shape="100 vox"', "evaluate.worst=2")
    trace(experiment)
    wanted = scores_of(experiment)
    next((experiment.layout.store / "overlaps_nodes_roi").rglob("*.parquet")).unlink()
    next((experiment.layout.store / "evaluate").rglob("voxel.npy")).unlink()
    with pytest.raises(BadData, match="lost or damaged"):
        Evaluate().verify(experiment)
    found = Evaluate().repair(experiment)
    assert (found["broken"], found["nodes_broken"], found["fault_places_broken"]) == (0, 1, 0)
    assert Evaluate().verify(experiment)["verified"]
    assert scores_of(experiment) == wanted


def test_with_a_mongodb_as_store_and_as_source_of_skeletons_the_scores_are_the_same(
    make_experiment: Make, mongod: Any, tmp_path: Path
) -> None:
    given = (CORE, 'evaluate.block_shape="100 vox"', "evaluate.worst=3")
    plain = make_experiment("a", *given, TRACED)
    skeletons = trace(plain)
    wanted = scores_of(plain)
    source = mongod.uri_file("traced", tmp_path)
    source.write_text(source.read_text().replace("/?", "/traced?"))
    with pymongo.MongoClient(source.read_text().strip()) as client:
        nodes = zip(skeletons.positions_nm.tolist(), skeletons.neurons.tolist(), strict=True)
        rows = [{"id": n, "z": z, "y": y, "x": x, "neuron_id": neuron} for n, ((z, y, x), neuron) in enumerate(nodes)]
        client["traced"]["gt.nodes"].insert_many(rows)
        client["traced"]["gt.edges"].insert_many([{"source": a, "target": b} for a, b in skeletons.edges.tolist()])
    uri = mongod.uri_file("scores", tmp_path)
    store = ("store.engine=mongo", f"store.uri_file={uri}", "store.database=scores")
    experiment = make_experiment("b", *given, *store, f'evaluate.skeletons="mongo:gt@{source}"')
    marks = []
    for _ in range(2):
        found = scores_of(experiment)
        assert {**found, "settings": {}} == {**wanted, "settings": {}}
        assert Evaluate().verify(experiment)["verified"]
        with pymongo.MongoClient(uri.read_text().strip()) as client:
            marks.append(list(client["scores"]["blocks_evaluated"].find().sort("_id")))
    assert len({mark["key"] for mark in marks[0]}) == 3
    assert marks[0] == marks[1], "a pass was counted again"
