"""The stage on the device of this machine: the affinities of the CPU, and the same bits from any workers and passes."""

from __future__ import annotations

import numpy as np
import pytest

from lsdflow_predict.stage import Predict

pytestmark = pytest.mark.gpu

BLOCKS_OF_8 = 'predict.block_shape="8 vox"'
LEVELS = 1


def test_affinities_are_those_of_the_cpu_and_no_setting_changes_a_bit(make_experiment, device: str) -> None:
    experiment = make_experiment()
    on_cpu = experiment.affinities('compute.device="cpu"')
    here = f'compute.device="{device}"'
    found = experiment.affinities(here)
    assert np.abs(found.astype(int) - on_cpu.astype(int)).max() <= LEVELS
    for settings in ((), (BLOCKS_OF_8, "predict.lsd_cache_mb=0"), (BLOCKS_OF_8, 'predict.passes="two"')):
        assert np.array_equal(experiment.affinities(here, *settings), found)


def test_worker_processes_on_one_device_give_the_bits_of_one(make_experiment, device: str) -> None:
    experiment = make_experiment()
    here = f'compute.device="{device}"'
    one = experiment.affinities(here)
    assert np.array_equal(experiment.affinities(here, BLOCKS_OF_8, 'compute.runner="daisy"'), one)


def test_a_measured_block_reports_the_memory_of_the_device(make_experiment, device: str, tmp_path) -> None:
    facts = Predict().measure(make_experiment().experiment(f'compute.device="{device}"'), tmp_path / "measured")
    assert facts["seconds"] > 0
    assert device == "cpu" or facts["device_peak_mib"] > 0
