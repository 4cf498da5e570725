"""Snapshots: the datasets of the field, and beside them where the loss counts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gunpowder")
pytest.importorskip("torch")
h5py = pytest.importorskip("h5py")

from lsdflow_training.run import Training  # noqa: E402
from lsdflow_training.snapshots import dataset_names, snapshot_path  # noqa: E402
from lsdflow_training.trainer import train  # noqa: E402


def snapshots(made: Training, folder: Path, iterations: int) -> Path:
    schedules = dataclasses.replace(made.settings.schedules, max_iteration=iterations)
    train(dataclasses.replace(made.settings, schedules=schedules), made.sources, folder, made.key)
    return folder / "snapshots"


@pytest.mark.proves("TLS-18")
@pytest.mark.parametrize("kind", ["lsd", "mtlsd", "affinities"])
def test_snapshots_have_the_names_of_the_field(prepared, tmp_path, kind) -> None:
    folder = snapshots(prepared(kind), tmp_path / "t", iterations=2)
    assert sorted(p.name for p in folder.iterdir()) == ["batch_1.hdf", "batch_2.hdf"]
    with h5py.File(snapshot_path(folder, 2)) as file:
        names = dataset_names(kind)
        for name in names.values():
            assert isinstance(file[name], h5py.Dataset)
            assert list(file[name].attrs["resolution"]) == [8, 8, 8]
        gradient = [n for n in names.values() if n.endswith("gradient")]
        assert all(np.abs(file[n][:]).max() > 0 for n in gradient)


def test_the_first_and_the_last_iteration_leave_a_snapshot_too(prepared, tmp_path) -> None:
    folder = snapshots(prepared("affinities", snapshot_every=2), tmp_path / "t", iterations=5)
    assert sorted(p.name for p in folder.iterdir()) == [f"batch_{n}.hdf" for n in (1, 2, 4, 5)]


def test_a_training_that_time_ends_leaves_a_snapshot_of_its_last_iteration(prepared, tmp_path, monkeypatch) -> None:
    made = prepared("mtlsd", max_iteration=50, snapshot_every=40)
    ended = "lsdflow_training.trainer.limit_reached"
    monkeypatch.setattr(ended, lambda _, done, __: "max_minutes" if done > 2 else None)
    folder = tmp_path / "t"
    assert train(made.settings, made.sources, folder, made.key).iteration == 3
    assert sorted(p.name for p in (folder / "snapshots").iterdir()) == ["batch_1.hdf", "batch_3.hdf"]
    with h5py.File(snapshot_path(folder / "snapshots", 3)) as file:
        lacking = [name for name in dataset_names("mtlsd").values() if name not in file]
        assert all(name.endswith("gradient") for name in lacking), "gradients are kept only where a snapshot is due"
        assert file["volumes/pred_affinities"].shape == file["volumes/gt_affinities"].shape


@pytest.mark.parametrize("pipeline", ["gunpowder", "gpu"])
def test_a_snapshot_shows_where_the_loss_counts_and_where_not(prepared, tmp_path, pipeline) -> None:
    made = prepared("mtlsd", pipeline=pipeline, validation_fraction=0.5, elastic_probability=0.0)
    folder = snapshots(made, tmp_path / "t", iterations=1)
    with h5py.File(snapshot_path(folder, 1)) as file:
        ignored = file["volumes/labels/mask"][:] == 0
        assert ignored.any()
        for name, target in (("lsds", "gt_lsds"), ("affs", "gt_affinities")):
            weight = file[f"volumes/{name}_weight"][:]
            assert weight.shape == file[f"volumes/{target}"].shape
            assert (weight > 0).any()
            assert not weight[:, ignored].any()
        assert not file["volumes/affs_gradient"][:][weight == 0].any()
