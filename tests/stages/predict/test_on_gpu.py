"""The stage on the device of this machine: the affinities of the CPU, and the same bits from any blocks and workers."""

from __future__ import annotations

import numpy as np
import pytest

from lsdflow_contract.errors import StageError
from lsdflow_predict.stage import Predict

pytestmark = pytest.mark.gpu

BLOCKS_OF_8 = 'predict.block_shape="8 vox"'
# fp16 has 11 bits.
LEVELS = 2


@pytest.mark.parametrize("precision", ["float32", "auto"])
def test_no_setting_of_blocks_changes_a_bit(make_experiment, device: str, precision: str) -> None:
    experiment = make_experiment()
    here = (f'compute.device="{device}"', f'predict.precision="{precision}"')
    found = experiment.affinities(*here)
    assert np.array_equal(experiment.affinities(*here, BLOCKS_OF_8, "predict.lsd_cache_mb=0"), found)


def test_affinities_are_those_of_the_cpu(make_experiment, device: str) -> None:
    experiment = make_experiment()
    on_cpu = experiment.affinities('compute.device="cpu"', 'predict.precision="float32"')
    # Another key: the same one would give the result of the CPU once more.
    found = experiment.affinities(f'compute.device="{device}"', 'predict.precision="auto"')
    assert np.abs(found.astype(int) - on_cpu.astype(int)).max() <= LEVELS


def test_a_result_begun_on_a_cpu_is_not_continued_on_a_gpu(make_experiment, device: str) -> None:
    experiment = make_experiment()
    experiment.run('compute.device="cpu"')
    task = Predict().last_pass(experiment.experiment())
    task.marks.remove_all()
    experiment.run(f'compute.device="{device}"', "predict.allow_mixed_devices=true")
    task.marks.remove_all()
    if device == "cpu":
        experiment.run()
    else:
        with pytest.raises(StageError, match="another kind of device"):
            experiment.run(f'compute.device="{device}"')


def test_worker_processes_on_one_device_give_the_bits_of_one(make_experiment, device: str) -> None:
    experiment = make_experiment()
    here = f'compute.device="{device}"'
    one = experiment.affinities(here)
    assert np.array_equal(experiment.affinities(here, BLOCKS_OF_8, 'compute.runner="daisy"'), one)


def test_a_measured_block_reports_the_memory_of_the_device(make_experiment, device: str, tmp_path) -> None:
    facts = Predict().measure(make_experiment().experiment(f'compute.device="{device}"'), tmp_path / "measured")
    assert facts["seconds"] > 0
    assert device == "cpu" or facts["device_peak_mib"] > 0
