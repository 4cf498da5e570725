"""Boxes that a person corrects: where they are cut, what is in them, what comes back, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
import zarr

from lsdflow_contract.arrays import LABELS, RAW
from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput, OutputConflict, StageError, UsageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_contract.manifest import read_manifest
from lsdflow_evaluate.boxes import cut_boxes, take_boxes
from lsdflow_evaluate.errors.doubtful_place import DoubtfulPlace
from lsdflow_evaluate.inputs import open_segmented
from lsdflow_evaluate.report.to_label import least_certain
from lsdflow_runtime.formats.detect import open_source
from lsdflow_runtime.io.target import target_grid
from lsdflow_runtime.io.volumes import open_volume

SHAPE: Vox3 = (6, 8, 10)


def segmentation_of(experiment: Experiment, box: Box) -> np.ndarray:
    path = read_manifest(experiment.layout, "segment").output_array(experiment.layout, "segmentation")
    return open_volume(*path, target_grid(experiment.layout)).read(box)


@pytest.fixture
def box(finished: Experiment, tmp_path: Path) -> Path:
    """A box at the worst error."""
    (made,) = cut_boxes(finished.layout, "worst:1", SHAPE, tmp_path / "boxes")
    return Path(made["folder"])


def corrected(folder: Path) -> np.ndarray:
    """The labels of a box, of which a person has joined two."""
    labels: np.ndarray = tifffile.imread(folder / "labels.tif")
    return np.where(labels == 2, 1, labels)


def save(path: Path, labels: np.ndarray, voxel_nm: tuple[float, float, float] = (20.0, 10.5, 10.5)) -> None:
    metadata = {"axes": "ZYX", "spacing": voxel_nm[0], "unit": "nm"}
    imagej = labels.dtype != np.int32
    resolution = (1 / voxel_nm[2], 1 / voxel_nm[1])
    tifffile.imwrite(path, labels, imagej=imagej, resolution=resolution, metadata=metadata)


def test_boxes_are_around_the_worst_errors_and_hold_raw_and_segmentation_of_that_place(
    finished: Experiment, tmp_path: Path
) -> None:
    worst = json.loads((finished.layout.report / "scores.json").read_text())["worst"]
    worst.sort(key=lambda error: -error["bits"])
    boxes = cut_boxes(finished.layout, "worst:1..3", SHAPE, tmp_path / "boxes")
    assert 1 < len(boxes) <= 3
    assert Box(tuple(boxes[0]["begin_vox"]), SHAPE).contains(Box(tuple(worst[0]["position_vox"]), (1, 1, 1)))
    for made in boxes:
        folder, place = Path(made["folder"]), Box(tuple(made["begin_vox"]), tuple(made["shape_vox"]))
        segments, segments_of_labels = segmentation_of(finished, place), [0]
        segments_of_labels += json.loads((folder / "box.json").read_text())["segments"]
        raw = open_volume(finished.layout.target_volume, RAW.dataset).read(place)
        for name, wanted in (("box.zarr", raw), ("raw.tif", raw)):
            with open_source(folder / name) as source:
                assert (source.read(source.box) == wanted).all()
                assert source.geometry().voxel_size_nm == target_grid(finished.layout).voxel_size_nm
        for name in ("box.zarr/labels/segmentation", "labels.tif"):
            with open_source(folder / name) as source:
                found = np.array(segments_of_labels, np.uint64)[source.read(source.box)]
                assert (found == segments).all()
        with open_source(folder / "box.zarr" / "labels" / "segmentation") as source:
            assert source.geometry().offset_nm == target_grid(finished.layout).position_nm(place.begin_vox)


def test_two_errors_in_one_box_give_one_box(finished: Experiment, tmp_path: Path) -> None:
    boxes = cut_boxes(finished.layout, "worst:1..20", (100, 100, 100), tmp_path / "boxes")
    assert [made["shape_vox"] for made in boxes] == [target_grid(finished.layout).shape_vox], "the whole volume"


def test_a_place_that_a_worse_box_shows_gets_no_box(
    finished: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the second of the three places, which the first box holds: the third place is the second box."""
    places = [(4, 5, 6), (5, 6, 7), (12, 15, 18)]
    monkeypatch.setattr("lsdflow_evaluate.boxes._worst", lambda *_: places)
    boxes = cut_boxes(finished.layout, "worst:1..20", SHAPE, tmp_path / "boxes")
    for made, place in zip(boxes, (places[0], places[2]), strict=True):
        assert Box(tuple(made["begin_vox"]), SHAPE).contains(Box(place, (1, 1, 1)))


