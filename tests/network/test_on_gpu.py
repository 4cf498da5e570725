"""Networks on the device of this machine: the values of the CPU in float32, in TF32, fp16 and bf16, at any tile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from lsdflow_contract.checkpoint import UNetSpec, bundle_folder
from lsdflow_network import shapes
from lsdflow_network.bundle import save_bundle
from lsdflow_network.devices import cpu_computes_bf16, torch_facts
from lsdflow_network.inference import load_predictor
from lsdflow_network.testing import untrained_bundle
from lsdflow_network.unet import UNet

pytestmark = pytest.mark.gpu

SPEC = UNetSpec(in_channels=1, num_fmaps=4, fmap_inc_factor=3, downsample_factors=((2, 2, 2), (1, 2, 2)))
TILES = (40, 60)
SIXTEEN_BITS = torch.cuda.is_available() or cpu_computes_bf16()
# Grey levels of 255: float32 differs by the order of sums; TF32 and fp16 have 11 bits, bf16 has 8.
LEVELS = {"float32": 1, "tf32": 2, "fp16": 2, "bf16": 12}
ON_GPUS_ONLY = ["tf32", "fp16"] if torch.cuda.is_available() else []


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    outputs = {"lsds": 10, "affs": 3}
    shape = shapes.nearest_valid_input_shapes(SPEC, (TILES[0],) * 3)[1]
    torch.manual_seed(0)
    save_bundle(tmp_path, untrained_bundle("mtlsd", SPEC, outputs, shape), UNet(SPEC, outputs).state_dict())
    return bundle_folder(tmp_path, 1)


@pytest.fixture(params=["float32", *ON_GPUS_ONLY, *(["bf16"] if SIXTEEN_BITS else [])])
def precision(request: pytest.FixtureRequest) -> Iterator[str]:
    switches = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [switch.allow_tf32 for switch in switches]
    for switch in switches:
        switch.allow_tf32 = request.param == "tf32"
    yield request.param
    for switch, allowed in zip(switches, before, strict=True):
        switch.allow_tf32 = allowed


@pytest.mark.parametrize("tile", TILES)
def test_grey_levels_are_those_of_the_cpu(bundle: Path, device: str, precision: str, tile: int) -> None:
    shape = shapes.nearest_valid_input_shapes(SPEC, (tile,) * 3)[1]
    raw = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    found, finite = load_predictor(bundle, device=device, precision=precision).grey_levels(raw, None, ("lsds", "affs"))
    wanted, _ = load_predictor(bundle, device="cpu", precision="float32").grey_levels(raw, None, ("lsds", "affs"))
    assert finite
    assert found.device.type == device.split(":", maxsplit=1)[0]
    apart = np.abs(found.cpu().numpy().astype(int) - wanted.numpy().astype(int))
    assert apart.max() <= LEVELS[precision]
    assert wanted.float().std() > 5


def test_a_gpu_that_is_counted_computes(device: str) -> None:
    facts = torch_facts()
    assert facts["cuda_problem"] == "" or device == "cpu"
    assert (facts["devices"] > 0) == (device != "cpu") or device == "cpu"
