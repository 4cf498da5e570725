"""`prepare look`: what init must know of a volume, from a sample of it."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from lsdflow_contract.arrays import RAW
from lsdflow_contract.experiment import load_experiment
from lsdflow_prepare.cli import app
from lsdflow_prepare.stage import Prepare, look
from lsdflow_runtime.io.volumes import open_volume


def experiment(folder: Path, target: str) -> Path:
    text = f'[[prepare.training]]\nname = "a"\nraw = "a.hdf"\n[prepare.target]\nraw = "{target}"\n'
    (folder / "experiment.toml").write_text(text)
    return folder


def write(path: Path, raw: np.ndarray, labels: np.ndarray | None, resolution: tuple[float, ...] | None) -> None:
    with h5py.File(path, "w") as file:
        datasets = {"volumes/raw": raw} | ({} if labels is None else {"volumes/labels/neuron_ids": labels})
        for name, values in datasets.items():
            made = file.create_dataset(name, data=values)
            if resolution is not None:
                made.attrs["resolution"] = resolution


@pytest.mark.proves("DAT-10")
def test_it_reports_size_voxels_grey_values_and_the_labelled_part(tmp_path: Path) -> None:
    raw = np.full((8, 16, 20), 500, np.uint16)
    raw[:, :8] = 100
    labels = np.zeros(raw.shape, np.uint64)
    labels[:2], labels[2:4] = 7, 8
    write(tmp_path / "a.hdf", raw, labels, (40.0, 8.0, 4.0))
    write(tmp_path / "b.hdf", raw, None, (40.0, 8.0, 4.0))
    found = look(load_experiment(experiment(tmp_path, "b.hdf")))
    assert found["problems"] == []
    training, target = found["volumes"]["training/a"], found["volumes"]["target"]
    assert training["shape_vox"] == [8, 16, 20]
    assert training["voxel_size_nm"] == [40.0, 8.0, 4.0]
    assert (training["dtype"], training["grey"], training["whole"]) == ("uint16", [100.0, 500.0], True)
    assert training["grey_percentiles"] == {"1": 100.0, "50": 300.0, "99": 500.0}
    assert (training["labels"]["neurons"], training["labels"]["neurons_below_1000_vox"]) == (2, 2), "640 each"
    assert training["labels"]["labelled_fraction"] == pytest.approx(0.5)
    assert (target["labels"], target["labels_beside"]) == (None, False)


def test_a_sample_is_the_middle_of_the_target_as_a_run_writes_it(tmp_path: Path) -> None:
    raw = np.random.default_rng(0).integers(0, 1000, (12, 16, 20)).astype(np.uint16)
    write(tmp_path / "b.hdf", raw, None, (8.0, 4.0, 4.0))
    (tmp_path / "experiment.toml").write_text(
        '[prepare.target]\nraw = "b.hdf"\nraw_range = [900, 100]\nresample_to = "8 nm"\n'
    )
    words = ["sample", "-e", str(tmp_path), "--out", str(tmp_path / "s.npy"), "--shape", "4", "6", "50"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    Prepare().run(load_experiment(tmp_path))
    volume = open_volume(load_experiment(tmp_path).layout.target_volume, RAW.dataset)
    assert volume.geometry.shape_vox == (12, 8, 10)
    assert np.array_equal(np.load(tmp_path / "s.npy"), volume.read(volume.box)[4:8, 1:7])


def test_a_sample_needs_a_target(tmp_path: Path) -> None:
    write(tmp_path / "a.hdf", np.ones((8, 8, 8), np.uint8), np.ones((8, 8, 8), np.uint64), (8.0, 8.0, 8.0))
    (tmp_path / "experiment.toml").write_text('[[prepare.training]]\nname = "a"\nraw = "a.hdf"\n')
    assert CliRunner().invoke(app, ["sample", "-e", str(tmp_path), "--out", str(tmp_path / "s.npy")]).exit_code == 78
    assert not (tmp_path / "s.npy").exists()


def test_labels_beside_a_target_are_found_and_a_missing_voxel_size_is_a_problem_of_its_own(tmp_path: Path) -> None:
    raw = np.ones((8, 16, 20), np.uint8)
    labels = np.ones(raw.shape, np.uint64)
    write(tmp_path / "a.hdf", raw, labels, None)
    write(tmp_path / "b.hdf", raw, labels, (8.0, 8.0, 8.0))
    found = look(load_experiment(experiment(tmp_path, "b.hdf")))
    assert found["volumes"]["target"]["labels_beside"] is True
    assert {problem["error"] for problem in found["problems"]} == {"NoVoxelSize"}
