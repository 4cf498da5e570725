"""A viewer with the levels of an export: only those of the same data, each in its place, nothing else of the disk."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import numpy as np
import pytest
import zarr
from viewed_experiment import MERGE_FUNCTION, looked_up, make_viewed_experiment

from lsdflow_contract.errors import MissingInput, OutputConflict, UsageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.lut import read_lut
from lsdflow_contract.manifest import read_manifest
from lsdflow_view.export.ngff import export_ome, image_folder
from lsdflow_view.layers import ViewerLayers, open_viewer_layers
from lsdflow_view.server import file_in
from lsdflow_view.show import Listening, show_folder

SERVED = "http://127.0.0.1:1/t"
LEVELLED = ("raw", "fragments", "segmentation", "truth")


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """What viewers show, and beside it its export in two levels."""
    make_viewed_experiment(tmp_path / "exp")
    found = load_experiment(tmp_path / "exp")
    export_ome(found, tmp_path / "levels", (), 2)
    return found


def test_volumes_of_an_export_come_in_its_levels_and_say_their_place_themselves(
    experiment: Experiment, tmp_path: Path
) -> None:
    gallery = open_viewer_layers(experiment, tmp_path / "levels")
    layers = {layer["name"]: layer["source"] for layer in gallery.state(SERVED)["layers"]}
    meshes = layers.pop("meshes")
    shifts = {name: [row[-1] for row in source["transform"]["matrix"]] for name, source in layers.items()}
    assert {name for name, shift in shifts.items() if shift == [0.5, 0.5, 0.5]} == set(LEVELLED)
    assert all(list(layers[name]["transform"]["inputDimensions"]) == ["z", "y", "x"] for name in LEVELLED)
    plain = {layer["name"]: layer["source"] for layer in open_viewer_layers(experiment).state(SERVED)["layers"]}
    assert {n: s["url"] for n, s in {**layers, "meshes": meshes}.items()} == {n: s["url"] for n, s in plain.items()}
    for name in LEVELLED:
        assert all(file_in(gallery.folders[name], (level, "zarr.json")) for level in "01"), name
        assert file_in(gallery.folders[name], ("..", "..", "experiment.toml")) is None
    assert file_in(gallery.folders["affinities"], ("zarr.json",))


def test_thresholds_come_in_the_levels_of_the_fragments_with_the_segment_of_each_of_their_voxels(
    experiment: Experiment, tmp_path: Path
) -> None:
    gallery = open_viewer_layers(experiment, tmp_path / "levels")
    (layer,) = (one for one in gallery.state(SERVED)["layers"] if one["name"] == f"thresholds {MERGE_FUNCTION}")
    assert [row[-1] for row in layer["source"]["transform"]["matrix"]] == [0.5] * 4
    folder = mirrored(gallery, tmp_path / "mirrored")
    multiscale = zarr.open_group(folder, mode="r").attrs["ome"]["multiscales"][0]
    fragments = image_folder(tmp_path / "levels", "fragments", "labels")
    there = zarr.open_group(fragments, mode="r").attrs["ome"]["multiscales"][0]
    assert [axis["name"] for axis in multiscale["axes"]] == ["threshold", "z", "y", "x"]
    for level, wanted in zip(multiscale["datasets"], there["datasets"], strict=True):
        for moved, plain in zip(level["coordinateTransformations"], wanted["coordinateTransformations"], strict=True):
            kind = plain["type"]
            assert moved[kind] == [1.0 if kind == "scale" else 0.0, *plain[kind]]
        ids = zarr.open_array(fragments / level["path"], mode="r")[:]
        level_voxels = zarr.open_array(folder / level["path"], mode="r")
        for number, lut in enumerate(gallery.relabelled[MERGE_FUNCTION].luts):
            assert np.array_equal(level_voxels[number], looked_up(ids, read_lut(lut.path))), (
                level["path"],
                lut.threshold,
            )
    assert gallery.thresholds_file(MERGE_FUNCTION, ("2", "zarr.json")) is None
    assert gallery.thresholds_file("unknown", ("zarr.json",)) is None


def test_without_exported_fragments_the_thresholds_are_one_array(experiment: Experiment, tmp_path: Path) -> None:
    export_ome(experiment, tmp_path / "raw", ("raw",), 2)
    gallery = open_viewer_layers(experiment, tmp_path / "raw")
    assert (set(gallery.images), gallery.levelled) == ({"raw"}, {})
    described = json.loads(gallery.thresholds_file(MERGE_FUNCTION, ("zarr.json",)) or b"{}")
    assert described["node_type"] == "array"


def mirrored(gallery: ViewerLayers, folder: Path) -> Path:
    """The image of all thresholds as another reader of zarr sees it: its files written down one by one."""
    image = gallery.levelled[MERGE_FUNCTION]
    names = [("zarr.json",)]
    for number, volume in enumerate(image.levels):
        counts = [-(-n // c) for n, c in zip(volume.shape, (1, *volume.fragments.read_shape_vox), strict=True)]
        chunks = [(str(number), "c", *map(str, index)) for index in np.ndindex(*counts)]
        names += [(str(number), "zarr.json"), *chunks]
    for name in names:
        folder.joinpath(*name).parent.mkdir(parents=True, exist_ok=True)
        folder.joinpath(*name).write_bytes(gallery.thresholds_file(MERGE_FUNCTION, name) or b"")
    return folder


def test_a_volume_computed_again_since_the_export_is_shown_from_the_experiment_and_reported(
    experiment: Experiment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    again = read_manifest(experiment.layout, "segment").model_copy(update={"identity": "another"})
    experiment.layout.manifest("segment").unlink()
    again.write(experiment.layout)
    with caplog.at_level(logging.WARNING):
        gallery = open_viewer_layers(experiment, tmp_path / "levels")
    assert set(gallery.images) == {"raw", "fragments", "truth"}
    assert "segmentation was exported from other data" in caplog.text
    assert gallery.folders["segmentation"] == Path(gallery.volumes["segmentation"].where)


def test_what_is_no_export_of_this_experiment_is_refused(experiment: Experiment, tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="no finished OME-NGFF export"):
        open_viewer_layers(experiment, experiment.layout.root)
    for stage in ("prepare", "watershed", "segment"):
        manifest = read_manifest(experiment.layout, stage).model_copy(update={"identity": "other"})
        experiment.layout.manifest(stage).unlink()
        manifest.write(experiment.layout)
    with pytest.raises(OutputConflict, match="nothing in the export can be shown") as caught:
        open_viewer_layers(experiment, tmp_path / "levels")
    assert "segmentation was exported from other data" in str(caught.value.found)


def test_a_damaged_image_is_reported_as_such_and_shown_from_the_experiment(
    experiment: Experiment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = image_folder(tmp_path / "levels", "segmentation", "labels")
    (folder / "0" / "zarr.json").write_text("{")
    with caplog.at_level(logging.WARNING):
        gallery = open_viewer_layers(experiment, tmp_path / "levels")
    assert set(gallery.images) == {"raw", "fragments", "truth"}
    assert "segmentation cannot be read in the export" in caplog.text
    assert gallery.folders["segmentation"] == Path(gallery.volumes["segmentation"].where)


def test_napari_has_no_use_for_an_export(experiment: Experiment, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="napari shows the volumes of an experiment"):
        show_folder(experiment.path.parent, None, export=tmp_path / "levels")
    with pytest.raises(UsageError, match="napari shows the volumes of an experiment"):
        show_folder(tmp_path / "levels", None)
    with pytest.raises(UsageError, match="is an export itself"):
        show_folder(tmp_path / "levels", Listening(), export=tmp_path / "levels")
