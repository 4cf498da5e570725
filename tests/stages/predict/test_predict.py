"""The stage on a tiny target: the same bits in any blocks, and equal to one evaluation of the whole volume."""

from __future__ import annotations

import math

import numpy as np
import pytest

from lsdflow_contract.arrays import dequantise_u8, quantise_u8
from lsdflow_contract.checkpoint import Calibration, bundle_folder
from lsdflow_network.inference import load_predictor, raw_to_network
from lsdflow_predict.stage import Predict

TILES_OF_4 = 'predict.tile_shape="4 vox"'
BLOCKS_OF_8 = 'predict.block_shape="8 vox"'  # at least one tile: 8, 8, 10
AFFINITY_CONTEXT = 8
LSD_CONTEXT = (6, 8, 8)
# Another tile shape may round a float to the other side of a grey level; in LSDs this can move an affinity as well.
ROUNDING_LEVELS = 1


def _one_evaluation(experiment, mode="reflect") -> np.ndarray:
    """Affinities of the whole volume from one padded array and one run of each network: slow, obviously right."""
    shape = experiment.raw.shape
    affinity = load_predictor(bundle_folder(experiment.layout.checkpoints("train-acrlsd"), 7), precision="float32")
    inner = tuple(slice(c, -c) for c in LSD_CONTEXT)
    raw, lsds = raw_to_network(_padded(experiment, mode)[inner]), dequantise_u8(_lsds(experiment, mode))
    affs = affinity.predict(np.concatenate([raw[None], lsds]))["affs"]
    return quantise_u8(affs)[:, : shape[0], : shape[1], : shape[2]]


def _lsds(experiment, mode="reflect") -> np.ndarray:
    """LSDs of the volume and of what the affinity network sees around it, from one run of the LSD network."""
    lsd = load_predictor(bundle_folder(experiment.layout.checkpoints("train-lsd"), 3), precision="float32")
    return quantise_u8(lsd.predict(raw_to_network(_padded(experiment, mode)))["lsds"])


def _padded(experiment, mode) -> np.ndarray:
    spare = [2 * math.ceil(n / 2) + 8 - n for n in experiment.raw.shape]
    before = [AFFINITY_CONTEXT + c for c in LSD_CONTEXT]
    return np.pad(experiment.raw, [(b, b + s) for b, s in zip(before, spare, strict=True)], mode=mode)


def _levels_apart(a, b) -> int:
    return int(np.abs(a.astype(int) - b.astype(int)).max())


@pytest.mark.proves("PRD-01")
def test_blocks_equal_one_evaluation_of_the_mirrored_volume(make_experiment):
    experiment = make_experiment()
    affs = experiment.affinities()
    assert affs.shape == (3, 19, 22, 27)
    assert affs.std() > 3
    assert _levels_apart(affs, _one_evaluation(experiment)) <= ROUNDING_LEVELS


def test_outside_can_be_zero_instead_of_mirrored(make_experiment):
    experiment = make_experiment()
    zero = experiment.affinities('predict.outside="zero"')
    assert _levels_apart(zero, _one_evaluation(experiment, "constant")) <= ROUNDING_LEVELS
    assert not np.array_equal(zero, experiment.affinities())


@pytest.mark.proves("PRD-03")
@pytest.mark.parametrize(
    "setting",
    [BLOCKS_OF_8, 'predict.block_shape="16, 30, 12 vox"', "predict.lsd_cache_mb=0", "compute.threads_per_worker=3"],
)
def test_neither_blocks_nor_cache_nor_threads_change_a_bit(make_experiment, setting):
    experiment = make_experiment()
    reference = experiment.affinities()
    assert np.array_equal(experiment.affinities(setting), reference)


@pytest.mark.proves("NET-08")
def test_tile_shape_changes_rounding_only(make_experiment):
    experiment = make_experiment()
    reference = experiment.affinities()
    assert _levels_apart(experiment.affinities(TILES_OF_4), reference) <= ROUNDING_LEVELS


@pytest.mark.proves("PRD-09")
@pytest.mark.parametrize("settings", [(), (BLOCKS_OF_8,)])
def test_stored_lsds_are_those_of_one_evaluation_and_change_no_affinity(make_experiment, settings):
    experiment = make_experiment()
    reference = experiment.affinities()
    manifest = experiment.run("predict.store_lsds=true", *settings)
    assert np.array_equal(experiment.values(), reference)
    target, seen = (slice(AFFINITY_CONTEXT, AFFINITY_CONTEXT + n) for n in experiment.raw.shape), _lsds(experiment)
    assert _levels_apart(experiment.values("lsds"), seen[(slice(None), *target)]) <= ROUNDING_LEVELS
    assert manifest.outputs.keys() == {"affs", "lsds"}
    assert manifest.config["resolved"]["lsd_sigma_nm"] == [80.0] * 3


@pytest.mark.parametrize(
    ("setting", "key"), [("predict.store_lsds=false", "297e0c24"), ("predict.store_lsds=true", "52154c96")]
)
def test_results_keep_the_keys_that_they_had_before_two_passes_went(make_experiment, setting, key):
    assert Predict().last_pass(make_experiment().experiment(setting)).key.startswith(key)


def test_the_thresholds_of_the_network_are_in_the_manifest(make_experiment, micro_bundle):
    assert make_experiment("mtlsd").run().config["resolved"]["calibration"] is None
    experiment = make_experiment("affinities")
    calibration = Calibration(thresholds={"mean": 0.3}, voxels=9, on="other volumes")
    micro_bundle(experiment.layout, "affinities", 7, calibration=calibration)
    found = experiment.run("predict.checkpoint=7").config["resolved"]["calibration"]
    assert Calibration.model_validate(found) == calibration


