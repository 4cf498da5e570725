"""Training with pipeline = "gpu", on the CPU: it learns, resumes to the bit, leaves snapshots, has a key of its own."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip("gunpowder")
pytest.importorskip("torch")
h5py = pytest.importorskip("h5py")

from lsdflow_contract.checkpoint import bundle_folder  # noqa: E402
from lsdflow_contract.errors import ConfigError  # noqa: E402
from lsdflow_network.bundle import load_bundle, tensors_equal  # noqa: E402
from lsdflow_training.settings import training_parameters  # noqa: E402
from lsdflow_training.snapshots import dataset_names, snapshot_path  # noqa: E402
from lsdflow_training.trainer import train  # noqa: E402


def run(prepared, folder, workers: int = 0, **schedules):
    settings = dataclasses.replace(
        prepared.settings,
        num_workers=workers,
        cache_size=2,
        schedules=dataclasses.replace(prepared.settings.schedules, **schedules),
    )
    train(settings, prepared.sources, folder, prepared.key)


def losses(folder) -> np.ndarray:
    rows = np.genfromtxt(folder / "loss.csv", delimiter=",", names=True)
    return rows["loss"][~np.isnan(rows["loss"])]


def weights(folder, iteration: int):
    return load_bundle(bundle_folder(folder / "checkpoints", iteration))[1]


def test_it_learns(prepared, tmp_path) -> None:
    training = prepared("affinities", pipeline="gpu", elastic_probability=0.0, num_fmaps=6)
    run(training, tmp_path / "t", max_iteration=60, learning_rate=3e-3, schedule="constant", checkpoint_every=60)
    loss = losses(tmp_path / "t")
    assert len(loss) == 60
    assert loss[-10:].mean() < 0.9 * loss[:5].mean()


def test_resumed_training_is_bit_identical(prepared, tmp_path) -> None:
    training = prepared("mtlsd", pipeline="gpu", schedule="constant", elastic_probability=0.5)
    run(training, tmp_path / "whole", max_iteration=4)
    for maximum, workers in ((1, 0), (3, 2), (4, 1)):
        run(training, tmp_path / "parts", workers, max_iteration=maximum)
    assert tensors_equal(weights(tmp_path / "whole", 4), weights(tmp_path / "parts", 4))


def test_snapshots_and_the_first_loss_are_those_of_gunpowder(prepared, tmp_path) -> None:
    for pipeline in ("gunpowder", "gpu"):
        training = prepared("mtlsd", pipeline=pipeline, elastic_probability=0.0)
        run(training, tmp_path / pipeline, max_iteration=1)
    found = [losses(tmp_path / pipeline)[0] for pipeline in ("gunpowder", "gpu")]
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    files = [h5py.File(snapshot_path(tmp_path / name / "snapshots", 1)) for name in ("gunpowder", "gpu")]
    for name, dataset in dataset_names("mtlsd").items():
        wanted, made = (file[dataset] for file in files)
        assert made.shape == wanted.shape
        assert list(made.attrs["offset"]) == list(wanted.attrs["offset"])
        ids_apart = name == "labels"  # only which voxels belong together is the same
        one, other = (made[...] > 0, wanted[...] > 0) if ids_apart else (made[...], wanted[...])
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_it_is_part_of_the_key_only_if_chosen(prepared) -> None:
    usual, chosen = prepared("lsd"), prepared("lsd", pipeline="gpu")
    assert "pipeline" not in training_parameters(usual.settings)
    assert training_parameters(chosen.settings)["pipeline"] == "gpu"
    assert usual.key != chosen.key


def test_the_published_package_of_lsds_is_refused(prepared) -> None:
    with pytest.raises(ConfigError) as caught:
        prepared("lsd", pipeline="gpu", lsd_engine="lsds")
    assert (caught.value.where, caught.value.found) == ("pipeline", "lsd_engine")
