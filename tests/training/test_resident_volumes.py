"""Volumes of a training: read once if they fit, the same bits if they do not, and no file is read for a patch."""

from __future__ import annotations

import dataclasses
import logging
import shutil

import numpy as np
import pytest

pytest.importorskip("gunpowder")
torch = pytest.importorskip("torch")

from lsdflow_contract.arrays import MASK, MaskState  # noqa: E402
from lsdflow_contract.geometry import Box  # noqa: E402
from lsdflow_training.data import volume_arrays  # noqa: E402
from lsdflow_training.data.device_volumes import DeviceVolume  # noqa: E402
from lsdflow_training.data.patch import to_patch  # noqa: E402
from lsdflow_training.data.pipeline import make_keys  # noqa: E402
from lsdflow_training.data.streams import make_stream  # noqa: E402
from lsdflow_training.data.volume_arrays import NAMES, VolumeArrays, open_arrays  # noqa: E402
from lsdflow_training.testing import write_zarr2  # noqa: E402
from lsdflow_training.timing import NodeTimes  # noqa: E402

CPU = torch.device("cpu")
BOTH = pytest.mark.parametrize(("pipeline", "workers"), [("gunpowder", 0), ("gunpowder", 2), ("gpu", 0)])


@pytest.fixture
def nothing_fits(monkeypatch):
    return lambda: monkeypatch.setattr(volume_arrays, "free_memory_bytes", lambda: 0)


def three_states(training) -> None:
    states = np.full((40, 40, 40), MaskState.TRAIN, np.uint8)
    states[:, :, 26:], states[:, 28:, :] = MaskState.IGNORE, MaskState.BACKGROUND
    volume = training.sources[0].volume
    write_zarr2(volume.path, MASK.dataset, states, volume.voxel_size_nm, (0.0, 0.0, 0.0))


def patches(training, count: int, workers: int = 0, before_the_first=lambda: None) -> list:
    settings, keys = dataclasses.replace(training.settings, num_workers=workers, cache_size=2), make_keys()
    with make_stream(keys, settings, training.sources, 1, 1, NodeTimes()) as stream:
        before_the_first()
        return [to_patch(next(stream), keys, CPU) for _ in range(count)]


def tensors(patch) -> list:
    return [patch.raw, *patch.targets.values(), *patch.weights.values()]


@BOTH
def test_no_file_is_read_for_a_patch_by_any_process(prepared, pipeline: str, workers: int) -> None:
    training = prepared("affinities", elastic_probability=0.5, pipeline=pipeline)
    wanted = patches(training, 4, workers)
    found = patches(training, 4, workers, lambda: shutil.rmtree(training.sources[0].volume.path))
    assert all(torch.equal(one.raw, other.raw) for one, other in zip(found, wanted, strict=True))
    assert wanted[0].raw.std() > 0


@BOTH
def test_volumes_that_do_not_fit_give_the_same_bits(
    prepared, caplog, nothing_fits, pipeline: str, workers: int
) -> None:
    training = prepared("mtlsd", elastic_probability=0.5, pipeline=pipeline, validation_fraction=0.2)
    three_states(training)
    wanted = patches(training, 3)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    nothing_fits()
    found = patches(training, 3, 2 if pipeline == "gpu" else workers)
    assert "micro is read from its files for each patch" in caplog.text
    for one, other in zip(found, wanted, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(other), strict=True))


def test_volumes_are_kept_in_their_order_as_far_as_they_fit(prepared, monkeypatch, caplog) -> None:
    training = prepared("affinities")
    sources = [*training.sources, *training.sources]
    one = VolumeArrays(sources[0].volume, training.settings.targets).nbytes
    assert one == 40**3 * (1 + 8 + 1)
    monkeypatch.setattr(volume_arrays, "free_memory_bytes", lambda: 1.5 * one / volume_arrays.KEPT_SHARE)
    assert [bool(arrays.kept) for arrays in open_arrays(sources, training.settings.targets)] == [True, False]
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert [bool(arrays.kept) for arrays in open_arrays(sources, training.settings.targets)] == [False, False]


BOXES = [
    Box((0, 0, 0), (40, 40, 40)), Box((3, 4, 5), (6, 7, 8)), Box((-5, 30, 38), (9, 20, 4)), Box((50, 0, 0), (3, 4, 5)),
    Box((-9, -9, -9), (60, 60, 60)),
]  # fmt: skip


@pytest.mark.parametrize("box", BOXES)
def test_a_crop_on_the_device_is_that_of_the_file_with_nothing_around(prepared, box: Box) -> None:
    training = prepared("affinities", ignore_ids=[2**60 + 1])
    three_states(training)
    opened = [VolumeArrays(training.sources[0].volume, training.settings.targets) for _ in range(2)]
    there, here = (DeviceVolume(arrays, CPU, keep) for arrays, keep in zip(opened, (True, False), strict=True))
    assert (bool(there.kept), bool(here.kept), bool(opened[0].kept)) == (True, False, False)
    boxes = dict.fromkeys(NAMES, box)
    found, wanted = there.crops(boxes, there.read(boxes)), here.crops(boxes, here.read(boxes))
    assert torch.equal(found["raw"], wanted["raw"])
    assert torch.equal(found["mask"], wanted["mask"])
    pairs = torch.stack([found["labels"].flatten(), wanted["labels"].flatten()]).unique(dim=1)
    assert len(pairs[0].unique()) == len(pairs[1].unique()) == pairs.shape[1], "other ids, the same objects"
    inside = box.intersect(Box((0, 0, 0), (40, 40, 40)))
    around = np.ones(box.shape_vox, bool)
    around[inside.slices(box.begin_vox)] = False
    assert not any(found[name].numpy()[around].any() for name in NAMES)
    assert inside.is_empty or all(found[name].any() for name in NAMES)


def test_changes_of_a_crop_do_not_reach_the_volume(prepared) -> None:
    training = prepared("affinities")
    (arrays,) = open_arrays(training.sources, training.settings.targets)
    for name in NAMES:
        crop = arrays.read(name, Box((0, 0, 0), (40, 40, 40)))
        before = crop.copy()
        crop[...] = 7
        assert np.array_equal(arrays.read(name, Box((0, 0, 0), (40, 40, 40))), before)


def test_a_gpu_training_has_no_data_workers_unless_asked(prepared, monkeypatch) -> None:
    from lsdflow_training import testing

    monkeypatch.delitem(testing.MICRO_OPTIONS, "num_workers")
    assert prepared("affinities", pipeline="gpu").settings.num_workers == 0
    assert prepared("affinities", pipeline="gpu", mlflow="local").settings.num_workers == 0
    assert prepared("affinities", pipeline="gpu", num_workers=3).settings.num_workers == 3
    assert prepared("affinities").settings.num_workers >= 1
