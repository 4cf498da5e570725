"""`lsdflow init --network`: which networks fit a volume, how the volume is read for them, and what is written."""

from __future__ import annotations

import io
import json
import logging
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from PIL import Image
from typer.testing import CliRunner

from lsdflow_contract.checkpoint import read_bundle
from lsdflow_contract.errors import ContractMismatch
from lsdflow_launch.cli import app
from lsdflow_launch.init import networks
from lsdflow_launch.init.middle import Middle, separate_cells
from lsdflow_launch.init.networks import (
    Network,
    contrast_choices,
    find_network,
    grey_choices,
    mapped_range,
    network_to_start_from,
    resampled_size,
    size_choices,
)
from lsdflow_launch.synthetic.image import synthetic_em

FIB, SECTIONS = (10.0, 10.0, 10.0), (30.0, 6.0, 6.0)
CARD = {"grey_percentiles": {"1": 69, "50": 129, "99": 196}}
NETWORK = Network("fib-sem", "mtlsd", FIB, (148, 148, 148), {}, CARD)


@pytest.mark.parametrize(
    ("size_nm", "trained_nm", "used_nm"),
    [
        (FIB, FIB, FIB),
        ((8, 8, 8), FIB, (8, 8, 8)),
        ((12, 12, 12), FIB, (12, 12, 12)),
        ((4, 4, 4), FIB, (8, 8, 8)),
        ((5, 5, 5), FIB, (10, 10, 10)),
        ((6, 6, 6), FIB, (12, 12, 12)),
        ((2.5, 2.5, 2.5), FIB, (7.5, 7.5, 7.5)),
        ((16, 16, 16), FIB, (8, 8, 8)),
        ((20, 20, 20), FIB, (10, 10, 10)),
        ((8, 4, 4), FIB, (8, 8, 8)),
        ((40, 8, 8), SECTIONS, (40, 8, 8)),
        ((40, 4, 4), SECTIONS, (40, 8, 8)),
        ((50, 6, 6), SECTIONS, (25, 6, 6)),
        ((30, 30, 30), FIB, None),
        ((40, 8, 8), FIB, None),
        ((1, 1, 1), FIB, None),
        ((10, 10, 10), SECTIONS, (30, 5, 5)),
        ((4.0123457, 4.0123457, 4.0123457), FIB, (8.0246914, 8.0246914, 8.0246914)),
    ],
)
def test_voxels_are_joined_or_divided_as_little_as_possible(size_nm: Any, trained_nm: Any, used_nm: Any) -> None:
    assert resampled_size(size_nm, trained_nm) == used_nm


@pytest.mark.parametrize(
    ("size_nm", "keys"),
    [
        (FIB, []),
        ((8, 8, 8), ["predict.allow_voxel_size_mismatch"]),
        ((5, 5, 5), ["prepare.target.resample_to"]),
        ((4, 4, 4), ["prepare.target.resample_to", "predict.allow_voxel_size_mismatch"]),
    ],
)
def test_another_voxel_size_is_said_and_set(size_nm: Any, keys: list[str]) -> None:
    choices = size_choices(NETWORK, size_nm)
    assert [choice.key for choice in choices] == keys
    assert all("10, 10, 10 nm" in choice.why for choice in choices)


def test_the_size_to_resample_to_is_exact() -> None:
    resample, _ = size_choices(NETWORK, (4.0123457,) * 3)
    assert resample.value == "8.0246914, 8.0246914, 8.0246914 nm"


def test_a_volume_that_does_not_fit_is_told_which_network_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(networks, "shipped_networks", lambda: {"sections": {"voxel_size_nm": SECTIONS}})
    with pytest.raises(ContractMismatch) as raised:
        size_choices(NETWORK, (40, 4, 4))
    assert "--network sections fits" in raised.value.fix
    with pytest.raises(ContractMismatch) as raised:
        size_choices(NETWORK, (100, 100, 100))
    assert "--train" in raised.value.fix


def _target(dtype: str, low: float, middle: float, high: float) -> dict[str, Any]:
    return {"dtype": dtype, "grey_percentiles": {"1": low, "50": middle, "99": high}}


