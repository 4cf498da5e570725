"""The layers: every volume in its place, every threshold with the voxels that segment would write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from viewed_experiment import (
    CHOSEN,
    GRID,
    MERGE_FUNCTION,
    SEGMENTED,
    THRESHOLDS,
    VOXEL_SIZE_NM,
    looked_up,
    make_viewed_experiment,
)

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.failed_blocks import FailedBlock
from lsdflow_contract.geometry import Box
from lsdflow_contract.lut import Lut, lut_name, read_lut, write_lut
from lsdflow_contract.sealing import read_sealed, write_sealed
from lsdflow_view.layers import ViewerLayers, open_viewer_layers
from lsdflow_view.napari_layers import first_steps, napari_layers, open_napari
from lsdflow_view.relabelled import LutCache, relabel


@pytest.fixture(scope="module")
def gallery(viewed_experiment: Experiment) -> ViewerLayers:
    """Open, read only."""
    return open_viewer_layers(viewed_experiment)


@pytest.fixture(scope="module")
def fragments(gallery: ViewerLayers) -> np.ndarray:
    """All voxels of the fragments."""
    volume = gallery.volumes["fragments"]
    return np.asarray(volume.read(volume.box))


@pytest.fixture(scope="module")
def mirrored(gallery: ViewerLayers, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The array of all thresholds as another reader of zarr sees it: its files written down one by one."""
    volume, folder = gallery.relabelled[MERGE_FUNCTION], tmp_path_factory.mktemp("mirrored")
    (folder / "zarr.json").write_bytes(volume.metadata())
    counts = [-(-n // c) for n, c in zip(volume.shape, (1, *volume.fragments.read_shape_vox), strict=True)]
    for index in np.ndindex(*counts):
        path = folder.joinpath("c", *map(str, index))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(volume.file(["c", *map(str, index)]) or b"")
    return zarr.open_array(folder, mode="r")


def test_every_threshold_has_the_voxels_of_fragments_looked_up_one_by_one(
    gallery: ViewerLayers, mirrored: Any, fragments: np.ndarray
) -> None:
    luts = gallery.relabelled[MERGE_FUNCTION].luts
    assert tuple(lut.threshold for lut in luts) == THRESHOLDS
    assert mirrored.shape == (len(THRESHOLDS), *SEGMENTED.shape_vox)
    assert mirrored.dtype == np.uint64
    for number, lut in enumerate(luts):
        assert np.array_equal(mirrored[number], looked_up(fragments, read_lut(lut.path)))
    assert len({np.unique(mirrored[number]).size for number in range(len(luts))}) == len(luts)


def test_the_chosen_threshold_is_the_segmentation_that_was_written(gallery: ViewerLayers, mirrored: Any) -> None:
    segmentation = gallery.volumes["segmentation"]
    assert np.array_equal(mirrored[THRESHOLDS.index(CHOSEN)], segmentation.read(segmentation.box))


def test_fragments_that_are_still_to_be_made_are_no_chunk_and_no_error(tmp_path: Path) -> None:
    make_viewed_experiment(tmp_path)
    (tmp_path / "fragments.zarr/volumes/fragments/c/0/0/0").unlink()
    volume = open_viewer_layers(load_experiment(tmp_path)).relabelled[MERGE_FUNCTION]
    assert volume.file(["c", "0", "0", "0", "0"]) is None


def test_a_fragment_that_the_table_does_not_know_is_an_error_and_background_stays_background() -> None:
    lut = Lut(np.array([3, 9], np.uint64), np.array([3, 3], np.uint64))
    assert relabel(np.array([[0, 9], [3, 0]], np.uint64), lut, "here").tolist() == [[0, 3], [3, 0]]
    assert relabel(np.zeros((0, 4), np.uint64), lut, "here").shape == (0, 4)
    empty = Lut(np.array([], np.uint64), np.array([], np.uint64))
    assert relabel(np.zeros(3, np.uint64), empty, "here").tolist() == [0, 0, 0]
    for table in (lut, empty):
        with pytest.raises(BadData, match="fragment 10 is not"):
            relabel(np.array([0, 10], np.uint64), table, "here")


def test_few_tables_stay_in_memory_and_the_newest_always(gallery: ViewerLayers) -> None:
    paths = [lut.path for lut in gallery.relabelled[MERGE_FUNCTION].luts]
    size = sum(a.nbytes for a in (read_lut(paths[0]).fragments, read_lut(paths[0]).segments))
    cache = LutCache(kept_bytes=2 * size)
    first = cache.table(paths[0])
    assert cache.table(paths[0]) is first
    cache.table(paths[1])
    cache.table(paths[2])
    assert cache.table(paths[0]) is not first
    assert len(LutCache(kept_bytes=1).table(paths[0])) == len(first)


def test_a_table_that_does_not_ascend_is_refused(tmp_path: Path) -> None:
    twisted = Lut(np.array([9, 3], np.uint64), np.array([3, 3], np.uint64))
    write_lut(tmp_path / lut_name(MERGE_FUNCTION, CHOSEN), twisted, {})
    with pytest.raises(BadData, match="not ascending"):
        LutCache().table(tmp_path / lut_name(MERGE_FUNCTION, CHOSEN))


def test_tables_of_other_fragments_are_not_shown(tmp_path: Path) -> None:
    make_viewed_experiment(tmp_path)
    beside = next((tmp_path / "luts").glob("*0.1000.json"))
    write_sealed(beside, {**read_sealed(beside, fix=""), "fragments_fingerprint": "older"})
    volume = open_viewer_layers(load_experiment(tmp_path)).relabelled[MERGE_FUNCTION]
    assert [lut.threshold for lut in volume.luts] == [0.285, 0.9]


def test_the_state_steps_through_thresholds_by_their_numbers_and_opens_at_the_chosen_one(gallery: ViewerLayers) -> None:
    state = gallery.state("http://127.0.0.1:1/t")
    assert state["dimensions"]["threshold"] == {"coordinates": [0, 1, 2], "labels": ["0.1", "0.285", "0.9"]}
    assert state["position"][3] == THRESHOLDS.index(CHOSEN) + 0.5
    layer = state["layers"][-1]
    assert layer["source"]["url"] == f"zarr://http://127.0.0.1:1/t/thresholds/{MERGE_FUNCTION}"
    assert list(layer["source"]["transform"]["inputDimensions"]) == ["threshold", "z", "y", "x"]
    assert [one["name"] for one in state["layers"] if one["visible"]] == [
        "raw",
        "meshes",
        f"thresholds {MERGE_FUNCTION}",
    ]


def test_the_state_shows_failed_blocks_of_finished_stages(gallery: ViewerLayers) -> None:
    place = {"begin_vox": (0, 0, 0), "shape_vox": (8, 8, 8), "begin_nm": (0.0, 0.0, 0.0)}
    failed = FailedBlock(stage="watershed", block=0, **place, why="it failed")
    before, after = gallery.state("http://a/t"), replace(gallery, failed=(failed,)).state("http://a/t")
    assert [layer["name"] for layer in after["layers"][len(before["layers"]) :]] == ["failed blocks"]


def test_axes_of_an_array_are_named_as_the_array_names_them(gallery: ViewerLayers) -> None:
    layers = {layer["name"]: layer for layer in gallery.state("http://127.0.0.1:1/t")["layers"]}
    assert "transform" not in layers.pop("meshes")["source"]
    axes = {name: list(layer["source"]["transform"]["inputDimensions"]) for name, layer in layers.items()}
    assert axes["raw"] == ["d0", "d1", "d2"]
    assert axes["fragments"] == ["z", "y", "x"]
    assert axes["affinities"] == ["c^", "z", "y", "x"]


@pytest.mark.proves("VIS-02")
@pytest.mark.parametrize("name", ["raw", "lsds", "affinities", "fragments", "segmentation", "truth"])
def test_every_layer_has_the_scale_and_offset_of_its_volume(gallery: ViewerLayers, name: str) -> None:
    (layer,) = (one for one in gallery.state("http://127.0.0.1:1/t")["layers"] if one["name"] == name)
    transform = layer["source"]["transform"]
    begin = (0, 0, 0) if name in ("raw", "truth") else SEGMENTED.begin_vox
    scales = [transform["outputDimensions"][axis][0] for axis in "zyx"]
    matrix = np.array(transform["matrix"])
    assert scales == pytest.approx([v * 1e-9 for v in VOXEL_SIZE_NM])
    assert matrix[-3:, -1] * scales * 1e9 == pytest.approx(GRID.position_nm(begin))
    assert np.array_equal(matrix[:, :-1], np.eye(len(matrix)))


def test_an_unfinished_experiment_shows_what_it_has_and_an_empty_one_says_so(tmp_path: Path) -> None:
    make_viewed_experiment(tmp_path)
    (tmp_path / "manifests" / "segment.json").unlink()
    assert [layer.name for layer in open_viewer_layers(load_experiment(tmp_path)).layers() if layer.visible]
    (tmp_path / "manifests" / "watershed.json").unlink()
    assert open_viewer_layers(load_experiment(tmp_path)).relabelled == {}
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "experiment.toml").write_text("")
    with pytest.raises(MissingInput, match="no volume to show"):
        open_viewer_layers(load_experiment(empty))


def test_napari_gets_every_layer_with_its_voxels_and_the_centres_of_first_voxels(
    gallery: ViewerLayers, fragments: np.ndarray
) -> None:
    made = {layer.arguments["name"]: layer for layer in napari_layers(gallery)}
    colours = [f"{name} {channel}" for name in ("lsds", "affinities") for channel in range(3)]
    assert set(made) == {"raw", "fragments", "segmentation", "truth", f"thresholds {MERGE_FUNCTION}", *colours}
    raw, ids = made["raw"], made["fragments"]
    assert (raw.method, ids.method) == ("add_image", "add_labels")
    assert raw.arguments["translate"] == pytest.approx(
        [o + v / 2 for o, v in zip(GRID.offset_nm, VOXEL_SIZE_NM, strict=True)]
    )
    assert raw.arguments["scale"] == ids.arguments["scale"] == VOXEL_SIZE_NM
    apart = np.subtract(ids.arguments["translate"], raw.arguments["translate"])
    assert apart == pytest.approx([b * v for b, v in zip(SEGMENTED.begin_vox, VOXEL_SIZE_NM, strict=True)])
    steps = made[f"thresholds {MERGE_FUNCTION}"]
    assert steps.arguments["scale"] == (1.0, *VOXEL_SIZE_NM)
    assert steps.arguments["units"] == ("pixel", "nm", "nm", "nm")
    assert steps.arguments["axis_labels"] == ("threshold", "z", "y", "x")
    assert first_steps(gallery) == (THRESHOLDS.index(CHOSEN),)
    assert np.array_equal(ids.data[3, :, ::2], fragments[3, :, ::2])
    assert np.array_equal(ids.data[..., -1], fragments[..., -1])
    assert np.array_equal(
        np.asarray(made["affinities 1"].data), gallery.volumes["affinities"].read(gallery.volumes["affinities"].box)[1]
    )
    whole = gallery.relabelled[MERGE_FUNCTION].read(2, Box((0, 0, 0), SEGMENTED.shape_vox))
    assert np.array_equal(steps.data[2], whole)
    assert np.array_equal(steps.data[1:3, 4, 5:7, 6:20][1], whole[4, 5:7, 6:20])


def test_without_napari_the_message_says_how_to_get_it(gallery: ViewerLayers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "napari", None)
    with pytest.raises(MissingInput, match=r"napari\[all\]"):
        open_napari(gallery, None)
