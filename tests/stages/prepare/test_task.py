"""The stage from end to end: what it writes, what it refuses, how it resumes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tifffile
import zarr

from lsdflow_contract.arrays import LABELS, MASK, RAW
from lsdflow_contract.errors import BadData, Interrupted, OutputConflict, StageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import voronoi_labels
from lsdflow_prepare import volume_passes
from lsdflow_prepare.config import PrepareConfig
from lsdflow_prepare.stage import Prepare
from lsdflow_runtime.engine.block_task import BlockOutput
from lsdflow_runtime.engine.cluster import sole_coordinator
from lsdflow_runtime.io.volumes import open_volume

Make = Callable[..., Experiment]
Put = Callable[..., Path]


def made(experiment: Experiment, dataset: str, name: str = "a") -> np.ndarray:
    return zarr.open_array(experiment.layout.training_volume(name) / dataset, mode="r")[:]


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {str(p.relative_to(folder)): (p.stat().st_mtime_ns, p.read_bytes()) for p in files}


@pytest.mark.proves("DAT-07", "DAT-08")
def test_zarr_to_zarr_is_bit_identical_with_both_attribute_styles(
    container: Path, experiment: Make, raw: np.ndarray, ids: np.ndarray
) -> None:
    loaded = experiment()
    Prepare().run(loaded)
    np.testing.assert_array_equal(made(loaded, RAW.dataset), raw)
    np.testing.assert_array_equal(made(loaded, LABELS.dataset), ids)
    assert (made(loaded, MASK.dataset) == 1).all()
    folder = loaded.layout.training_volume("a") / RAW.dataset
    stored, attributes = (json.loads((folder / name).read_text()) for name in (".zarray", ".zattrs"))
    assert (stored["zarr_format"], stored["chunks"]) == (2, [64, 64, 64])
    assert stored["compressor"] == {"id": "zstd", "level": 1, "checksum": True}
    assert attributes["resolution"] == attributes["voxel_size"] == [8, 8, 8]
    assert attributes["offset"] == [80, 0, 0]
    assert attributes["axis_names"] == ["z", "y", "x"]
    assert attributes["lsdflow"]["written_by"]["stage"] == "prepare"
    volume = open_volume(loaded.layout.training_volume("a"), LABELS.dataset)
    np.testing.assert_array_equal(volume.read(volume.box), ids)


def test_manifest_names_outputs_counts_and_probability(container: Path, experiment: Make) -> None:
    loaded = experiment()
    Prepare().run(loaded)
    manifest = read_manifest(loaded.layout, "prepare")
    assert manifest.outputs == {"training/a": f"results/prepare/{manifest.inputs['training/a'][:8]}/a.zarr"}
    facts = manifest.facts["volumes"]["training/a"]
    assert (facts["neurons"], facts["probability"], facts["trained_fraction"]) == (8, 1.0, 1.0)
    assert facts["components"] == 8
    assert any("250" in text for text in manifest.facts["warnings"])


def test_target_with_truth_in_another_container(put: Put, experiment: Make, raw: np.ndarray, ids: np.ndarray) -> None:
    put("volumes/raw", raw)
    put("seg", ids.astype(np.int64), name="t.zarr")
    table = {"target": {"raw": "../a.zarr", "truth": "../t.zarr", "truth_dataset": "seg"}}
    loaded = experiment(table)
    Prepare().run(loaded)
    target = loaded.layout.target_volume
    np.testing.assert_array_equal(zarr.open_array(target / RAW.dataset, mode="r")[:], raw)
    np.testing.assert_array_equal(zarr.open_array(target / LABELS.dataset, mode="r")[:], ids)


def test_target_without_truth_has_raw_only(container: Path, experiment: Make) -> None:
    loaded = experiment({"target": {"raw": "../a.zarr"}})
    Prepare().run(loaded)
    assert not (loaded.layout.target_volume / LABELS.dataset).exists()


def test_hdf5_labels_smaller_than_raw_are_padded_with_ignore_only_when_asked(
    tmp_path: Path, experiment: Make, raw: np.ndarray, ids: np.ndarray
) -> None:
    """The CREMI padded files: labels have an offset in nm."""
    with h5py.File(tmp_path / "a.hdf", "w") as file:
        file["volumes/raw"] = raw
        file["volumes/labels/neuron_ids"] = ids[10:60, 20:50, 5:65]
        for name in ("volumes/raw", "volumes/labels/neuron_ids"):
            file[name].attrs["resolution"] = (40.0, 4.0, 4.0)
        file["volumes/labels/neuron_ids"].attrs["offset"] = (400.0, 80.0, 20.0)
    with pytest.raises(BadData, match="same region"):
        Prepare().run(experiment(raw="../a.hdf"))
    loaded = experiment(raw="../a.hdf", pad_labels=True)
    Prepare().run(loaded)
    inside = np.zeros(raw.shape, bool)
    inside[10:60, 20:50, 5:65] = True
    np.testing.assert_array_equal(made(loaded, MASK.dataset), inside)
    np.testing.assert_array_equal(made(loaded, LABELS.dataset), np.where(inside, ids, 0))


def test_padded_labels_that_end_before_the_last_block_have_no_missing_chunks_there(
    put: Put, experiment: Make, raw: np.ndarray, ids: np.ndarray
) -> None:
    """Labels of z = 20 to 30, in one chunk of 32; from there, the block of z >= 64 begins in a second chunk."""
    put("volumes/raw", raw)
    put("volumes/labels/neuron_ids", ids[20:30], offset=[80 + 20 * 8, 0, 0])
    loaded = experiment(pad_labels=True)
    Prepare().run(loaded)
    inside = np.zeros(raw.shape, bool)
    inside[20:30] = True
    np.testing.assert_array_equal(made(loaded, MASK.dataset), inside)
    np.testing.assert_array_equal(made(loaded, LABELS.dataset), np.where(inside, ids, 0))


@pytest.mark.proves("DAT-08")
def test_roi_and_ignore_regions_are_cut_where_they_say(
    container: Path, experiment: Make, raw: np.ndarray, ids: np.ndarray
) -> None:
    ignored = {"offset": "12, 0, 0 vox", "shape": "3, 66, 68 vox"}
    loaded = experiment(roi={"offset": "160, 40, 0 nm", "shape": "50, 40, 60 vox"}, ignore_regions=[ignored])
    Prepare().run(loaded)
    np.testing.assert_array_equal(made(loaded, RAW.dataset), raw[10:60, 5:45, :60])
    np.testing.assert_array_equal(made(loaded, LABELS.dataset), ids[10:60, 5:45, :60])
    mask = made(loaded, MASK.dataset)
    assert (mask[2:5] == 0).all()
    assert mask.mean() == pytest.approx(47 / 50)
    attributes = zarr.open_array(loaded.layout.training_volume("a") / RAW.dataset, mode="r").attrs
    assert attributes["offset"] == [160, 40, 0]


def test_json_roi_container_and_expansion_factor(container: Path, experiment: Make, raw: np.ndarray) -> None:
    content = {"container": "a.zarr", "offset": [160, 40, 0], "size": [400, 320, 480]}
    (container.parent / "a.json").write_text(json.dumps(content))
    loaded = experiment({"target": {"raw": "../a.json", "expansion_factor": 4.0}})
    Prepare().run(loaded)
    array = zarr.open_array(loaded.layout.target_volume / RAW.dataset, mode="r")
    np.testing.assert_array_equal(array[:], raw[10:60, 5:45, :60])
    assert array.attrs["voxel_size"] == [2, 2, 2]
    assert array.attrs["offset"] == [40, 10, 0]


def test_non_integer_voxel_size_is_kept(container: Path, experiment: Make) -> None:
    loaded = experiment(voxel_size="33.5, 8.25, 8.25 nm")
    Prepare().run(loaded)
    attributes = zarr.open_array(loaded.layout.training_volume("a") / RAW.dataset, mode="r").attrs
    assert attributes["resolution"] == [33.5, 8.25, 8.25]
    assert attributes["offset"] == [335, 0, 0]


@pytest.mark.proves("DAT-01")
def test_default_mask_of_the_container_is_used_and_none_turns_it_off(
    container: Path, put: Put, experiment: Make, ids: np.ndarray
) -> None:
    states = (np.arange(ids.size).reshape(ids.shape) % 3).astype(np.uint8)
    put("volumes/labels/mask", states)
    loaded = experiment()
    Prepare().run(loaded)
    np.testing.assert_array_equal(made(loaded, MASK.dataset), states)
    Prepare().run(experiment(mask="none"))
    assert (made(loaded, MASK.dataset) == 1).all()


def test_tiff_of_16_bits_with_typed_size_and_range(tmp_path: Path, put: Put, experiment: Make, ids: np.ndarray) -> None:
    raw16 = np.random.default_rng(0).integers(100, 4000, ids.shape, np.uint16)
    tifffile.imwrite(tmp_path / "a.tif", raw16, photometric="minisblack", compression="zlib")
    put("ids", ids, name="t.zarr", offset=None)
    table = {"raw": "../a.tif", "labels": "../t.zarr", "labels_dataset": "ids", "voxel_size": "8 nm"}
    loaded = experiment(**table, raw_range=[100, 4000])
    Prepare().run(loaded)
    wanted = np.rint((raw16.astype(float) - 100) / 3900 * 255)
    np.testing.assert_array_equal(made(loaded, RAW.dataset), wanted)


@pytest.mark.parametrize("bits", [1, 8])
def test_a_mask_in_a_tiff_trains_where_it_is_set(
    put: Put, experiment: Make, raw: np.ndarray, ids: np.ndarray, bits: int
) -> None:
    """tifffile and ImageJ save such masks as WhiteIsZero, which is about how they are shown."""
    container = put("volumes/raw", raw, offset=None)
    put("volumes/labels/neuron_ids", ids, offset=None)
    mask = np.zeros(raw.shape, bool if bits == 1 else np.uint8)
    mask[10:40] = 1
    tifffile.imwrite(container.parent / "mask.tif", mask, photometric="miniswhite")
    loaded = experiment(mask="../mask.tif", voxel_size="8 nm", mask_dataset="")
    Prepare().run(loaded)
    np.testing.assert_array_equal(made(loaded, MASK.dataset), mask)


def test_chosen_channel_of_several(put: Put, experiment: Make, raw: np.ndarray) -> None:
    zarr.create_array(put("x", raw) / "two", data=np.stack([raw, 255 - raw]), attributes={"resolution": [8, 8, 8]})
    loaded = experiment({"target": {"raw": "../a.zarr", "raw_dataset": "two", "raw_channel": 1}})
    Prepare().run(loaded)
    np.testing.assert_array_equal(zarr.open_array(loaded.layout.target_volume / RAW.dataset, mode="r")[:], 255 - raw)


def damaged(kind: str, put: Put, raw: np.ndarray, ids: np.ndarray) -> dict[str, Any]:
    """One fault in an otherwise good volume; returns what the table says besides."""
    labels = "volumes/labels/neuron_ids"
    floats = raw.astype(np.float32) / 255
    if kind == "NaN":
        floats[60, 2, 3] = np.nan
        put("volumes/raw", floats)
    elif kind == "float labels":
        put(labels, ids.astype(np.float64))
    elif kind == "negative labels":
        put(labels, ids.astype(np.int64) * -1)
    elif kind == "one negative label":
        put(labels, np.where(ids == ids.max(), -1, ids.astype(np.int64)))
    elif kind == "16 bits":
        put("volumes/raw", raw.astype(np.uint16) * 16)
    elif kind == "no voxel size":
        put("volumes/raw", raw, resolution=None)
    elif kind == "conflict":
        put("volumes/raw", raw, voxel_size=[1, 1, 1])
    elif kind == "shape":
        put(labels, ids[:-1])
    elif kind == "offset":
        put(labels, ids, offset=[84, 0, 0])
    elif kind == "mask misaligned":
        put("volumes/labels/mask", np.ones(ids.shape, np.uint8), offset=[88, 0, 0])
    elif kind == "mask values":
        put("volumes/labels/mask", np.full(ids.shape, 255, np.uint8))
    elif kind == "missing chunk":
        (put("volumes/raw", raw) / "volumes/raw/1.1.1").unlink()
    elif kind == "cut chunk":
        (put("volumes/raw", raw) / "volumes/raw/1.1.1").write_bytes(b"123")
    elif kind == "channels":
        shutil.rmtree(put("volumes/raw", raw) / "volumes/raw")
        attributes = {"resolution": [8, 8, 8], "offset": [80, 0, 0]}
        where = put("volumes/x", raw) / "volumes/raw"
        zarr.create_array(where, data=np.stack([raw, raw]), zarr_format=2, attributes=attributes)
    tables: dict[str, dict[str, Any]] = {
        "no labels": {"labels_dataset": "volumes/labels/ids"},
        "no raw": {"raw": "../b.zarr"},
        "no mask": {"mask_dataset": "volumes/labels/masks"},
        "empty roi": {"roi": {"offset": "0 vox", "shape": "0 vox"}},
        "roi outside": {"roi": {"offset": "60 vox", "shape": "20 vox"}},
        "same array": {"labels": "../a.zarr", "labels_dataset": "volumes/raw"},
    }
    return tables.get(kind, {})


REFUSALS = {
    "NaN": (65, "NaN"),
    "float labels": (65, "labels are float64"),
    "negative labels": (65, "Export the labels again as uint64"),
    "one negative label": (65, "ignore_ids = [-1]"),
    "16 bits": (65, "raw_range = [144, "),
    "no voxel size": (65, '(name = "a") voxel_size = "40, 8, 8 nm"'),
    "conflict": (65, "(1, 1, 1) nm"),
    "shape": (65, "(69, 66, 68)"),
    "offset": (65, "nearest that fits"),
    "mask misaligned": (65, "same region"),
    "mask values": (65, "mask_train_value = 255"),
    "missing chunk": (65, "sparse = true"),
    "cut chunk": (65, "re-copy"),
    "channels": (65, "raw_channel"),
    "no labels": (66, "volumes/labels/neuron_ids"),
    "no raw": (66, "did you mean"),
    "no mask": (66, "volumes/labels/masks"),
    "empty roi": (78, "empty"),
    "roi outside": (78, "leaves the volume"),
    "same array": (78, "same array"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_bad_input_is_refused_with_its_code_and_nothing_is_written(
    kind: str, container: Path, put: Put, experiment: Make, raw: np.ndarray, ids: np.ndarray
) -> None:
    code, text = REFUSALS[kind]
    loaded = experiment(**damaged(kind, put, raw, ids))
    before = snapshot(container.parent)
    problems = Prepare().validate(loaded)
    assert [problem.exit_code for problem in problems][:1] == [code], problems
    assert text in problems[0].message()
    with pytest.raises(StageError) as caught:
        Prepare().run(loaded)
    assert caught.value.exit_code == code
    assert snapshot(container.parent) == before


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"probability": 0.9}, "must sum to 1"),
        ({"raw_rnage": [0, 1]}, "raw_rnage"),
        ({"raw_range": [7, 7]}, "two values that differ"),
        ({"voxel_size": "8"}, "unit"),
        ({"voxel_size": "8 vox"}, "voxel_size needs a unit of length"),
        ({"resample_to": "2 vox"}, "resample_to needs a unit of length"),
        ({"resample_to": "8, 0, 8 nm"}, "resample_to needs .* positive"),
        ({"expansion_factor": 0}, "greater than 0"),
        ({"name": "../a"}, "pattern"),
        ({"ignore_ids": [1], "background_ids": [1]}, "both"),
    ],
)
def test_a_wrong_table_is_a_config_error(experiment: Make, options: dict[str, Any], text: str) -> None:
    with pytest.raises(StageError, match=text) as caught:
        experiment(**options).table("prepare", PrepareConfig)
    assert caught.value.exit_code == 78


def test_validate_lists_all_problems_at_once(
    container: Path, put: Put, experiment: Make, raw: np.ndarray, ids: np.ndarray
) -> None:
    put("volumes/raw", raw, name="b.zarr", resolution=None)
    put("volumes/labels/neuron_ids", ids.astype(np.float32), name="b.zarr")
    volumes = [{"name": "a", "raw": "../a.zarr"}, {"name": "b", "raw": "../b.zarr"}]
    table = {"training": volumes, "target": {"raw": "../c.zarr"}}
    codes = [problem.exit_code for problem in Prepare().validate(experiment(table))]
    assert codes == [65, 65, 66]


def test_sparse_source_may_lack_chunks(container: Path, experiment: Make, raw: np.ndarray) -> None:
    (container / "volumes/raw/1.1.1").unlink()
    metadata = container / "volumes/raw/.zarray"
    metadata.write_text(json.dumps(json.loads(metadata.read_text()) | {"fill_value": 7}))
    loaded = experiment(sparse=True)
    Prepare().run(loaded)
    wanted = raw.copy()
    wanted[32:64, 32:64, 32:64] = 7
    assert "1 chunks do not exist" in str(read_manifest(loaded.layout, "prepare").facts["warnings"])
    np.testing.assert_array_equal(made(loaded, RAW.dataset), wanted)


def test_second_run_does_nothing_and_changes_nothing_of_the_arrays(container: Path, experiment: Make) -> None:
    loaded = experiment()
    Prepare().run(loaded)
    identity = read_manifest(loaded.layout, "prepare").identity
    before = snapshot(loaded.layout.training_volume("a"))
    Prepare().run(loaded)
    assert snapshot(loaded.layout.training_volume("a")) == before
    assert read_manifest(loaded.layout, "prepare").identity == identity


@pytest.mark.parametrize("blocks", [1, 3, 4, 7])
def test_an_interrupted_run_resumes_to_the_same_bits(
    blocks: int, container: Path, experiment: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(volume_passes, "block_shape", lambda *_: (64, 64, 128))
    loaded = experiment()
    Prepare().run(loaded)
    wanted = {d.dataset: made(loaded, d.dataset) for d in (RAW, LABELS, MASK)}
    facts = read_manifest(loaded.layout, "prepare").facts["volumes"]
    (tmp_path / "exp").rename(tmp_path / "first")
    loaded = experiment()
    done: list[int] = []
    make_block = volume_passes.make_block

    def stop(*given: Any) -> BlockOutput:
        if len(done) == blocks:
            raise Interrupted("stopped")
        done.append(1)
        return make_block(*given)

    monkeypatch.setattr(volume_passes, "make_block", stop)
    with pytest.raises(Interrupted):
        Prepare().run(loaded)
    assert not loaded.layout.manifest("prepare").exists()
    assert Prepare().status(loaded) == {"finished": False, "training a": "begun"}
    assert Prepare().plan(loaded)["training/a"]["done"] is False
    again: list[object] = []
    monkeypatch.setattr(volume_passes, "make_block", lambda *given: (again.append(given), make_block(*given))[1])
    Prepare().run(loaded)
    assert len(again) == 8 - blocks
    for dataset, values in wanted.items():
        np.testing.assert_array_equal(made(loaded, dataset), values)
    assert read_manifest(loaded.layout, "prepare").facts["volumes"] == facts


def test_other_parameters_make_another_volume_beside_the_first(
    container: Path, experiment: Make, raw: np.ndarray
) -> None:
    Prepare().run(experiment())
    first, changed = experiment().layout.training_volume("a"), experiment(raw_range=[0, 100])
    before = snapshot(first)
    assert Prepare().validate(changed) == []
    Prepare().run(changed)
    np.testing.assert_array_equal(made(changed, RAW.dataset), np.rint(np.clip(raw / 100, 0, 1) * 255))
    assert snapshot(first) == before
    Prepare().run(experiment())
    assert experiment().layout.training_volume("a") == first


def test_arrays_of_somebody_else_are_never_replaced(container: Path, experiment: Make, raw: np.ndarray) -> None:
    loaded = experiment()
    Prepare().run(loaded)
    folder = loaded.layout.training_volume("a")
    shutil.rmtree(folder)
    zarr.create_array(folder / RAW.dataset, data=raw, zarr_format=2)
    with pytest.raises(OutputConflict, match="another array"):
        Prepare().run(loaded)


def test_arrays_of_somebody_else_are_refused_before_any_volume_is_written(
    container: Path, experiment: Make, raw: np.ndarray
) -> None:
    volume = {"raw": "../a.zarr"}
    loaded = experiment({"training": [{"name": "a", **volume}], "target": volume})
    Prepare().run(loaded)
    first, second = loaded.layout.training_volume("a"), loaded.layout.target_volume
    shutil.rmtree(first.parent)
    shutil.rmtree(second)
    zarr.create_array(second / RAW.dataset, data=raw, zarr_format=2)
    loaded.layout.manifest("prepare").unlink()
    with pytest.raises(OutputConflict, match="another array"):
        Prepare().run(loaded)
    assert not first.exists()


def test_second_prepare_at_the_same_time_is_refused(container: Path, experiment: Make) -> None:
    loaded = experiment()
    with sole_coordinator("prepare", loaded), pytest.raises(OutputConflict, match="prepare"):
        Prepare().run(loaded)


def test_volumes_divided_into_blocks_are_the_same(
    container: Path, experiment: Make, monkeypatch: pytest.MonkeyPatch, raw: np.ndarray, ids: np.ndarray, tmp_path: Path
) -> None:
    """Also their statistics; only components are not counted, because blocks do not cover whole planes."""
    ignored = {"offset": "12, 0, 0 vox", "shape": "3, 66, 68 vox"}
    options = {"raw_range": [10, 100], "ignore_regions": [ignored]}
    Prepare().run(experiment(**options))
    whole = read_manifest(experiment(**options).layout, "prepare").facts["volumes"]["training/a"]
    (tmp_path / "exp").rename(tmp_path / "whole")
    monkeypatch.setattr(volume_passes, "block_shape", lambda *_: (64, 64, 64))
    monkeypatch.setattr(volume_passes, "BLOCKS_FOR_WORKERS", 100)
    loaded = experiment(**options)
    Prepare().run(loaded)
    np.testing.assert_array_equal(made(loaded, RAW.dataset), np.rint((np.clip(raw, 10, 100) - 10.0) / 90 * 255))
    np.testing.assert_array_equal(made(loaded, LABELS.dataset)[20:], ids[20:])
    divided = read_manifest(loaded.layout, "prepare").facts["volumes"]["training/a"]
    assert whole["raw_clipped_voxels"] == np.count_nonzero((raw < 10) | (raw > 100)) > 0
    assert whole["labelled_voxels"] == 67 * 66 * 68
    assert divided == {name: fact for name, fact in whole.items() if name not in ("components", "identity")} | {
        "identity": divided["identity"]
    }


def test_workers_write_the_same_volume_as_one_process(put: Put, experiment: Make, tmp_path: Path) -> None:
    shape = (8 * 64 + 3, 10, 12)
    put("volumes/raw", np.random.default_rng(0).integers(0, 256, shape, np.uint8))
    put("volumes/labels/neuron_ids", voronoi_labels(shape, 9).astype(np.uint64))
    manifests = []
    for runner in ("serial", "daisy"):
        loaded = load_experiment(experiment().path, [f"compute.runner={runner}"])
        Prepare().run(loaded)
        assert Prepare().verify(loaded)["blocks_read_back"] == {"training/a": 18}
        manifests.append(read_manifest(loaded.layout, "prepare"))
        (tmp_path / "exp").rename(tmp_path / runner)
    one, several = manifests
    assert (several.identity, several.facts["volumes"]) == (one.identity, one.facts["volumes"])
    assert one.facts["volumes"]["training/a"]["components"] == 9


def test_plan_and_status_report_shape_and_progress(container: Path, experiment: Make) -> None:
    loaded = experiment()
    assert Prepare().plan(loaded)["training/a"]["shape_vox"] == [70, 66, 68]
    assert Prepare().status(loaded) == {"finished": False, "training a": "not begun"}
    Prepare().run(loaded)
    assert Prepare().plan(loaded)["training/a"]["done"] is True
    assert Prepare().status(loaded) == {"finished": True, "training a": "made"}


def test_zarr_2_and_gunpowder_read_what_was_written(
    container: Path, experiment: Make, raw: np.ndarray, ids: np.ndarray
) -> None:
    """The training environment has another zarr: read there, compare here."""
    default = Path(__file__).resolve().parents[3] / ".venv" / "training" / "bin" / "python"
    python = Path(os.environ.get("LSDFLOW_TRAINING_PYTHON", default))
    if not python.exists():
        pytest.skip("the training environment is not installed (LSDFLOW_TRAINING_PYTHON)")
    loaded = experiment()
    Prepare().run(loaded)
    result = container.parent / "read.npz"
    script = """
