"""A training snapshot in a viewer: what the network saw, should give and gave, each at its place."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import h5py
import numpy as np
import pytest
from served import serving

from lsdflow_contract.errors import BadData
from lsdflow_view.napari_layers import napari_layers
from lsdflow_view.show import position_of
from lsdflow_view.snapshot import snapshot_layers

BIN = Path(os.environ.get("LSDFLOW_BIN", Path(__file__).resolve().parents[2] / "bin"))
# One iteration of the smallest patch that the network supports.
SHORT = ("max_iteration=1", "snapshot_every=1", "input_shape_vox=[32,32,32]", "num_workers=1")


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a training of LSDs and affinities, as the stage writes it."""
    folder = tmp_path_factory.mktemp("trained") / "exp"
    settings = [word for key in SHORT for word in ("--set", f"train-acrlsd.{key}")]
    for words in (("demo", folder, "--train"), ("run", folder, "--to", "train-acrlsd", *settings)):
        done = subprocess.run([BIN / "lsdflow", *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    (found,) = (folder / "train" / "train-acrlsd" / "snapshots").glob("batch_*.hdf")
    return found


@pytest.mark.proves("VIS-01")
def test_each_array_of_a_snapshot_is_a_layer_at_its_place_in_the_patch(snapshot: Path) -> None:
    datasets = {
        "raw": ("volumes/raw", lambda v: (v + 1) / 2 * 255),
        "lsds_target": ("volumes/gt_lsds", lambda v: v * 255),
        "lsds_prediction": ("volumes/pred_lsds", lambda v: v * 255),
        "affinities_target": ("volumes/gt_affinities", lambda v: v * 255),
        "affinities_prediction": ("volumes/pred_affinities", lambda v: v * 255),
        "mask": ("volumes/labels/mask", lambda v: v),
        "labels": ("volumes/labels/neuron_ids", lambda v: v),
    }
    with snapshot_layers(snapshot) as layers, h5py.File(snapshot) as file:
        assert list(layers.volumes) == list(datasets)
        for name, (dataset, shown) in datasets.items():
            volume, stored = layers.volumes[name], file[dataset]
            assert np.abs(volume.read(volume.box) - shown(stored[()].astype(float))).max() <= 0.5 + 1e-3, name
            assert volume.geometry.offset_nm == tuple(stored.attrs["offset"])
            assert volume.geometry.voxel_size_nm == tuple(stored.attrs["resolution"])
        assert len(np.unique(layers.volumes["raw"].read(layers.volumes["raw"].box))) > 20
        kinds = {layer.name: layer.kind for layer in layers.layers()}
        assert kinds["raw"] == "image"
        assert (kinds["lsds_prediction"], kinds["affinities_target"]) == ("lsds", "affinities")
        assert (kinds["labels"], kinds["mask"]) == ("labels", "labels")
        folder = Path(layers.volumes["raw"].where)
        assert folder.exists()
    assert not folder.exists(), "the copies end with the viewer"


def test_neuroglancer_and_napari_get_the_layers_of_a_snapshot(snapshot: Path, tmp_path: Path) -> None:
    with snapshot_layers(snapshot) as layers:
        names = [made.arguments["name"] for made in napari_layers(layers)]
        assert [name for name in names if name.startswith("lsds_prediction")] == [f"lsds_prediction {c}" for c in "012"]
        assert position_of(layers, "16, 16, 16 vox") is not None
        with serving(layers, tmp_path) as served:
            status, _, state = served.get("state.json")
            assert status == 200
            assert all(f'"{name}"'.encode() in state for name in layers.volumes)
            status, _, metadata = served.get("volumes/lsds_prediction/zarr.json")
            assert (status, b"uint8" in metadata) == (200, True)


def test_the_command_shows_a_snapshot_and_refuses_levels_for_it(snapshot: Path) -> None:
    command = [BIN / "lsdflow", "view", snapshot, "--no-browser"]
    refused = subprocess.run([*command, "--export", snapshot.parent], capture_output=True, text=True, check=False)
    assert (refused.returncode, "--export" in refused.stderr) == (2, True)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as viewer:
        address = viewer.stdout.readline() if viewer.stdout else ""
        viewer.send_signal(signal.SIGINT)
        output = viewer.communicate(timeout=600)[1]
    assert (viewer.returncode, address.startswith("http://127.0.0.1:")) == (0, True), output
    assert "layers: raw, lsds_target, lsds_prediction, affinities_target, affinities_prediction" in output


def test_a_file_with_the_name_of_a_snapshot_that_is_none_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "batch_1.hdf", "w") as file:
        file["something"] = np.zeros(3)
    (tmp_path / "batch_2.hdf").write_bytes(b"no HDF5")
    for name, found in (("batch_1.hdf", "something"), ("batch_2.hdf", "")):
        with pytest.raises(BadData) as caught, snapshot_layers(tmp_path / name):
            pass
        assert found in caught.value.message()
        assert name in caught.value.message()
