"""Training on the device of this machine: its patches are those of the CPU, it learns at every precision, resumes."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip("gunpowder")
torch = pytest.importorskip("torch")

from lsdflow_contract.checkpoint import bundle_folder  # noqa: E402
from lsdflow_network.bundle import load_bundle  # noqa: E402
from lsdflow_network.devices import cpu_computes_bf16  # noqa: E402
from lsdflow_training.data.pipeline import make_keys  # noqa: E402
from lsdflow_training.data.streams import gpu_stream  # noqa: E402
from lsdflow_training.trainer import train  # noqa: E402

pytestmark = pytest.mark.gpu
CAN_16 = torch.cuda.is_available() or cpu_computes_bf16()
SIXTEEN_BITS = [("gpu", "bf16"), ("gpu", "fp16")] if CAN_16 else []


def trained(training, folder, device: str, precision: str, **schedules):
    """Train on the device; returns the losses of the steps."""
    how = dataclasses.replace(training.settings.schedules, **schedules)
    settings = dataclasses.replace(training.settings, device=device, precision=precision, schedules=how)
    train(settings, training.sources, folder, training.key)
    rows = np.genfromtxt(folder / "loss.csv", delimiter=",", names=True)
    return rows["loss"][~np.isnan(rows["loss"])]


@pytest.mark.parametrize("workers", [0, 2])
def test_patches_are_those_of_the_cpu(prepared, device: str, workers: int) -> None:
    training, keys = prepared("mtlsd", elastic_probability=1.0), make_keys()
    settings = dataclasses.replace(training.settings, num_workers=workers, cache_size=2)
    found = []
    for where in (device, "cpu"):
        with gpu_stream(keys, settings, training.sources, first=1, stride=1, device=torch.device(where)) as stream:
            found.append([next(stream) for _ in range(2)])
    for here, on_cpu in zip(*found, strict=True):
        assert here.raw.device.type == device.split(":", maxsplit=1)[0]
        np.testing.assert_allclose(here.raw.cpu(), on_cpu.raw, atol=1e-4)
        for name, wanted in on_cpu.targets.items():
            near = np.isclose(here.targets[name].cpu(), wanted, atol=1e-4, rtol=0)
            assert near.mean() >= 0.999, "a voxel half-way between two may fall to either"


@pytest.mark.parametrize(("pipeline", "precision"), [("gunpowder", "float32"), ("gpu", "float32"), *SIXTEEN_BITS])
def test_it_learns_with_every_pipeline_and_precision(prepared, tmp_path, device: str, pipeline, precision) -> None:
    training = prepared("affinities", pipeline=pipeline, elastic_probability=0.0, num_fmaps=6)
    how = {"max_iteration": 100, "learning_rate": 3e-3, "schedule": "constant", "checkpoint_every": 100}
    loss = trained(training, tmp_path / "t", device, precision, **how)
    assert len(loss) == 100
    # Patches differ in how hard they are, so many of them are compared.
    assert loss[-40:].mean() < 0.95 * loss[:10].mean()


def test_a_checkpoint_of_the_device_resumes_there_and_on_the_cpu(prepared, tmp_path, device: str) -> None:
    training = prepared("mtlsd", pipeline="gpu", schedule="constant", elastic_probability=0.0)
    whole = trained(training, tmp_path / "whole", device, "float32", max_iteration=4)
    for where, maximum in ((device, 2), ("cpu", 3), (device, 4)):
        loss = trained(training, tmp_path / "parts", where, "float32", max_iteration=maximum)
    assert loss == pytest.approx(whole, rel=1e-3)
    assert load_bundle(bundle_folder(tmp_path / "parts" / "checkpoints", 4))[0].iteration == 4