import sys, numpy, gunpowder as gp, zarr
keys = {gp.ArrayKey(n.upper()): "volumes/" + n for n in ("raw", "labels/neuron_ids", "labels/mask")}
source = gp.ZarrSource(sys.argv[1], keys)
with gp.build(source):
    request = gp.BatchRequest({key: gp.ArraySpec(roi=source.spec[key].roi) for key in keys})
    batch = source.request_batch(request)
found = {name.split("/")[-1]: batch[key].data for key, name in keys.items()}
size = [list(batch[key].spec.voxel_size) + list(batch[key].spec.roi.offset) for key in keys]
assert zarr.__version__.startswith("2.")
numpy.savez(sys.argv[2], place=size, **found)
"""
    subprocess.run([python, "-c", script, loaded.layout.training_volume("a"), result], check=True, timeout=600)
    with np.load(result) as found:
        np.testing.assert_array_equal(found["raw"], raw)
        np.testing.assert_array_equal(found["neuron_ids"], ids)
        assert (found["mask"] == 1).all()
        assert found["place"].tolist() == [[8, 8, 8, 80, 0, 0]] * 3


def test_real_training_volume(shared_data: Path, experiment: Make) -> None:
    source = shared_data / "gala_mini" / "train.zarr"
    loaded = experiment({"training": [{"name": "a", "raw": str(source)}]})
    assert Prepare().validate(loaded) == []
    Prepare().run(loaded)
    for spec in (RAW, LABELS):
        stored = zarr.open_array(source / spec.dataset, mode="r")[:]
        np.testing.assert_array_equal(made(loaded, spec.dataset), stored)
    facts = read_manifest(loaded.layout, "prepare").facts["volumes"]["training/a"]
    assert facts["neurons"] == 87