@pytest.mark.parametrize(("low", "middle", "high"), [(69, 129, 196), (89, 148, 234), (60, 110, 180)])
def test_grey_values_near_those_of_the_network_are_kept(low: float, middle: float, high: float) -> None:
    assert grey_choices(CARD, _target("uint8", low, middle, high)) == []


@pytest.mark.parametrize(
    ("dtype", "low", "middle", "high"),
    [("uint8", 27, 51, 78), ("uint8", 0, 119, 255), ("uint8", 140, 170, 230), ("uint16", 2000, 9000, 48000)],
)
def test_other_grey_values_are_mapped_to_those_of_the_network(
    dtype: str, low: float, middle: float, high: float
) -> None:
    (choice,) = grey_choices(CARD, _target(dtype, low, middle, high))
    black, white = choice.value
    seen = [255 * (value - black) / (white - black) for value in (low, high)]
    assert np.allclose(seen, (69, 196), atol=0.1)


def test_a_reversed_range_exchanges_black_and_white() -> None:
    black, white = mapped_range(200, 20, {"1": 69, "99": 196})
    assert black > white
    assert np.allclose([255 * (value - black) / (white - black) for value in (200, 20)], (69, 196), atol=0.1)


def _affinities(parts: int) -> np.ndarray:
    """Affinities of a patch that low ones cut into slabs."""
    affinities = np.full((3, 16, 16, 33), 255, np.uint8)
    for cut in range(1, parts):
        affinities[:, :, :, 33 * cut // parts] = 0
    return affinities


@pytest.mark.parametrize(("parts", "bits"), [(1, 0.0), (2, 1.0), (4, 2.0)])
def test_parts_of_equal_size_hold_the_logarithm_of_their_number(parts: int, bits: float) -> None:
    assert separate_cells(_affinities(parts)) == pytest.approx(bits, abs=0.02)


def test_a_patch_without_any_cell_holds_nothing() -> None:
    assert separate_cells(np.zeros((3, 4, 4, 4), np.uint8)) == 0


def _cells(plain: float, inverted: float) -> Callable[[bool], float]:
    return lambda turned: inverted if turned else plain


def test_contrast_is_inverted_if_cells_are_found_only_then() -> None:
    target = _target("uint8", 59, 126, 186)  # those of the network, exchanged
    assert contrast_choices(NETWORK, target, None, _cells(0.8, 4)) == []
    (choice,) = contrast_choices(NETWORK, target, None, _cells(0.2, 4))
    assert choice.value == [255.0, 0.0]
    (choice,) = contrast_choices(NETWORK, _target("uint16", 100, 500, 900), [0, 1000], _cells(0.2, 4))
    assert choice.value[0] > choice.value[1]


def test_a_network_that_finds_no_cells_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="lsdflow.init"):
        assert contrast_choices(NETWORK, _target("uint8", 59, 126, 186), None, _cells(0.2, 0.3)) == []
    assert "finds no separate cells" in caplog.text


def test_the_picture_shows_raw_beside_the_affinities_of_each_look() -> None:
    planes = [
        np.full(shape, grey, np.uint8) for shape, grey in (((6, 8), 10), ((2, 4), 200), ((6, 8), 30), ((2, 4), 90))
    ]
    middle = Middle("n", (1, 6, 8), "", [(planes[0], planes[1]), (planes[2], planes[3])])
    shown = np.asarray(Image.open(io.BytesIO(middle.picture())))
    assert shown.shape == (12, 16)
    assert (shown[:6, :8] == 10).all()
    assert (shown[6:, :8] == 30).all()
    assert (shown[2:4, 10:14] == 200).all()
    assert (shown[8:10, 10:14] == 90).all()
    assert shown[0, 9] == 0


@pytest.fixture(scope="module")
def volume() -> tuple[np.ndarray, np.ndarray]:
    return synthetic_em((56, 72, 72), FIB, 3)


def _write(path: Path, raw: np.ndarray, size_nm: tuple[float, ...]) -> Path:
    group = zarr.open_group(path, mode="w", zarr_format=2)
    group.create_array("volumes/raw", data=raw).attrs.update(resolution=list(size_nm), offset=[0, 0, 0])
    return path


