"""One failed block that was accepted, through the chain: no later stage reads the hole as data, and every one lists it.

References: the same chain with a mask that is 0 in the hole, with truth that is not labelled there, or without a hole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lsdflow_agglomerate import stage as agglomerate_stage
from lsdflow_agglomerate.stage import Agglomerate
from lsdflow_contract.arrays import AFFS, LABELS, MASK, RAW, ArraySpec, MaskState
from lsdflow_contract.errors import BlocksFailed
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.failed_blocks import FailedBlock, fact_of, failed_blocks_of
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.graph import RagEdges, RagFaces
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_contract.testing import affinities_of, made, voronoi_labels
from lsdflow_evaluate.stage import Evaluate
from lsdflow_launch.status import more_lines, status_of, with_activity
from lsdflow_runtime.engine.block_stage import BlockStage
from lsdflow_runtime.io.volumes import OutputArray, open_volume
from lsdflow_runtime.store.stores import open_store
from lsdflow_segment import relabel as segment_relabel
from lsdflow_segment.stage import Segment
from lsdflow_watershed import stage as watershed_stage
from lsdflow_watershed.stage import Watershed

GRID = Geometry((20.0, 10.0, 10.0), (100.0, 0.0, 30.0), (36, 40, 38))
BLOCK = 16
HOLE = Box((16, 16, 0), (16, 16, 16))
HOLE_NUMBER = 12
CHAIN = (Watershed(), Agglomerate(), Segment(), Evaluate())
SETTINGS = """
[compute]
runner = "serial"
failed_blocks = "{failed_blocks}"
[watershed]
id_mode = "{id_mode}"
block_shape = "16 vox"
context = "6 vox"
min_seed_distance_vox = 5
{more}
[segment]
thresholds_step = 0.1
[evaluate]
lsd_error = "off"
picture_edge_vox = 64
"""


def _write(path: Path, spec: ArraySpec, values: NDArray[Any], leave_out: Box | None = None, key: str = "test") -> None:
    output = OutputArray(path, spec, GRID, GRID.box, (BLOCK,) * 3)
    output.create({"key": key})
    for z, y, x in np.ndindex(*(-(-n // BLOCK) for n in GRID.shape_vox)):
        box = Box((z * BLOCK, y * BLOCK, x * BLOCK), (BLOCK,) * 3).intersect(GRID.box)
        if box != leave_out:
            output.open().write(box, values[(..., *box.slices())])


def _noisy(labels: NDArray[np.uint64]) -> NDArray[np.uint8]:
    noise = np.random.default_rng(0).integers(0, 60, (3, *labels.shape))
    return np.clip(affinities_of(labels).astype(int) * 0.8 + noise, 0, 255).astype(np.uint8)


def experiment_in(
    root: Path,
    id_mode: str = "seamless",
    more: str = "",
    failed_blocks: str = "accept",
    predict_hole: bool = False,
    unlabelled: bool = False,
) -> Experiment:
    """An experiment in which prepare and predict have finished; predict perhaps without the block HOLE."""
    root.mkdir()
    (root / "experiment.toml").write_text(SETTINGS.format(id_mode=id_mode, more=more, failed_blocks=failed_blocks))
    experiment = load_experiment(root)
    layout, labels = experiment.layout, voronoi_labels(GRID.shape_vox, 25, 1)
    _write(layout.target_volume, RAW, np.full(GRID.shape_vox, 100, np.uint8))
    _write(layout.target_volume, LABELS, labels)
    if unlabelled:
        mask = np.full(GRID.shape_vox, int(MaskState.TRAIN), np.uint8)
        mask[HOLE.slices()] = MaskState.IGNORE
        _write(layout.target_volume, MASK, mask)
    affs = layout.result("predict", "affs-key") / "predictions.zarr"
    _write(affs, AFFS, _noisy(labels), HOLE if predict_hole else None, "affs-key")
    failed = FailedBlock(
        stage="predict",
        block=HOLE_NUMBER,
        begin_vox=HOLE.begin_vox,
        shape_vox=HOLE.shape_vox,
        begin_nm=GRID.position_nm(HOLE.begin_vox),
        why="the GPU caught fire",
    )
    outputs = {"affs": str((affs / AFFS.dataset).relative_to(root))}
    for stage, key, left, facts in (
        ("prepare", "target", {}, {}),
        ("predict", "affs-key", outputs, fact_of([failed] if predict_hole else [])),
    ):
        Manifest(
            writer=Writer.of(stage),
            key=key,
            config={},
            inputs={},
            outputs=left,
            facts=facts,
            identity=f"{stage} identity",
        ).write(layout)
    return experiment


def run(experiment: Experiment, stages: Sequence[BlockStage] = CHAIN) -> None:
    for stage in stages:
        stage.run(experiment)


def array_of(experiment: Experiment, stage: str, dataset: str) -> NDArray[Any]:
    volume = open_volume(made(experiment.layout, stage), dataset)
    return volume.read(volume.box)


def fragments_of(experiment: Experiment) -> NDArray[np.uint64]:
    return array_of(experiment, "watershed", "volumes/fragments")


def segmentation_of(experiment: Experiment) -> NDArray[np.uint64]:
    return array_of(experiment, "segment", "volumes/segmentation")


def edges_of(experiment: Experiment) -> list[tuple[int, int, float]]:
    key = read_manifest(experiment.layout, "agglomerate").key
    edges = RagEdges.concatenate(list(open_store(experiment).rag.iter_edges(key, "hist_quant_75")))
    return sorted(zip(edges.u.tolist(), edges.v.tolist(), edges.merge_score.tolist(), strict=True))


def scores_of(experiment: Experiment) -> dict[str, Any]:
    scores: dict[str, Any] = json.loads((experiment.layout.report / "scores.json").read_text())
    return scores


def identities_of(experiment: Experiment, stages: Sequence[BlockStage] = CHAIN) -> dict[str, str]:
    return {stage.name: read_manifest(experiment.layout, stage.name).identity for stage in stages}


def failing(monkeypatch: pytest.MonkeyPatch, module: Any, function: str, is_hole: Callable[..., bool]) -> None:
    """Let a block function fail for the block of which `is_hole` holds, given the arguments."""
    right = getattr(module, function)

    def fail(*arguments: Any, **named: Any) -> Any:
        if is_hole(*arguments, **named):
            raise ValueError("this block always fails")
        return right(*arguments, **named)

    monkeypatch.setattr(module, function, fail)


def fail_watershed(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in ("fragments_of_block", "seamless_fragments_of_block"):
        failing(monkeypatch, watershed_stage, function, lambda _affs, _mask, place, *_: place.number == HOLE_NUMBER)


@pytest.mark.parametrize("id_mode", ["seamless", "blocks"])
def test_a_failed_block_of_predict_is_to_all_later_stages_what_a_mask_is(tmp_path: Path, id_mode: str) -> None:
    """The reference has real affinities in the hole, and a mask: affinities of 0 read as data would differ."""
    experiment = experiment_in(tmp_path / "hole", id_mode, predict_hole=True)
    masked = experiment_in(tmp_path / "masked", id_mode, 'mask_file = "mask.zarr"', unlabelled=True)
    mask = np.ones(GRID.shape_vox, np.uint8)
    mask[HOLE.slices()] = 0
    _write(masked.layout.root / "mask.zarr", ArraySpec("volumes/labels/mask", "uint8", 0, "mask"), mask)
    run(experiment)
    run(masked)
    assert not fragments_of(experiment)[HOLE.slices()].any()
    assert np.array_equal(fragments_of(experiment), fragments_of(masked))
    assert edges_of(experiment) == edges_of(masked)
    assert np.array_equal(segmentation_of(experiment), segmentation_of(masked))
    found, wanted = scores_of(experiment), scores_of(masked)
    assert found["thresholds"] == wanted["thresholds"]
    for stage in CHAIN:
        (failed,) = failed_blocks_of(read_manifest(experiment.layout, stage.name))
        assert (failed.stage, failed.block, failed.box) == ("predict", HOLE_NUMBER, HOLE), stage.name


@pytest.mark.proves("NEW-05")
@pytest.mark.parametrize("id_mode", ["seamless", "blocks"])
def test_a_failed_block_of_watershed_is_a_hole_to_the_end_of_the_chain_and_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id_mode: str
) -> None:
    experiment, whole = (experiment_in(tmp_path / name, id_mode) for name in ("hole", "whole"))
    run(whole)
    with monkeypatch.context() as fault:
        fail_watershed(fault)
        run(experiment)
    expected = fragments_of(whole)
    expected[HOLE.slices()] = 0
    assert np.array_equal(fragments_of(experiment), expected)
    segmentation = segmentation_of(experiment)
    assert np.array_equal(segmentation == 0, expected == 0)
    for stage in CHAIN:
        (failed,) = failed_blocks_of(read_manifest(experiment.layout, stage.name))
        assert (failed.stage, failed.block, failed.box) == ("watershed", HOLE_NUMBER, HOLE), stage.name
        if stage.name != "evaluate":
            assert stage.verify(experiment)["verified"]
    # without the hole the edges are those of the whole volume, as far as both fragments touch outside of the hole
    assert {edge[:2] for edge in edges_of(experiment)} <= {edge[:2] for edge in edges_of(whole)}
    assert scores_of(experiment)["failed_blocks"][0]["block"] == HOLE_NUMBER
    run(experiment)
    assert identities_of(experiment) == identities_of(whole)
    assert "failed_blocks" not in scores_of(experiment)
    assert np.array_equal(segmentation_of(experiment), segmentation_of(whole))


def test_scores_leave_a_hole_out_as_truth_that_is_not_labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_watershed(monkeypatch)
    found, masked = (experiment_in(tmp_path / f"u{u}", unlabelled=u) for u in (False, True))
    for experiment in (found, masked):
        run(experiment)
    assert scores_of(found)["thresholds"] == scores_of(masked)["thresholds"]
    assert scores_of(found)["voi"] == scores_of(masked)["voi"]


def test_a_failed_block_of_segment_is_a_hole_of_the_segmentation_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment, whole = (experiment_in(tmp_path / name) for name in ("hole", "whole"))
    run(whole)
    failing(monkeypatch, segment_relabel, "relabel", lambda *_, where: where.startswith(f"block {HOLE_NUMBER} "))
    run(experiment)
    expected = segmentation_of(whole)
    expected[HOLE.slices()] = 0
    assert np.array_equal(segmentation_of(experiment), expected)
    manifests = [read_manifest(experiment.layout, stage.name) for stage in CHAIN]
    assert [len(failed_blocks_of(manifest)) for manifest in manifests] == [0, 0, 1, 1]


def test_a_failed_block_of_agglomerate_leaves_its_edges_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment, whole = (experiment_in(tmp_path / name, "blocks") for name in ("hole", "whole"))
    run(whole)
    failing(monkeypatch, agglomerate_stage, "edges_of_block", lambda _a, _f, boxes, *_: boxes[0] == HOLE)
    run(experiment)
    key = read_manifest(whole.layout, "agglomerate").key
    lost = open_store(whole).rag.read_edges(key, "hist_quant_75", HOLE_NUMBER)
    gone = set(zip(lost.u.tolist(), lost.v.tolist(), strict=True))
    assert gone
    assert edges_of(experiment) == [edge for edge in edges_of(whole) if edge[:2] not in gone]
    assert [f.stage for f in failed_blocks_of(read_manifest(experiment.layout, "evaluate"))] == ["agglomerate"]


def test_a_failed_block_of_faces_leaves_its_faces_out_of_the_scores_and_heals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reference finds no face in that block."""
    more, stages = '[agglomerate]\nsuper_block = "32 vox"', CHAIN[:3]
    experiment, without, whole = (experiment_in(tmp_path / name, more=more) for name in ("hole", "without", "whole"))
    run(whole, stages)
    right = agglomerate_stage.count_faces
    with monkeypatch.context() as fault:
        failing(fault, agglomerate_stage, "count_faces", lambda _a, _f, write, _read: write == HOLE)
        run(experiment, stages)
    with monkeypatch.context() as change:
        nothing = RagFaces.of(*np.zeros((2, 0), np.uint64), np.zeros(0, np.uint8), np.zeros(0, np.uint64))
        change.setattr(agglomerate_stage, "count_faces", lambda *given: nothing if given[2] == HOLE else right(*given))
        run(without, stages)
    assert edges_of(experiment) == edges_of(without) != edges_of(whole)
    assert np.array_equal(segmentation_of(experiment), segmentation_of(without))
    (failed,) = failed_blocks_of(read_manifest(experiment.layout, "segment"))
    assert (failed.stage, failed.part, failed.box) == ("agglomerate", "faces", HOLE)
    assert Agglomerate().verify(experiment)["failed_blocks"] == [str(failed)]
    status = Agglomerate().status(experiment)
    assert (status["finished"], status["done"]) == (True, status["blocks"])
    assert read_manifest(experiment.layout, "agglomerate").key != read_manifest(whole.layout, "agglomerate").key
    run(experiment, stages)
    assert identities_of(experiment, stages) == identities_of(whole, stages)
    assert edges_of(experiment) == edges_of(whole)


