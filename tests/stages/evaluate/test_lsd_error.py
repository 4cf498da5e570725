"""The map of LSD errors: a merger is found without truth, whatever the blocks; right cells are dark."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lsdflow_contract.arrays import LSD_ERROR, LSDS, SEGMENTATION, quantise_u8
from lsdflow_contract.errors import BadData, ConfigError, MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.graph import Overlaps
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import made, voronoi_labels
from lsdflow_contract.viewer_volumes import viewer_volumes
from lsdflow_descriptors import stored_lsds
from lsdflow_descriptors.label_descriptors import descriptors_of, radius_vox
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.evaluation import lsd_error_map, write_report
from lsdflow_evaluate.passes import lsd_error_task, pass_of_key
from lsdflow_evaluate.self_consistency.lsd_error import error_of, most_likely_wrong
from lsdflow_evaluate.stage import Evaluate
from lsdflow_runtime.io.volumes import OutputArray, open_volume

Make = Callable[..., Experiment]
SHAPE, SIZE, SIGMA = (18, 24, 26), (20.0, 10.5, 10.5), (40.0, 40.0, 40.0)
SET = ('evaluate.lsd_sigma="40 nm"', 'evaluate.skeletons="none"', "evaluate.worst=0")


def described(labels: np.ndarray) -> np.ndarray:
    """LSDs by the definition: all voxels of the label in a truncated Gaussian window, voxel by voxel."""
    out = np.zeros((10, *labels.shape))
    radii = radius_vox(SIGMA, SIZE)
    axes = [np.arange(-r, r + 1) for r in radii]
    weights = [np.exp(-0.5 * (d * v / s) ** 2) for d, v, s in zip(axes, SIZE, SIGMA, strict=True)]
    window = np.einsum("i,j,k->ijk", *(w / w.sum() for w in weights))
    steps = np.stack(np.meshgrid(*(d * v for d, v in zip(axes, SIZE, strict=True)), indexing="ij"))
    padded = np.pad(labels, [(r, r) for r in radii])
    for at in np.argwhere(labels > 0):
        near = padded[tuple(slice(a, a + 2 * r + 1) for a, r in zip(at, radii, strict=True))]
        weight = window * (near == labels[tuple(at)])
        share = weight.sum()
        mean = (steps * weight).sum(axis=(1, 2, 3)) / share
        away = steps - mean[:, None, None, None]
        covariance = np.einsum("aijk,bijk,ijk->ab", away, away, weight) / share
        sd = np.sqrt(np.maximum(np.diag(covariance), 1e-12))
        pearson = [covariance[a, b] / (sd[a] * sd[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
        variance = np.diag(covariance) / np.square(SIGMA)
        out[(slice(None), *at)] = [*(mean / SIGMA * 0.5 + 0.5), *variance, *(np.array(pearson) * 0.5 + 0.5), share]
    return np.clip(out, 0, 1)


def test_descriptors_are_those_of_the_definition_at_every_voxel() -> None:
    labels = voronoi_labels((7, 9, 10), 3, 1)
    labels[:, 4] = 0
    whole = descriptors_of(labels, Box((0, 0, 0), labels.shape), SIGMA, SIZE)
    assert np.abs(whole - described(labels)).max() < 2e-4


def test_a_plate_one_voxel_thick_has_no_correlation_across_it() -> None:
    labels = np.zeros((7, 9, 10), np.uint64)
    labels[3] = np.tri(9, 10, dtype=np.uint64)
    plate = descriptors_of(labels, Box((0, 0, 0), labels.shape), SIGMA, SIZE)[:, labels > 0]
    assert (plate[6:8] == 0.5).all()
    assert plate[3].max() < 1e-6
    assert plate[8].max() > 0.6


def test_a_part_has_the_bits_of_the_whole_if_its_context_is_there() -> None:
    labels = voronoi_labels((24, 30, 32), 8, 2)
    whole = descriptors_of(labels, Box((0, 0, 0), labels.shape), SIGMA, SIZE)
    part, context = Box((9, 13, 14), (5, 4, 6)), radius_vox(SIGMA, SIZE)
    seen = part.grow(context).intersect(Box((0, 0, 0), labels.shape))
    inner = part.translate(tuple(-b for b in seen.begin_vox))
    found = descriptors_of(np.ascontiguousarray(labels[seen.slices()]), inner, SIGMA, SIZE)
    assert np.array_equal(found, whole[(slice(None), *part.slices())])


def overwrite(container: Path, spec: Any, values: np.ndarray, experiment: Experiment) -> None:
    grid = open_volume(experiment.layout.target_volume, "volumes/raw").geometry
    output = OutputArray(container, spec, grid, grid.box, (8, 8, 16))
    shutil.rmtree(output.folder, ignore_errors=True)
    output.create({"key": f"another {spec.dataset}"})
    output.open().write(grid.box, values)


def merged_cells(experiment: Experiment) -> tuple[np.ndarray, tuple[int, int]]:
    """A segmentation that is right but for two neighbouring cells in one segment; LSDs as of the right one."""
    cells = voronoi_labels(SHAPE, 6, 3)
    lower, upper = cells[:-1], cells[1:]
    first, second = sorted(int(v) for v in next(zip(lower[lower != upper], upper[lower != upper], strict=True)))
    whole = descriptors_of(cells, Box((0, 0, 0), SHAPE), SIGMA, SIZE)
    manifest = read_manifest(experiment.layout, "predict")
    container = experiment.layout.root / manifest.outputs["affs"].removesuffix("/volumes/affs")
    overwrite(container, LSDS, quantise_u8(whole), experiment)
    stored = {**manifest.outputs, "lsds": str((container / LSDS.dataset).relative_to(experiment.layout.root))}
    manifest.model_copy(update={"outputs": stored}).write(experiment.layout)
    segments = np.where(cells == second, np.uint64(first), cells)
    overwrite(made(experiment.layout, "segment"), SEGMENTATION, segments, experiment)
    return segments, (first, second)


def map_of(experiment: Experiment) -> np.ndarray:
    volume = open_volume(lsd_error_task(experiment).outputs["lsd_error"].path, LSD_ERROR.dataset)
    assert (volume.geometry.voxel_size_nm, volume.geometry.offset_nm) == (SIZE, (400.0, 0.0, 21.0))
    return volume.read(volume.box)


@pytest.mark.parametrize("step", [1, 2])
def test_a_merger_comes_first_and_the_map_does_not_depend_on_the_blocks(make_experiment: Make, step: int) -> None:
    maps, facts = [], []
    for name, shape in (("a", "100 vox"), ("b", "5, 9, 13 vox")):
        given = (*SET, f"evaluate.lsd_error_downsample={step}", f'evaluate.block_shape="{shape}"')
        experiment = make_experiment(name, *given)
        segments, (first, _) = merged_cells(experiment)
        facts.append(lsd_error_map(experiment, experiment.table("evaluate", EvaluateConfig)).facts)
        maps.append(map_of(experiment))
    Evaluate().run(experiment)
    assert np.array_equal(maps[0], maps[1])
    assert facts[0] == facts[1] == json.loads((experiment.layout.report / "scores.json").read_text())["lsd_error"]
    taken = (slice(None, None, step),) * 3
    worst = facts[0]["worst"]
    for row in worst:
        own = maps[0][taken][segments[taken] == row["segment"]]
        assert (row["voxels_taken"], row["mean"]) == (len(own), pytest.approx(own.mean() / 255))
    assert worst[0]["segment"] == first
    assert worst[0]["mean"] > (4 if step == 1 else 2) * worst[1]["mean"]
    with (experiment.layout.report / "lsd_error.csv").open() as file:
        assert [int(row["segment"]) for row in csv.DictReader(file)] == [row["segment"] for row in worst]
    assert Evaluate().verify(experiment)["verified"]


def test_workers_make_the_same_map_as_one_process_and_find_it_by_its_key(make_experiment: Make) -> None:
    maps = []
    for name, more in (("a", ()), ("b", ("compute.runner=daisy", "compute.workers=2"))):
        experiment = make_experiment(name, *SET, 'evaluate.block_shape="9, 12, 13 vox"', *more)
        merged_cells(experiment)
        assert lsd_error_map(experiment, experiment.table("evaluate", EvaluateConfig)).facts["made"]
        maps.append(map_of(experiment))
        task = lsd_error_task(experiment)
        assert pass_of_key(experiment, task.key).key == task.key
    assert np.array_equal(*maps)


def test_another_segmentation_gets_a_map_of_its_own_and_the_first_comes_back_whole(make_experiment: Make) -> None:
    experiment = make_experiment("a", *SET)

    def make_map() -> None:
        lsd_error_map(experiment, experiment.table("evaluate", EvaluateConfig))

    merged_cells(experiment)
    make_map()
    first, found = map_of(experiment), read_manifest(experiment.layout, "segment")
    path = lsd_error_task(experiment).outputs["lsd_error"].path
    overwrite(made(experiment.layout, "segment"), SEGMENTATION, np.ones(SHAPE, np.uint64), experiment)
    found.model_copy(update={"identity": "another segmentation"}).write(experiment.layout)
    make_map()
    assert not np.array_equal(map_of(experiment), first)
    kept = open_volume(path, LSD_ERROR.dataset)
    assert np.array_equal(kept.read(kept.box), first)
    merged_cells(experiment)
    found.write(experiment.layout)
    make_map()
    assert np.array_equal(map_of(experiment), first)


def test_without_stored_lsds_there_is_no_map_and_one_reason_and_asked_for_it_is_an_error(
    finished: Experiment, copy_of: Make
) -> None:
    facts = json.loads((finished.layout.report / "scores.json").read_text())["lsd_error"]
    assert facts["made"] is False
    assert "store_lsds = true" in facts["reason"]
    assert "lsd_error" not in read_manifest(finished.layout, "evaluate").outputs
    with pytest.raises(MissingInput, match="LSDs are not stored"):
        Evaluate().run(copy_of(finished, "a", "evaluate.lsd_error=on"))


def test_where_there_is_no_segment_the_map_is_dark_whatever_was_predicted() -> None:
    labels = np.zeros((6, 7, 8), np.uint64)
    labels[:, :3] = 5
    found = error_of(labels, Box((0, 0, 0), labels.shape), np.full((10, *labels.shape), 255, np.uint8), SIGMA, SIZE)
    assert not found[labels == 0].any()
    assert found[labels == 5].min() > 50


def test_segments_of_few_voxels_are_not_listed_and_equal_ones_are_ordered_by_their_ids() -> None:
    sizes = np.array([64, 63, 100, 100], np.uint64)
    sums = np.array([64 * 51, 63 * 255, 100 * 102, 100 * 102], np.uint64)
    listed = most_likely_wrong(Overlaps(np.array([9, 1, 8, 4], np.uint64), sums, sizes))
    assert listed == [(4, 0.4, 100), (8, 0.4, 100), (9, 0.2, 64)]


def test_the_sigma_is_that_of_the_manifest_and_asked_for_if_it_is_not_there(make_experiment: Make) -> None:
    predict = read_manifest(make_experiment("a").layout, "predict")
    known = predict.model_copy(update={"config": {"resolved": {"lsd_sigma_nm": list(SIGMA)}}})
    assert stored_lsds.lsd_sigma_nm(known, None, "evaluate.lsd_sigma") == SIGMA
    assert stored_lsds.lsd_sigma_nm(known, (1.0, 2.0, 3.0), "evaluate.lsd_sigma") == (1.0, 2.0, 3.0)
    with pytest.raises(ConfigError, match="sigma"):
        stored_lsds.lsd_sigma_nm(predict, None, "evaluate.lsd_sigma")


def test_the_error_is_the_mean_of_the_differences_of_ten_channels() -> None:
    labels = voronoi_labels((8, 9, 10), 3, 1)
    box = Box((0, 0, 0), labels.shape)
    predicted = quantise_u8(descriptors_of(labels, box, SIGMA, SIZE))
    assert error_of(labels, box, predicted, SIGMA, SIZE).max() <= 1
    predicted[4] = np.where(predicted[4] < 128, predicted[4] + 100, predicted[4] - 100)
    found = error_of(labels, box, predicted, SIGMA, SIZE)
    assert (found.min(), found.max()) in {(10, 10), (9, 10), (10, 11), (9, 11)}


def layer_names(experiment: Experiment) -> list[str]:
    state = json.loads((experiment.layout.report / "neuroglancer.json").read_text())
    return [layer["name"] for layer in state["layers"]]


def test_the_manifest_names_the_map_and_the_report_and_the_viewer_show_that_of_the_segmentation_of_now(
    make_experiment: Make,
) -> None:
    experiment = make_experiment("a", *SET)
    layout = experiment.layout
    merged_cells(experiment)
    Evaluate().run(experiment)
    manifest = read_manifest(layout, "evaluate")
    container, dataset = manifest.output_array(layout, "lsd_error")
    assert (container, dataset) == (lsd_error_task(experiment).outputs["lsd_error"].path, LSD_ERROR.dataset)
    assert container.is_relative_to(layout.results / "evaluate")
    assert layer_names(experiment)[-2:] == ["lsd_error", "truth"]
    other = replace(experiment, tables={**experiment.tables, "evaluate": {"voi_limit": 9.0, "lsd_sigma": "40 nm"}})
    Evaluate().run(other)
    assert [v.container for v in viewer_volumes(layout, others=True) if v.name.startswith("lsd_error")] == [container]
    segment = read_manifest(layout, "segment")
    segment.model_copy(update={"identity": "another segmentation"}).write(layout)
    assert "lsd_error" not in [volume.name for volume in viewer_volumes(layout)]
    write_report(experiment)
    assert "lsd_error" not in layer_names(experiment)
    segment.write(layout)
    write_report(experiment)
    assert layer_names(experiment)[-2:] == ["lsd_error", "truth"]


def test_a_damaged_map_is_found_by_verify_and_computed_again_by_repair(make_experiment: Make) -> None:
    experiment = make_experiment("a", *SET)
    merged_cells(experiment)
    Evaluate().run(experiment)
    before, container = map_of(experiment), lsd_error_task(experiment).outputs["lsd_error"].path
    chunk = max((path for path in container.rglob("c/**/*") if path.is_file()), key=lambda path: path.stat().st_size)
    chunk.write_bytes(chunk.read_bytes()[:-30])
    with pytest.raises(BadData):
        Evaluate().verify(experiment)
    Evaluate().repair(experiment)
    assert np.array_equal(map_of(experiment), before)
    assert Evaluate().verify(experiment)["verified"]


def test_repair_without_the_lsds_of_an_earlier_map_makes_no_map(make_experiment: Make) -> None:
    """The files of the pass are left; repair once raised because its LSDs are no longer stored."""
    experiment = make_experiment("a", *SET)
    merged_cells(experiment)
    Evaluate().run(experiment)
    predict = read_manifest(experiment.layout, "predict")
    outputs = {name: path for name, path in predict.outputs.items() if name != "lsds"}
    predict.model_copy(update={"outputs": outputs}).write(experiment.layout)
    Evaluate().repair(experiment)
    assert "lsd_error" not in read_manifest(experiment.layout, "evaluate").outputs
    assert Evaluate().verify(experiment)["verified"]