def _init(folder: Path, volume: Path, *options: str) -> Any:
    return CliRunner().invoke(app, ["init", str(folder), "--volume", str(volume), *options])


def test_init_copies_a_network_of_the_box_and_trains_nothing(tmp_path: Path, volume: Any) -> None:
    path = _write(tmp_path / "v.zarr", volume[0], FIB)
    done = _init(tmp_path / "exp", path, "--network", "fib-sem")
    assert done.exit_code == 0, done.output
    settings = tomllib.loads((tmp_path / "exp" / "experiment.toml").read_text())
    assert settings["predict"]["checkpoint"] == "networks/fib-sem"
    assert settings["experiment"]["mode"] == "mtlsd"
    assert "training" not in settings["prepare"]
    assert read_bundle(tmp_path / "exp" / "networks" / "fib-sem").weights_sha256
    assert done.output.rstrip().endswith(f"next: lsdflow run {tmp_path / 'exp'}")


def test_init_scales_16_bits_and_resamples_small_voxels(tmp_path: Path, volume: Any) -> None:
    fine = np.repeat(np.repeat(volume[0][:28, :48, :48].astype(np.uint16) * 30 + 1000, 2, 1), 2, 2)
    path = _write(tmp_path / "v.zarr", np.repeat(fine, 2, 0), (4, 4, 4))
    done = _init(tmp_path / "exp", path, "--network", "fib-sem")
    assert done.exit_code == 0, done.output
    settings = tomllib.loads((tmp_path / "exp" / "experiment.toml").read_text())
    target = settings["prepare"]["target"]
    assert target["resample_to"] == "8, 8, 8 nm"
    assert settings["predict"]["allow_voxel_size_mismatch"] is True
    low, high = sorted(target["raw_range"])
    assert 0 < high - low < 30 * 510


def _labelled(path: Path, size_nm: tuple[float, float, float], shape_vox: tuple[int, int, int] = (56, 72, 72)) -> Path:
    raw, labels = synthetic_em(shape_vox, size_nm, 3)
    _write(path, raw, size_nm)
    zarr.open_group(path)["volumes"].create_array("labels/neuron_ids", data=labels).attrs.update(
        resolution=list(size_nm), offset=[0, 0, 0]
    )
    return path


@pytest.mark.parametrize(
    ("name", "shape_vox", "size_nm", "named"),
    [("fib-sem", (56, 72, 72), (8.0, 8.0, 8.0), False), ("serial-sections", (26, 140, 140), SECTIONS, True)],
)
def test_a_training_starts_from_the_network_that_fits_or_is_named_and_is_one_of_this_network(
    tmp_path: Path, name: str, shape_vox: tuple[int, int, int], size_nm: tuple[float, float, float], named: bool
) -> None:
    path = _labelled(tmp_path / "v.zarr", size_nm, shape_vox)
    done = _init(tmp_path / "exp", path, "--train", str(path), *(("--network", name) if named else ()))
    assert done.exit_code == 0, done.output  # train-acrlsd has compared its network with the weights
    assert "no problems found" in done.output
    text = (tmp_path / "exp" / "experiment.toml").read_text()
    for shown in (done.output, text.replace("\n#   ", " ")):
        assert "the training starts from" in shown
        assert ("from random weights: --network none" in shown) is not named
    settings = tomllib.loads(text)
    training, unet = settings["train-acrlsd"], read_bundle(tmp_path / "exp" / "networks" / name).unet
    assert training["initial_weights"] == f"networks/{name}"
    assert training["learning_rate"] == 1e-4
    assert (training["num_fmaps"], training["fmap_inc_factor"]) == (unet.num_fmaps, unet.fmap_inc_factor)
    assert settings["experiment"]["mode"] == "mtlsd"
    assert "checkpoint" not in settings["predict"]