def test_a_failed_block_stops_the_chain_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_watershed(monkeypatch)
    experiment = experiment_in(tmp_path / "stop", failed_blocks="stop")
    with pytest.raises(BlocksFailed, match="this block always fails") as caught:
        run(experiment)
    assert caught.value.exit_code == 79
    assert not experiment.layout.manifest("watershed").exists()


def test_report_viewer_and_status_show_the_hole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_watershed(monkeypatch)
    experiment = experiment_in(tmp_path / "hole")
    run(experiment)
    layers = {
        layer["name"]: layer
        for layer in json.loads((experiment.layout.report / "neuroglancer.json").read_text())["layers"]
    }
    (box,) = layers["failed blocks"]["annotations"]
    offset_vox = np.array(GRID.offset_nm) / GRID.voxel_size_nm
    assert box["pointA"] == (offset_vox + HOLE.begin_vox)[::-1].tolist()
    assert box["pointB"] == (offset_vox + HOLE.end_vox)[::-1].tolist()
    text = (experiment.layout.report / "index.html").read_text()
    assert f"finished without block {HOLE_NUMBER}" in text
    assert "this block always fails" in text
    status = status_of(experiment, lambda *_: {})
    assert status["watershed"]["state"] == "finished"
    assert "this block always fails" in status["watershed"]["accepted"][0]
    lines = list(more_lines("watershed", status["watershed"]))
    assert any(line.startswith(f"watershed: finished without block {HOLE_NUMBER} of watershed") for line in lines)
    activity = with_activity(experiment, "watershed", status["watershed"])
    assert (activity["blocks_done"], activity["failed"]) == (activity["blocks"] - 1, 1)
