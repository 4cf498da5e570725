"""A bundle is whole or absent, and damage is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lsdflow_contract.arrays import dequantise_u8 as contract_dequantise
from lsdflow_contract.arrays import quantise_u8 as contract_quantise
from lsdflow_contract.checkpoint import Bundle, UNetSpec, bundle_folder, bundle_iterations
from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput
from lsdflow_network import shapes
from lsdflow_network.bundle import load_bundle, save_bundle, tensors_equal
from lsdflow_network.inference import load_predictor, raw_to_network
from lsdflow_network.quantise import dequantise_u8, quantise_u8
from lsdflow_network.testing import untrained_bundle
from lsdflow_network.unet import UNet

SPEC = UNetSpec(in_channels=1, num_fmaps=2, fmap_inc_factor=2, downsample_factors=((2, 2, 2),))


def a_bundle(kind: str = "lsd", spec: UNetSpec = SPEC, **changes) -> Bundle:
    outputs = {"lsd": {"lsds": 10}, "mtlsd": {"lsds": 10, "affs": 3}}.get(kind, {"affs": 3})
    shape = shapes.nearest_valid_input_shapes(spec, (20, 20, 20))[1]
    facts = {"iteration": 7, "sigma_nm": (80, 80, 80), **changes}
    return untrained_bundle(kind, spec, outputs, shape).model_copy(update=facts)


def saved(tmp_path: Path, kind: str = "lsd", spec: UNetSpec = SPEC, **changes) -> tuple[Bundle, UNet, Path]:
    torch.manual_seed(1)
    bundle = a_bundle(kind, spec, **changes)
    network = UNet(spec, bundle.outputs)
    complete = save_bundle(tmp_path, bundle, network.state_dict(), {"resume.pt": b"x"})
    return complete, network, bundle_folder(tmp_path, 7)


def test_what_is_saved_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    complete, network, folder = saved(tmp_path)
    bundle, weights = load_bundle(folder, "lsd")
    assert bundle == complete
    assert tensors_equal(weights, network.state_dict())
    assert (folder / "resume.pt").read_bytes() == b"x"


def test_saving_again_replaces_and_leaves_nothing_else(tmp_path: Path) -> None:
    saved(tmp_path)
    saved(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["00000007"]
    assert bundle_iterations(tmp_path) == [7]


def test_one_flipped_bit_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path)[2]
    weights = folder / "weights.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(BadData, match="damaged"):
        load_bundle(folder)


def test_missing_pickled_and_wrong_kind_are_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path)[2]
    with pytest.raises(MissingInput):
        load_bundle(tmp_path / "00000008")
    with pytest.raises(BadData, match="pickle"):
        load_bundle(tmp_path / "model.pt")
    with pytest.raises(ContractMismatch):
        load_bundle(folder, "mtlsd")


def test_another_contract_major_is_refused(tmp_path: Path) -> None:
    folder = saved(tmp_path, contract="999.0")[2]
    with pytest.raises(ContractMismatch):
        load_bundle(folder)


@pytest.mark.proves("TAC-02")
def test_quantisation_in_torch_is_that_of_the_contract() -> None:
    values = np.concatenate(
        [
            np.linspace(-0.1, 1.1, 10007, dtype=np.float32),
            np.arange(256, dtype=np.float32) / np.float32(255),
            np.nextafter(np.arange(256, dtype=np.float32) / np.float32(255), np.float32(0)),
        ]
    )
    stored = quantise_u8(torch.from_numpy(values))
    np.testing.assert_array_equal(stored.numpy(), contract_quantise(values))
    np.testing.assert_array_equal(dequantise_u8(stored).numpy(), contract_dequantise(stored.numpy()))


@pytest.mark.proves("DAT-02", "TLS-02", "TLS-12")
def test_raw_of_every_type_gives_the_same_network_input() -> None:
    grey = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    expected = raw_to_network(grey)
    assert (expected.min(), expected.max()) == (-1, 1)
    np.testing.assert_allclose(raw_to_network(grey.astype(np.uint16) * 257), expected, atol=1e-6)
    np.testing.assert_allclose(raw_to_network(grey.astype(np.float32) / 255), expected, atol=1e-6)
    for wrong in (grey.astype(np.int32), grey.astype(np.float32), grey.astype(np.float32) / 255 * 2 - 1):
        with pytest.raises(BadData):
            raw_to_network(wrong)


def test_predict_converts_grey_values_or_refuses_them(tmp_path: Path) -> None:
    predictor = load_predictor(saved(tmp_path)[2], precision="float32")
    grey = np.random.default_rng(0).integers(0, 256, (36, 36, 36), dtype=np.uint8)
    wanted = predictor.predict(raw_to_network(grey))["lsds"]
    for raw in (grey, grey[None], grey.astype(np.uint16) * 257):
        np.testing.assert_allclose(predictor.predict(raw)["lsds"], wanted, atol=1e-5)
    holed = np.full(grey.shape, np.nan, np.float32)
    for wrong in (grey.astype(np.float32), grey.astype(np.int32), grey > 9, holed, np.stack([grey] * 11)):
        with pytest.raises(BadData):
            predictor.predict(wrong)


@pytest.mark.proves("PRD-09")
def test_acrlsd_one_pass_is_two_passes(tmp_path: Path) -> None:
    """LSDs kept in memory and LSDs stored as uint8 in between give the same affinities, bit for bit."""
    lsd, _, lsd_folder = saved(tmp_path / "lsd")
    spec = SPEC.model_copy(update={"in_channels": 11})
    affinity_folder = saved(tmp_path / "affs", "acrlsd", spec, lsd_bundle_sha256=lsd.weights_sha256)[2]
    raw = np.random.default_rng(0).uniform(-1, 1, (36, 36, 36)).astype(np.float32)
    chain = load_predictor(affinity_folder, precision="float32", lsd_folder=lsd_folder)
    one_pass = chain.predict(raw)
    stored = contract_quantise(load_predictor(lsd_folder, precision="float32").predict(raw)["lsds"])
    np.testing.assert_array_equal(stored, one_pass["lsds_u8"])
    border = (36 - stored.shape[1]) // 2
    cropped = raw[border:-border, border:-border, border:-border]
    both = np.concatenate([cropped[None], contract_dequantise(stored)])
    two_pass = load_predictor(affinity_folder, precision="float32").predict(both)
    np.testing.assert_array_equal(two_pass["affs"], one_pass["affs"])
    assert one_pass["affs"].shape[1:] == chain.output_shape_vox((36, 36, 36))


def test_an_affinity_bundle_refuses_another_lsd_bundle(tmp_path: Path) -> None:
    lsd_folder = saved(tmp_path / "lsd")[2]
    spec = SPEC.model_copy(update={"in_channels": 11})
    affinity_folder = saved(tmp_path / "affs", "acrlsd", spec, lsd_bundle_sha256="0" * 64)[2]
    with pytest.raises(ContractMismatch, match="not the one"):
        load_predictor(affinity_folder, lsd_folder=lsd_folder)