@pytest.mark.parametrize(
    "options", [("--network", "none"), ("--mode", "acrlsd"), ("--set", "train-acrlsd.num_fmaps=12")]
)
def test_a_training_starts_from_nothing_if_the_user_wants_that_or_another_network(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    path = _labelled(tmp_path / "v.zarr", FIB)
    done = _init(tmp_path / "exp", path, "--train", str(path), *options, "--dry-run")
    assert done.exit_code == 0, done.output
    settings = tomllib.loads(done.stdout)
    assert "initial_weights" not in settings["train-acrlsd"]
    assert settings["experiment"]["mode"] == "acrlsd"


@pytest.mark.parametrize(
    ("sizes_nm", "sections", "mode", "profile", "expected"),
    [
        ([FIB, (8, 8, 8)], 44, None, None, "fib-sem"),
        ([FIB], 44, "mtlsd", "general", "fib-sem"),
        ([FIB], 43, None, None, None),
        ([FIB], 100, "acrlsd", None, None),
        ([FIB], 100, None, "tiny", None),
        ([FIB], 100, None, "general-anisotropic", None),
        ([FIB, (5, 5, 5)], 100, None, None, None),
        ([SECTIONS, (40, 8, 8)], 20, None, "general-anisotropic", "serial-sections"),
        ([SECTIONS, FIB], 100, None, None, None),
    ],
)
def test_the_network_to_start_from_is_made_for_all_volumes_and_what_the_user_wants(
    sizes_nm: Any, sections: int, mode: str | None, profile: str | None, expected: str | None
) -> None:
    found = network_to_start_from(sizes_nm, sections, mode, profile)
    assert (found and found.place) == expected


def test_a_volume_without_cells_is_warned_of_with_a_picture(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(120, 136, (40, 60, 60), dtype=np.uint8)
    done = _init(tmp_path / "exp", _write(tmp_path / "v.zarr", noise, FIB), "--network", "fib-sem")
    assert done.exit_code == 0, done.output
    assert Image.open(tmp_path / "exp" / "network_check.png").size == (2 * 108, 2 * 108)


def test_init_leaves_nothing_of_a_network_that_does_not_fit(tmp_path: Path, volume: Any) -> None:
    path = _write(tmp_path / "v.zarr", volume[0], (100, 100, 100))
    done = _init(tmp_path / "exp", path, "--network", "fib-sem")
    assert done.exit_code == 76
    assert "does not fit the voxel size" in done.output
    assert not (tmp_path / "exp").exists()


def test_a_volume_without_labels_is_told_of_the_network_that_fits(tmp_path: Path, volume: Any) -> None:
    done = _init(tmp_path / "exp", _write(tmp_path / "v.zarr", volume[0], SECTIONS))
    assert done.exit_code == 2
    assert "--network serial-sections" in done.output


def test_the_list_names_each_network_with_scores_licence_and_hash() -> None:
    done = CliRunner().invoke(app, ["init", "--network", "list"])
    assert done.exit_code == 0
    for name in ("fib-sem", "serial-sections"):
        assert f"{name}: " in done.stdout
    for word in ("nm", "VOI", "licence", "sha256"):
        assert word in done.stdout


@pytest.mark.parametrize("words", [("--network", "list", "--json"), ("--json", "--network", "list")])
def test_the_list_is_json_wherever_json_is_asked_for(words: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, ["init", *words])
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert list(found) == ["fib-sem", "serial-sections"]
    assert all(card["scores"] and card["voxel_size_nm"] and card["weights_sha256"] for card in found.values())


def test_an_unknown_network_is_refused_with_those_that_exist(tmp_path: Path, volume: Any) -> None:
    done = _init(tmp_path / "exp", _write(tmp_path / "v.zarr", volume[0], FIB), "--network", "brain", "--json")
    assert done.exit_code == 66
    assert "fib-sem" in json.loads(done.stdout)["wanted"]


def test_a_folder_is_taken_before_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_network("fib-sem").comes_with_predict
    shutil.copytree(networks_of_predict() / "serial-sections", tmp_path / "fib-sem")
    monkeypatch.chdir(tmp_path)
    found = find_network("fib-sem")
    assert (found.comes_with_predict, found.voxel_size_nm) == (False, SECTIONS)
    assert found.place == str(tmp_path / "fib-sem"), "no name: predict takes names before folders"


def networks_of_predict() -> Path:
    """The folder of the networks in the package of predict, of this installation."""
    import lsdflow_predict

    return Path(lsdflow_predict.__file__).parent / "networks"
