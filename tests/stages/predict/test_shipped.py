"""The networks that come with predict: complete, small, described, and they do on real EM what their cards say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import lsdflow
from lsdflow_contract.checkpoint import read_bundle
from lsdflow_contract.errors import BadData, MissingInput, OutputConflict, StorageFailure
from lsdflow_contract.hashing import hash_of_file
from lsdflow_network.bundle import load_bundle
from lsdflow_predict.cli import app
from lsdflow_predict.shipped import NETWORKS, copy_network, network_folder, predict_patch, shipped_networks

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"
NAMES = ("fib-sem", "serial-sections")


@pytest.mark.parametrize("name", NAMES)
def test_a_network_is_complete_small_and_says_what_made_it(name: str) -> None:
    card, bundle = shipped_networks()[name], read_bundle(NETWORKS / name)
    assert hash_of_file(NETWORKS / name / "weights.safetensors") == bundle.weights_sha256 == card["weights_sha256"]
    assert card["bytes"] < 6_000_000
    for fact in ("tissue", "data", "licence", "made_by", "scores"):
        assert card[fact]
    assert "seed" in card["made_by"]["where"]
    assert card["made_by"]["command"].startswith("lsdflow run DIR --to train-acrlsd --set ")
    assert card["grey_percentiles"].keys() == {"1", "50", "99"}
    assert bundle.calibration is not None
    assert 0 < bundle.calibration.thresholds["hist_quant_75"] < 1


def test_weights_in_half_precision_are_read_as_float32() -> None:
    _, weights = load_bundle(NETWORKS / "fib-sem")
    assert {value.dtype for value in weights.values()} == {torch.float32}


def test_a_copy_is_the_same_network_and_replaces_nothing(tmp_path: Path) -> None:
    copy_network("fib-sem", tmp_path / "copy")
    assert read_bundle(tmp_path / "copy") == read_bundle(NETWORKS / "fib-sem")
    assert network_folder(str(tmp_path / "copy")) == tmp_path / "copy"
    with pytest.raises(OutputConflict):
        copy_network("fib-sem", tmp_path / "copy")
    with pytest.raises(MissingInput, match="no such network"):
        network_folder("no-such-tissue")


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: Path, target: Path) -> None:
        target.mkdir()
        (target / "bundle.json").write_text("{")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copytree", full)
    with pytest.raises(StorageFailure):
        copy_network("fib-sem", tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


def test_the_command_lists_copies_and_refuses_half_a_copy(tmp_path: Path) -> None:
    runner = CliRunner()
    assert sorted(json.loads(runner.invoke(app, ["networks", "--json"]).stdout)) == sorted(NAMES)
    done = runner.invoke(app, ["networks", "--copy", "fib-sem", "--to", str(tmp_path / "n")])
    assert done.exit_code == 0
    assert read_bundle(tmp_path / "n").kind == "mtlsd"
    assert runner.invoke(app, ["networks", "--copy", "fib-sem"]).exit_code == 2
    assert runner.invoke(app, ["networks", "--copy", "nothing", "--to", str(tmp_path / "m")]).exit_code == 66


def test_a_patch_of_any_size_gets_affinities_of_the_shape_of_the_network(tmp_path: Path) -> None:
    raw, out = tmp_path / "raw.npy", tmp_path / "affinities.npy"
    shape = read_bundle(NETWORKS / "serial-sections").predict_output_shape_vox
    patch = np.random.default_rng(0).integers(0, 256, (30, 50, 300), dtype=np.uint8)
    np.save(raw, patch)
    assert predict_patch(NETWORKS / "serial-sections", raw, out) == shape
    found = np.load(out)
    assert (found.shape, found.dtype) == ((3, *shape), np.uint8)
    np.save(raw, patch[1:-1, :, 28:-28])
    predict_patch(NETWORKS / "serial-sections", raw, out)
    assert np.array_equal(np.load(out), found), "the middle of a larger patch is used"


@pytest.mark.parametrize("wrong", [np.zeros((1, 4, 4, 4), np.uint8), np.zeros((4, 4, 4), np.float32), None])
def test_what_is_no_patch_is_refused(tmp_path: Path, wrong: np.ndarray | None) -> None:
    raw = tmp_path / "raw.npy"
    if wrong is None:
        raw.write_bytes(b"no array")
    else:
        np.save(raw, wrong)
    with pytest.raises(BadData):
        predict_patch(NETWORKS / "fib-sem", raw, tmp_path / "out.npy")
    assert not (tmp_path / "out.npy").exists()
    with pytest.raises(MissingInput):
        predict_patch(NETWORKS / "fib-sem", tmp_path / "nothing.npy", tmp_path / "out.npy")


@pytest.mark.skipif(not DATA.is_dir(), reason="the real volumes are not beside the checkout (../shared/data)")
def test_the_fib_sem_network_segments_a_real_volume_as_its_card_says() -> None:
    """VOI of gala's test volume at the calibrated threshold: .43 bits, merges .16 (benchmarks/README.md)."""
    import zarr

    volume = zarr.open(DATA / "gala_mini" / "test.zarr", mode="r")
    raw, truth = (np.asarray(volume[name]) for name in ("volumes/raw", "volumes/labels/neuron_ids"))
    affinities = lsdflow.predict_affinities(raw, NETWORKS / "fib-sem", device="cpu")
    fragments = lsdflow.extract_fragments(affinities)
    calibration = read_bundle(NETWORKS / "fib-sem").calibration
    assert calibration is not None
    segments = lsdflow.segment(
        fragments, lsdflow.score_edges(affinities, fragments), calibration.thresholds["hist_quant_75"]
    )
    scores = lsdflow.compare(segments, truth)
    assert scores.voi_split + scores.voi_merge < 0.5
    assert scores.voi_merge < 0.2
