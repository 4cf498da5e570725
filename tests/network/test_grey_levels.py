"""Bytes in, bytes out on the device: the numbers of the way over floats in main memory, bit for bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from lsdflow_contract.arrays import dequantise_u8, quantise_u8
from lsdflow_contract.checkpoint import UNetSpec, bundle_folder
from lsdflow_network import shapes
from lsdflow_network.bundle import save_bundle
from lsdflow_network.devices import cpu_computes_bf16
from lsdflow_network.inference import Predictor, load_predictor, raw_to_network
from lsdflow_network.testing import untrained_bundle
from lsdflow_network.unet import UNet


def a_predictor(folder: Path, kind: str, precision: str = "float32", *, fill: float | None = None) -> Predictor:
    torch.manual_seed(2)
    channels, outputs = {"acrlsd": (11, {"affs": 3}), "mtlsd": (1, {"lsds": 10, "affs": 3})}[kind]
    spec = UNetSpec(in_channels=channels, num_fmaps=4, fmap_inc_factor=6, downsample_factors=((2, 2, 2), (1, 3, 3)))
    network = UNet(spec, outputs)
    state = {n: torch.full_like(w, fill) if fill is not None else w for n, w in network.state_dict().items()}
    shape = shapes.smallest_input_shape_vox(spec)
    bundle = untrained_bundle(kind, spec, outputs, shape)
    save_bundle(folder, bundle, state)
    return load_predictor(bundle_folder(folder, 1), precision=precision)


def bytes_of(predictor: Predictor, *channels: int) -> torch.Tensor:
    z, y, x = shapes.nearest_valid_input_shapes(predictor.bundle.unet, (40, 56, 60))[1]
    return torch.randint(0, 256, (*channels, z, y, x), generator=torch.Generator().manual_seed(5), dtype=torch.uint8)


BF16 = pytest.param("bf16", marks=pytest.mark.skipif(not cpu_computes_bf16(), reason="this CPU has no bf16"))


@pytest.mark.parametrize("precision", ["float32", BF16])
def test_raw_alone(tmp_path: Path, precision: str) -> None:
    predictor = a_predictor(tmp_path, "mtlsd", precision)
    raw = bytes_of(predictor)
    levels, finite = predictor.grey_levels(raw, None, ("lsds", "affs"))
    wanted = predictor.predict(raw_to_network(raw.numpy()))
    assert finite
    np.testing.assert_array_equal(levels.numpy(), np.concatenate([quantise_u8(wanted[n]) for n in ("lsds", "affs")]))
    assert levels.float().std() > 5


def test_raw_and_lsds_and_views_of_larger_windows(tmp_path: Path) -> None:
    predictor = a_predictor(tmp_path, "acrlsd")
    raw, lsds = bytes_of(predictor), bytes_of(predictor, 10)
    window = torch.zeros((10, *(n + 3 for n in lsds.shape[1:])), dtype=torch.uint8)
    window[:, 2:-1, 1:-2, 3:] = lsds
    levels, _ = predictor.grey_levels(raw, window[:, 2:-1, 1:-2, 3:], ("affs",))
    seen = np.concatenate([raw_to_network(raw.numpy())[None], dequantise_u8(lsds.numpy())])
    np.testing.assert_array_equal(levels.numpy(), quantise_u8(predictor.predict(seen)["affs"]))


def test_nan_is_reported(tmp_path: Path) -> None:
    predictor = a_predictor(tmp_path, "mtlsd", fill=float("nan"))
    assert not predictor.grey_levels(bytes_of(predictor), None, ("affs",))[1]
