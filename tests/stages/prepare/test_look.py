"""`prepare look`: what init must know of a volume, from a sample of it."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from lsdflow_contract.experiment import load_experiment
from lsdflow_prepare.stage import look


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
    assert training["labels"]["neurons"] == 2
    assert training["labels"]["labelled_fraction"] == pytest.approx(0.5)
    assert (target["labels"], target["labels_beside"]) == (None, False)


def test_labels_beside_a_target_are_found_and_a_missing_voxel_size_is_a_problem_of_its_own(tmp_path: Path) -> None:
    raw = np.ones((8, 16, 20), np.uint8)
    labels = np.ones(raw.shape, np.uint64)
    write(tmp_path / "a.hdf", raw, labels, None)
    write(tmp_path / "b.hdf", raw, labels, (8.0, 8.0, 8.0))
    found = look(load_experiment(experiment(tmp_path, "b.hdf")))
    assert found["volumes"]["target"]["labels_beside"] is True
    assert {problem["error"] for problem in found["problems"]} == {"NoVoxelSize"}