def test_the_least_certain_place_is_the_one_that_changes_most(
    finished_without_truth: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later boxes of the volume change more here, so the places come in the opposite order."""
    grid = target_grid(finished_without_truth.layout)
    bits = iter(range(1, 1000))

    def doubtful(*_: object) -> DoubtfulPlace:
        return DoubtfulPlace((0, 0, 0), True, (1, 2), 0.5, next(bits))

    monkeypatch.setattr("lsdflow_evaluate.report.to_label._place_in", doubtful)
    places = least_certain(open_segmented(finished_without_truth.layout, grid), grid, SHAPE)
    assert len(places) > 1
    assert places == sorted(places, reverse=True)


def test_without_truth_boxes_are_where_a_small_change_of_the_threshold_changes_most(
    finished_without_truth: Experiment, tmp_path: Path
) -> None:
    experiment, grid = finished_without_truth, target_grid(finished_without_truth.layout)
    places = least_certain(open_segmented(experiment.layout, grid), grid, SHAPE)
    assert len(places) > 1
    (made,) = cut_boxes(experiment.layout, "worst:1", SHAPE, tmp_path / "boxes")
    assert Box(tuple(made["begin_vox"]), SHAPE).contains(Box(places[0], (1, 1, 1)))


@pytest.mark.parametrize("at", ["9, 12, 13 vox", "590,1.26e2,168", "0.59, 0.126, 0.168 um"])
def test_a_position_is_in_the_middle_of_its_box(finished: Experiment, tmp_path: Path, at: str) -> None:
    (made,) = cut_boxes(finished.layout, at, SHAPE, tmp_path / "boxes")
    middle = [begin + n // 2 for begin, n in zip(made["begin_vox"], SHAPE, strict=True)]
    assert middle in ([9, 12, 13], [9, 12, 14])


@pytest.mark.parametrize("at", ["worst:0", "worst:3..2", "worst:900", "900,1,1 vox", "-1,0,0 vox", "somewhere"])
def test_a_place_that_does_not_exist_is_refused(finished: Experiment, tmp_path: Path, at: str) -> None:
    with pytest.raises(UsageError):
        cut_boxes(finished.layout, at, SHAPE, tmp_path / "boxes")
    assert not (tmp_path / "boxes").exists()


def test_a_box_that_may_be_corrected_is_never_cut_again(finished: Experiment, box: Path) -> None:
    save(box / "labels.tif", corrected(box))
    before = (box / "labels.tif").read_bytes()
    with pytest.raises(OutputConflict):
        cut_boxes(finished.layout, "worst:1", SHAPE, box.parent)
    assert (box / "labels.tif").read_bytes() == before


def test_boxes_of_scores_of_another_segmentation_are_refused(
    finished: Experiment, copy_of: Callable[..., Experiment], tmp_path: Path
) -> None:
    changed = copy_of(finished, "changed")
    segment = read_manifest(changed.layout, "segment")
    segment.model_copy(update={"identity": "of another threshold"}).write(changed.layout)
    with pytest.raises(ContractMismatch):
        cut_boxes(changed.layout, "worst:1", SHAPE, tmp_path / "boxes")


def in_tiff(box: Path, labels: np.ndarray) -> Path:
    save(box / "labels.tif", labels)
    return box


def in_zarr(box: Path, labels: np.ndarray) -> Path:
    zarr.open_array(box / "box.zarr" / "labels" / "segmentation" / "0", mode="r+")[:] = labels
    return box


def in_another_file(box: Path, labels: np.ndarray) -> Path:
    tifffile.imwrite(box / "mine.tif", labels.astype(np.uint32), photometric="minisblack")
    return box / "mine.tif"


@pytest.mark.parametrize("correct", [in_tiff, in_zarr, in_another_file])
def test_corrected_labels_come_back_as_a_volume_to_train_on(
    finished: Experiment, box: Path, tmp_path: Path, correct: Callable[[Path, np.ndarray], Path]
) -> None:
    labels, to = corrected(box), tmp_path / "new" / "boxes"
    (taken,) = take_boxes(finished.layout, [correct(box, labels)], to)
    assert taken == {"name": box.name, "labelled": (labels > 0).mean(), "neurons": len(np.unique(labels[labels > 0]))}
    begin = json.loads((box / "box.json").read_text())["begin_vox"]
    target = open_volume(finished.layout.target_volume, RAW.dataset)
    around = Box(tuple(begin), SHAPE).grow((3, 4, 5)).intersect(target.box)
    assert around.size > 2 * np.prod(SHAPE)
    for spec, place, wanted in ((RAW, around, target.read(around)), (LABELS, Box(tuple(begin), SHAPE), labels)):
        volume = open_volume(to / f"{box.name}.zarr", spec.dataset)
        assert (volume.read(volume.box) == wanted).all()
        assert volume.dtype == spec.dtype
        assert volume.geometry.voxel_offset_from(target_grid(finished.layout), box) == place.begin_vox


def not_corrected(box: Path) -> Path:
    return box


def both_corrected(box: Path) -> Path:
    in_tiff(box, corrected(box))
    return in_zarr(box, corrected(box) * 0 + 5)


def as_floats(box: Path) -> Path:
    return in_tiff(box, corrected(box).astype(np.float32))


def of_another_shape(box: Path) -> Path:
    return in_tiff(box, corrected(box)[1:])


def of_other_voxels(box: Path) -> Path:
    save(box / "labels.tif", corrected(box), (10.0, 10.5, 10.5))
    return box


def from_another_place(box: Path) -> Path:
    shutil.copytree(box / "box.zarr" / "labels" / "segmentation", box / "moved.zarr")
    metadata = box / "moved.zarr" / "zarr.json"
    content = json.loads(metadata.read_text())
    steps = content["attributes"]["ome"]["multiscales"][0]["datasets"][0]["coordinateTransformations"]
    steps[1]["translation"][0] += 20.0
    metadata.write_text(json.dumps(content))
    shutil.rmtree(box / "moved.zarr" / "0")
    labels = zarr.create_array(box / "moved.zarr" / "0", shape=SHAPE, dtype="uint16", chunks=SHAPE)
    labels[:] = corrected(box)
    return box / "moved.zarr"


def all_erased(box: Path) -> Path:
    return in_tiff(box, corrected(box) * 0)


def negative(box: Path) -> Path:
    tifffile.imwrite(box / "labels.tif", corrected(box).astype(np.int32) - 3)
    return box


def in_no_box(box: Path) -> Path:
    shutil.copy(box / "labels.tif", box.parent / "labels.tif")
    return box.parent / "labels.tif"


@pytest.mark.parametrize(
    ("spoil", "error", "what"),
    [
        (not_corrected, BadData, "those that were cut"),
        (both_corrected, BadData, "both forms"),
        (as_floats, BadData, "integers"),
        (of_another_shape, BadData, "another shape"),
        (of_other_voxels, BadData, "another voxel size"),
        (from_another_place, BadData, "another offset"),
        (all_erased, BadData, "nothing is labelled"),
        (negative, BadData, "negative"),
        (in_no_box, MissingInput, "no box"),
    ],
)
def test_labels_that_do_not_fit_are_refused_and_nothing_is_written(
    finished: Experiment,
    tmp_path: Path,
    spoil: Callable[[Path], Path],
    error: type[StageError],
    what: str,
) -> None:
    good, bad = (
        Path(cut_boxes(finished.layout, at, SHAPE, tmp_path / "boxes")[0]["folder"])
        for at in ("9,12,13 vox", "3,6,6 vox")
    )
    in_tiff(good, corrected(good))
    with pytest.raises(error, match=what):
        take_boxes(finished.layout, [good, spoil(bad)], tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_boxes_of_a_target_with_other_voxels_or_named_twice_are_refused(
    finished: Experiment, box: Path, tmp_path: Path, copy_of: Callable[..., Experiment]
) -> None:
    in_tiff(box, corrected(box))
    with pytest.raises(UsageError, match="twice"):
        take_boxes(finished.layout, [box, box], tmp_path / "new")
    other = copy_of(finished, "other")
    shutil.rmtree(other.layout.target_volume / RAW.dataset)
    coarse = zarr.create_array(other.layout.target_volume / RAW.dataset, shape=(9, 9, 9), dtype="uint8")
    coarse.attrs["resolution"], coarse.attrs["offset"] = [40, 21, 21], [400, 0, 21]
    with pytest.raises(ContractMismatch):
        take_boxes(other.layout, [box], tmp_path / "new")
    assert not (tmp_path / "new").exists()