@pytest.mark.proves("PRD-03")
def test_daisy_workers_give_the_bits_of_the_serial_runner(make_experiment):
    experiment = make_experiment()
    serial = experiment.affinities()
    assert np.array_equal(experiment.affinities(BLOCKS_OF_8, 'compute.runner="daisy"'), serial)


@pytest.mark.parametrize("shape", [(5, 6, 7), (1, 9, 9), (8, 10, 12), (9, 11, 13)])
def test_small_and_odd_volumes(make_experiment, shape):
    experiment = make_experiment(shape=shape)
    affs = experiment.affinities()
    assert affs.shape == (3, *shape)
    assert _levels_apart(affs, _one_evaluation(experiment)) <= ROUNDING_LEVELS


@pytest.mark.proves("PRD-01")
@pytest.mark.parametrize("begin", [(4, 6, 8), (5, 3, 9)])
def test_a_region_of_interest_is_a_crop_of_the_whole(make_experiment, begin):
    experiment = make_experiment()
    whole = experiment.affinities()
    roi = f'predict.roi={{begin="{begin[0]}, {begin[1]}, {begin[2]} vox", shape="110, 88, 96 nm"}}'
    cropped = experiment.affinities(roi)
    z, y, x = (slice(b, b + n) for b, n in zip(begin, (11, 11, 12), strict=True))
    assert cropped.shape == (3, 11, 11, 12)
    assert _levels_apart(cropped, whole[:, z, y, x]) <= ROUNDING_LEVELS
    assert experiment.volume().geometry.offset_nm == (100.0 + 10 * begin[0], 8.0 * begin[1], 16.0 + 8 * begin[2])


def test_outside_the_mask_is_zero_and_inside_nothing_changes(make_experiment):
    experiment = make_experiment()
    whole = experiment.affinities(BLOCKS_OF_8)
    mask = np.zeros((19, 22, 27), np.uint8)
    mask[3:9, 2:9, 20:] = 1
    experiment.mask(mask)
    manifest = experiment.run(BLOCKS_OF_8, 'predict.mask="volumes/mask"')
    assert np.array_equal(experiment.values(), whole * mask)
    assert 0 < manifest.facts["totals"]["blocks_outside_mask"] < manifest.facts["blocks"]


@pytest.mark.parametrize("mode", ["mtlsd", "affinities"])
def test_one_network_gives_everything(make_experiment, mode):
    experiment = make_experiment(mode)
    affs = experiment.affinities()
    assert _levels_apart(experiment.affinities(TILES_OF_4), affs) <= ROUNDING_LEVELS
    assert affs.shape == (3, 19, 22, 27)
    if mode == "mtlsd":
        assert np.array_equal(experiment.affinities("predict.store_lsds=true"), affs)
        assert experiment.values("lsds").shape == (10, 19, 22, 27)


def test_the_manifest_counts_the_lsd_tiles(make_experiment):
    experiment = make_experiment()
    once = experiment.run().facts["totals"]["lsd_tiles"]
    assert experiment.run(BLOCKS_OF_8, "predict.lsd_cache_mb=0").facts["totals"]["lsd_tiles"] > once > 0


def test_a_small_target_has_several_blocks_that_workers_share(make_experiment):
    task = Predict().last_pass(make_experiment("mtlsd").experiment())
    assert min(task.plan.grid_shape) >= 2


def test_a_second_run_does_nothing(make_experiment):
    experiment = make_experiment()
    first = experiment.run(BLOCKS_OF_8)
    chunks = {p: p.stat().st_mtime_ns for p in experiment.layout.results.rglob("*") if p.is_file()}
    second = experiment.run(BLOCKS_OF_8)
    assert second == first
    assert {p: p.stat().st_mtime_ns for p in chunks} == chunks


@pytest.mark.proves("PRD-07")
def test_results_of_other_settings_are_kept_and_used_again(make_experiment):
    experiment = make_experiment()
    reference, first = experiment.affinities(), experiment.run()
    other = experiment.run("predict.outside=zero")
    assert other.outputs["affs"] != first.outputs["affs"]
    assert not np.array_equal(experiment.values(), reference)
    assert experiment.run() == first
    assert np.array_equal(experiment.values(), reference)


@pytest.mark.proves("PRD-08")
def test_a_run_resumes_with_the_missing_blocks(make_experiment):
    experiment = make_experiment()
    reference = experiment.affinities(BLOCKS_OF_8)
    Predict().last_pass(experiment.experiment(BLOCKS_OF_8)).marks.remove(2)
    experiment.layout.manifest("predict").unlink()
    manifest = experiment.run(BLOCKS_OF_8)
    assert manifest.facts["blocks_executed"] == 1
    assert np.array_equal(experiment.values(), reference)


def test_plan_and_status_report_blocks_and_time(make_experiment):
    experiment = make_experiment()
    planned = Predict().plan(experiment.experiment(BLOCKS_OF_8))
    blocks = zip((19, 22, 27), planned["block_shape_vox"], strict=True)
    assert planned["blocks"] == math.prod(math.ceil(n / b) for n, b in blocks) > 8
    assert planned["lsd_tiles_per_affinity_tile"] > 1
    assert planned["blocks_at_once"] == 1
    assert "seconds_per_block" not in planned
    experiment.run(BLOCKS_OF_8)
    assert Predict().plan(experiment.experiment(BLOCKS_OF_8))["seconds_per_block"] > 0
    assert Predict().status(experiment.experiment(BLOCKS_OF_8))["finished"]
