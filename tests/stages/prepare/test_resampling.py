"""A resampled volume is what a slow loop over its voxels gives, at its place in the world, whatever the blocks."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_contract.arrays import LABELS, MASK, RAW
from lsdflow_contract.errors import BadData, ConfigError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.manifest import read_manifest
from lsdflow_prepare import volume_passes
from lsdflow_prepare.config import TargetVolume
from lsdflow_prepare.resampling import Factors, factors_to, resampled_grey, resampled_ids
from lsdflow_prepare.stage import Prepare, look
from lsdflow_prepare.volume_passes import MEMORY_BYTES, chunk_edge
from lsdflow_runtime.blocks import pieces

Make = Callable[..., Experiment]
Put = Callable[..., Path]
CASES = [
    Factors((2, 2, 2)),
    Factors((1, 2, 2)),
    Factors((3, 1, 4)),
    Factors(finer=(2, 2, 2)),
    Factors(finer=(3, 1, 4)),
    Factors((1, 2, 1), (5, 1, 1)),
    Factors((2, 1, 3), (1, 3, 1)),
]


def weights(voxel: int, length: int, coarser: int, finer: int) -> dict[int, Fraction]:
    """The source voxels of one output voxel along an axis of `length` source voxels, and the share of each."""
    if coarser > 1:
        return {voxel * coarser + i: Fraction(1, coarser) for i in range(coarser)}
    centre = Fraction(2 * voxel + 1, 2 * finer) - Fraction(1, 2)
    below = centre.numerator // centre.denominator
    shares: dict[int, Fraction] = {}
    for source, share in ((below, 1 - (centre - below)), (below + 1, centre - below)):
        inside = min(max(source, 0), length - 1)
        shares[inside] = shares.get(inside, Fraction(0)) + share
    return shares


def slow_grey(values: np.ndarray, factors: Factors) -> np.ndarray:
    """Every output voxel for itself, in fractions."""
    made = np.zeros(factors.output_shape(values.shape), np.uint8)
    for voxel in np.ndindex(made.shape):
        axes = [weights(*given) for given in zip(voxel, values.shape, *factors, strict=True)]
        total = Fraction(0)
        for source in itertools.product(*axes):
            share = axes[0][source[0]] * axes[1][source[1]] * axes[2][source[2]]
            total += share * int(values[source])
        made[voxel] = int(total + Fraction(1, 2))
    return made


def slow_ids(values: np.ndarray, factors: Factors) -> np.ndarray:
    """Every output voxel for itself: voxel f // 2 of its cell, or the voxel that it lies in."""
    made = np.zeros(factors.output_shape(values.shape), values.dtype)
    for voxel in np.ndindex(made.shape):
        places = zip(voxel, *factors, strict=True)
        made[voxel] = values[tuple(v * c + c // 2 if c > 1 else v // f for v, c, f in places)]
    return made


def source(factors: Factors, cells: tuple[int, int, int] = (3, 4, 5), seed: int = 0) -> np.ndarray:
    shape = tuple(n * c for n, c in zip(cells, factors.coarser, strict=True))
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


@pytest.mark.parametrize("block", [(100, 100, 100), (1, 1, 1), (2, 3, 4), (5, 1, 7)])
@pytest.mark.parametrize("factors", CASES)
def test_it_is_the_slow_reference_for_every_division_into_blocks(factors: Factors, block: tuple) -> None:
    values = source(factors)
    whole, made = Box((0, 0, 0), values.shape), factors.output_shape(values.shape)
    grey, ids = np.zeros(made, np.uint8), np.zeros(made, np.uint8)
    for piece in pieces(Box((0, 0, 0), made), block):
        cells = factors.cells(piece)
        read = cells.grow(factors.neighbours_vox).intersect(whole)
        grey[piece.slices()] = resampled_grey(values[read.slices()], read.begin_vox, piece, factors)
        ids[piece.slices()] = resampled_ids(values[cells.slices()], cells.begin_vox, piece, factors)
    np.testing.assert_array_equal(grey, slow_grey(values, factors))
    np.testing.assert_array_equal(ids, slow_ids(values, factors))


@pytest.mark.parametrize(
    "factors", [Factors((100, 100, 1)), Factors(finer=(100, 100, 1)), Factors((64, 1, 1), (1, 99, 3))]
)
@pytest.mark.parametrize("grey", [0, 255])
def test_sums_of_the_largest_cells_do_not_overflow(factors: Factors, grey: int) -> None:
    values = np.full(tuple(2 * c for c in factors.coarser), grey, np.uint8)
    made = factors.output_shape(values.shape)
    assert (resampled_grey(values, (0, 0, 0), Box((0, 0, 0), made), factors) == grey).all()


@given(st.integers(1, 6), st.integers(1, 6), st.booleans(), st.integers(1, 40), st.integers(1, 9))
def test_every_source_voxel_belongs_to_one_block(times: int, cells: int, finer: bool, block: int, first: int) -> None:
    factors = Factors(finer=(1, 1, times)) if finer else Factors((1, 1, times))
    length = factors.output_shape((1, 1, cells * times))[2]
    found = [factors.own(piece) for piece in pieces(Box((0, 0, 0), (1, 1, length)), (1, 1, block))]
    voxels = [x for own in found for x in range(own.begin_vox[2], own.end_vox[2])]
    assert voxels == list(range(cells * times))


@pytest.mark.parametrize(
    ("wanted", "factors"),
    [
        ((40.0, 8.0, 8.0), Factors((1, 2, 2))),
        ((8.0, 8.0, 1.0), Factors((1, 2, 1), (5, 1, 4))),
        ((40.0, 4.0000001, 4.0), Factors()),
        ((13.333333, 4.0, 4.0), Factors(finer=(3, 1, 1))),
        ((4000.0, 0.04, 4.0), Factors((100, 1, 1), (1, 100, 1))),
    ],
)
def test_factors_are_whole_multiples_and_whole_fractions(wanted: tuple, factors: Factors) -> None:
    assert factors_to((40.0, 4.0, 4.0), wanted, "resample_to", "raw") == factors


@pytest.mark.parametrize(
    ("wanted", "fix"),
    [
        ((40.0, 6.1, 4.0), "40, 8, 4"),
        ((16.0, 4.0, 4.0), "20, 4, 4"),
        ((40.0, 4.0001, 4.0), "40, 4, 4"),
        ((30.0, 4.0, 3.0), "40, 4, 4"),
        ((40.0, 404.0, 4.0), "40, 400, 4"),
        ((40.0, 1e300, 1e-300), "40, 400, 0.04"),
    ],
)
def test_another_size_is_refused_with_the_nearest_that_fits(wanted: tuple, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        factors_to((40.0, 4.0, 4.0), wanted, "prepare.target.resample_to", "raw.zarr")
    error = caught.value
    assert (error.where, error.fix) == ("raw.zarr", f'nearest that fits: resample_to = "{fix} nm"')
    assert "prepare.target.resample_to" in error.what
    assert "n or 1/n times 40, 4, 4 nm" in error.wanted


def test_what_is_read_for_one_chunk_fits_into_memory() -> None:
    assert (chunk_edge(20), chunk_edge(40), chunk_edge(40 * 8), chunk_edge(20 * 64)) == (64,) * 4
    assert (chunk_edge(40 * 64), chunk_edge(40 * 8**3)) == (32, 16)
    assert chunk_edge(40 * 100**3) ** 3 * 40 * 100**3 <= MEMORY_BYTES


def test_blocks_are_chosen_by_the_source_voxels_that_they_read(
    container: Path, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Source chunks of 32^3 are 16^3 of the result; 8 source voxels are read for each of its voxels."""
    monkeypatch.setattr(volume_passes, "CHUNK_VOX", 8)
    loaded = experiment(resample_to="16 nm")
    assert [task.plan.write_shape_vox for task in Prepare().passes(loaded)] == [(16, 40, 40)] * 2
    monkeypatch.setattr(volume_passes, "MEMORY_BYTES", 8**3 * 8 * 40)
    assert [task.plan.write_shape_vox for task in Prepare().passes(loaded)] == [(8, 8, 16), (8, 8, 8)]


def test_a_volume_that_is_not_resampled_has_the_parameters_of_its_key_as_before() -> None:
    assert "resample_to" not in TargetVolume(raw="a").model_dump(mode="json")
    made = TargetVolume.model_validate({"raw": "a", "resample_to": "8, 8, 8 nm"}).model_dump(mode="json")
    assert made["resample_to"] == "8 nm"


def made(experiment: Experiment, dataset: str) -> zarr.Array[Any]:
    return zarr.open_array(experiment.layout.training_volume("a") / dataset, mode="r")


def prepared(experiment: Experiment) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The arrays of the training volume, and its facts."""
    Prepare().run(experiment)
    facts = read_manifest(experiment.layout, "prepare").facts["volumes"]["training/a"]
    return {spec.dataset: made(experiment, spec.dataset)[:] for spec in (RAW, LABELS, MASK)}, facts


@pytest.mark.parametrize(
    ("wanted", "factors"),
    [("40, 16, 16 nm", Factors((1, 2, 2))), ("20, 24, 4 nm", Factors((1, 3, 1), (2, 1, 2)))],
)
def test_prepare_writes_the_resampled_volume_the_same_in_any_blocks(
    wanted: str, factors: Factors, put: Put, experiment: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An anisotropic volume of 40, 8, 8 nm, a region of it with an offset, a mask and an ignored region."""
    shape, rng = (12, 30, 36), np.random.default_rng(0)
    raw, ids = rng.integers(0, 256, shape, np.uint8), rng.integers(0, 5, shape).astype(np.uint64) + np.uint64(2**60)
    mask = rng.integers(0, 3, shape).astype(np.uint8)
    for dataset, values in (("volumes/raw", raw), ("volumes/labels/neuron_ids", ids), ("volumes/labels/mask", mask)):
        put(dataset, values, resolution=[40, 8, 8], offset=[80, 0, 16])
    ignored = {"offset": "4, 0, 0 vox", "shape": "2, 30, 36 vox"}
    options = {
        "resample_to": wanted,
        "raw_range": [200, 40],
        "roi": {"offset": "160, 24, 32 nm", "shape": "10, 24, 32 vox"},
        "ignore_regions": [ignored],
    }
    whole, facts = prepared(experiment(**options))
    mask[4:6] = 0
    grey = np.rint(np.clip((raw - 200.0) / -160, 0, 1) * 255).astype(np.uint8)
    cut = (slice(2, 12), slice(3, 27), slice(2, 34))
    np.testing.assert_array_equal(whole[RAW.dataset], slow_grey(grey[cut], factors))
    np.testing.assert_array_equal(whole[LABELS.dataset], slow_ids(ids[cut], factors))
    np.testing.assert_array_equal(whole[MASK.dataset], slow_ids(mask[cut], factors))
    attributes = made(experiment(**options), RAW.dataset).attrs
    assert attributes["offset"] == facts["offset_nm"] == [160, 24, 32]
    assert attributes["voxel_size"] == facts["voxel_size_nm"] == [float(v) for v in wanted[:-3].split(",")]
    assert facts["shape_vox"] == list(whole[RAW.dataset].shape)
    assert facts["raw_clipped_voxels"] == np.count_nonzero((raw[cut] < 40) | (raw[cut] > 200)), "source voxels"
    assert facts["labelled_voxels"] == np.count_nonzero(whole[MASK.dataset]), "voxels of the result"
    (tmp_path / "exp").rename(tmp_path / "whole")
    monkeypatch.setattr(volume_passes, "CHUNK_VOX", 5)
    monkeypatch.setattr(volume_passes, "BLOCKS_FOR_WORKERS", 1000)
    monkeypatch.setattr(volume_passes, "block_shape", lambda *_: (5, 5, 15))
    divided, same = prepared(experiment(**options))
    for dataset, values in whole.items():
        np.testing.assert_array_equal(divided[dataset], values)
    ignore = ("components", "identity")
    assert {k: v for k, v in same.items() if k not in ignore} == {k: v for k, v in facts.items() if k not in ignore}


def test_incomplete_cells_at_the_far_end_are_left_out_with_a_warning(
    container: Path, experiment: Make, raw: np.ndarray, ids: np.ndarray
) -> None:
    """70, 66, 68 voxels of 8 nm."""
    loaded = experiment(resample_to="32 nm")
    arrays, facts = prepared(loaded)
    means = raw[:68, :64, :68].reshape(17, 4, 16, 4, 17, 4).mean((1, 3, 5))
    np.testing.assert_array_equal(arrays[RAW.dataset], np.floor(means + 0.5))
    np.testing.assert_array_equal(arrays[LABELS.dataset], ids[2:68:4, 2:64:4, 2:68:4])
    (text,) = [text for text in read_manifest(loaded.layout, "prepare").facts["warnings"] if "resample_to" in text]
    assert f"{70 * 66 * 68 - 68 * 64 * 68} voxels at the far end" in text
    assert (facts["shape_vox"], facts["offset_nm"]) == ([17, 16, 17], [80.0, 0.0, 0.0])


def test_plan_describes_the_result_and_look_the_source(container: Path, experiment: Make) -> None:
    loaded = experiment(resample_to="16 nm", expansion_factor=0.5)
    plan = Prepare().plan(loaded)["training/a"]
    assert (plan["voxel_size_nm"], plan["shape_vox"]) == ([16.0] * 3, [70, 66, 68]), "the size after expansion_factor"
    loaded = experiment(resample_to="16 nm")
    plan, seen = Prepare().plan(loaded)["training/a"], look(loaded)["volumes"]["training/a"]
    assert (plan["voxel_size_nm"], plan["shape_vox"]) == ([16.0] * 3, [35, 33, 34])
    assert (seen["voxel_size_nm"], seen["shape_vox"]) == ([8.0] * 3, [70, 66, 68])


def test_volumes_that_are_resampled_to_one_size_do_not_differ(
    container: Path, put: Put, experiment: Make, raw: np.ndarray
) -> None:
    put("volumes/raw", raw, name="b.zarr", resolution=[4, 4, 4])
    volumes = [{"name": "a", "raw": "../a.zarr"}]
    for options, count in (({}, 1), ({"resample_to": "8 nm"}, 0)):
        loaded = experiment({"training": volumes, "target": {"raw": "../b.zarr", **options}})
        Prepare().run(loaded)
        warnings = read_manifest(loaded.layout, "prepare").facts["warnings"]
        assert sum("voxel sizes differ" in text for text in warnings) == count


def test_problems_of_the_source_are_named_in_source_voxels(
    container: Path, put: Put, experiment: Make, raw: np.ndarray
) -> None:
    (container / "volumes/raw/1.1.1").unlink()
    with pytest.raises(BadData, match="never written") as caught:
        Prepare().run(experiment(resample_to="16 nm"))
    assert "1 of 27 chunks" in caught.value.what
    values = (raw / 255).astype(np.float32)
    values[69, 2, 3] = np.nan
    put("volumes/raw", values)
    with pytest.raises(BadData, match="NaN") as caught:
        Prepare().run(experiment(resample_to="16 nm"))
    assert "(69, 2, 3)" in caught.value.found


@pytest.mark.parametrize(("wanted", "text"), [("12 nm", "whole fractions"), ("800 nm", "smaller than one voxel")])
def test_a_size_that_does_not_fit_is_refused_and_nothing_is_written(
    wanted: str, text: str, container: Path, experiment: Make
) -> None:
    loaded = experiment(resample_to=wanted)
    assert [problem.exit_code for problem in Prepare().validate(loaded)] == [78]
    with pytest.raises(ConfigError, match=text):
        Prepare().run(loaded)
    assert not loaded.layout.results.exists()


def test_another_size_is_another_volume_and_the_first_is_current_again(container: Path, experiment: Make) -> None:
    Prepare().run(experiment())
    first = experiment().layout.training_volume("a")
    Prepare().run(experiment(resample_to="16 nm"))
    other = experiment().layout.training_volume("a")
    assert other != first
    assert Prepare().verify(experiment(resample_to="16 nm"))["verified"] is True
    assert json.loads((other / RAW.dataset / ".zattrs").read_text())["lsdflow"]["parameters"]["resample_to"] == "16 nm"
    Prepare().run(experiment())
    assert experiment().layout.training_volume("a") == first
