"""The precision of predict: what a device gets, the comparison with float32, and one kind of device for a result."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch

from lsdflow_contract.checkpoint import UNetSpec
from lsdflow_contract.errors import BadData, ConfigError, ContractMismatch
from lsdflow_contract.geometry import Box
from lsdflow_network.precision import inference_precision
from lsdflow_predict import same_device
from lsdflow_predict.blocks import LsdSource, TileCache
from lsdflow_predict.evaluation import Finite, require_finite, require_parity
from lsdflow_predict.stage import Predict
from lsdflow_predict.tiling import plan_tiling
from lsdflow_predict.worker_device import Window

SPEC = UNetSpec(in_channels=1, num_fmaps=2, fmap_inc_factor=2, downsample_factors=((2, 2, 2),))


def test_a_gpu_gets_fp16_and_a_cpu_float32() -> None:
    assert [inference_precision(kind) for kind in ("cuda", "cpu")] == ["fp16", "float32"]
    assert inference_precision("cuda", "tf32") == "tf32"


@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_a_cpu_is_refused_a_precision_of_gpus(make_experiment, precision: str) -> None:
    with pytest.raises(ConfigError, match=f"this CPU cannot compute in {precision}"):
        make_experiment().run(f'predict.precision="{precision}"')


def test_default_results_keep_their_key_and_named_float32_has_another(make_experiment) -> None:
    experiment = make_experiment()

    def key(*settings: str) -> str:
        return Predict().last_pass(experiment.experiment(*settings)).key

    assert key() == key('predict.precision="auto"')
    assert len({key(), key('predict.precision="float32"'), key('predict.precision="bf16"')}) == 3


def levels_that_differ_by(levels: int) -> list[SimpleNamespace]:
    """A predictor in 16 bits and one in float32."""

    def giving(value: int) -> SimpleNamespace:
        tile = torch.full((3, 4, 4, 4), value, dtype=torch.uint8), torch.tensor(True)
        return SimpleNamespace(
            bundle=SimpleNamespace(unet=SPEC), precision="fp16", grey_levels=lambda raw, lsds, names: tile
        )

    return [giving(100 + levels), giving(100)]


def test_values_far_from_float32_are_refused_with_the_figures() -> None:
    raw = torch.zeros((36, 36, 36), dtype=torch.uint8)
    require_parity(*levels_that_differ_by(1), raw, None, ["affs"])
    with pytest.raises(ConfigError, match=r"predict\.precision[\s\S]*2\.00"):
        require_parity(*levels_that_differ_by(2), raw, None, ["affs"])


def test_the_tile_that_is_not_finite_is_named() -> None:
    first, second = Box((0, 0, 0), (4, 4, 4)), Box((4, 0, 0), (4, 4, 4))
    require_finite([])
    with pytest.raises(BadData, match=r"NaN[\s\S]*4"):
        require_finite([(first, torch.tensor(True)), (second, torch.tensor(False))])


def test_a_result_is_continued_on_the_same_kind_of_device_only(make_experiment, monkeypatch) -> None:
    experiment = make_experiment()
    found = experiment.affinities()
    task = Predict().last_pass(experiment.experiment())
    record = task.layout.result("predict", task.key) / same_device.RECORD
    assert json.loads(record.read_text())["device"] == "cpu"
    task.marks.remove_all()
    other = {"device": "NVIDIA H100 80GB HBM3", "precision": "fp16", "torch": "", "cuda": ""}
    with monkeypatch.context() as on_a_gpu:
        on_a_gpu.setattr(same_device, "device_record", lambda precision, device: other)
        with pytest.raises(ContractMismatch, match="another kind of device"):
            experiment.run()
        experiment.run("predict.allow_mixed_devices=true")
    task.marks.remove_all()
    assert (experiment.affinities() == found).all()


def test_all_blocks_that_share_a_tile_which_is_not_finite_fail() -> None:
    """Another block, or another attempt, finds it in the cache, where it must not pass for a checked one."""
    tiling = plan_tiling(SPEC, Box((0, 0, 0), (8, 8, 8)), (0, 0, 0), (8, 8, 8))
    tile = torch.zeros((10, *tiling.output_vox), dtype=torch.uint8), torch.tensor(False)
    source = LsdSource(tiling, lambda raw, lsds, names: tile, TileCache(1_000_000))
    seen = tiling.input((0, 0, 0))
    raw = Window(seen, torch.zeros(seen.shape_vox, dtype=torch.uint8))
    computed = []
    for _ in range(2):
        finite: list[Finite] = []
        computed.append(source.read(Box((0, 0, 0), (8, 8, 8)), raw, finite)[1])
        with pytest.raises(BadData, match="NaN"):
            require_finite(finite)
    assert computed == [1, 0]
