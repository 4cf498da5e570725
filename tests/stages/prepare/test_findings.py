"""Warnings come when they should and not otherwise; statistics of blocks are those of the whole."""

from __future__ import annotations

import re

import numpy as np
import pytest

from lsdflow_contract.errors import BadData
from lsdflow_prepare.config import VolumeTable
from lsdflow_prepare.findings import (
    Findings,
    component_warnings,
    label_warnings,
    raw_warnings,
    refuse_unlabelled,
    shape_warnings,
    voxel_size_warnings,
)
from lsdflow_prepare.greyscale import to_u8
from lsdflow_prepare.neuron_ids import mask_states
from lsdflow_prepare.report import probabilities
from lsdflow_prepare.statistics import LabelStatistics, RawStatistics


def counted(ids: list[int], states: list[int]) -> LabelStatistics:
    statistics = LabelStatistics()
    half = len(ids) // 2
    for part in (slice(None, half), slice(half, None)):
        statistics.add(np.array(ids[part], np.uint64), np.array(states[part], np.uint8))
    return statistics


def test_statistics_of_blocks_add_up() -> None:
    statistics = counted([0, 5, 5, 2**60, 5, 0], [0, 1, 2, 1, 1, 0])
    assert statistics.sizes == {0: 2, 5: 3, 2**60: 1}
    assert (statistics.neurons, statistics.voxels, statistics.labelled_voxels) == (2, 6, 4)
    assert statistics.trained_fraction == pytest.approx(4 / 6)


@pytest.mark.proves("DAT-10")
def test_few_neurons_warn_below_five_only() -> None:
    assert "only 4 neurons" in label_warnings(counted([1, 2, 3, 4], [1] * 4))[0]
    assert label_warnings(counted([1, 2, 3, 4, 5], [1] * 5)) == []


@pytest.mark.proves("DAT-10")
def test_low_mask_coverage_warns_below_one_half_only() -> None:
    ids = [1, 2, 3, 4, 5, 6]
    assert label_warnings(counted(ids, [1, 1, 2, 0, 0, 0])) == []
    assert "33.3%" in label_warnings(counted(ids, [1, 1, 0, 0, 0, 0]))[0]


@pytest.mark.parametrize("role", ["training", "target"])
@pytest.mark.parametrize(
    ("ids", "states", "words"),
    [([0, 0], [1, 1], "no neuron"), ([0, 7], [1, 0], "ignored"), ([5, 7], [0, 0], "ignored")],
)
def test_labels_that_name_no_neuron_or_are_all_masked_are_refused_with_the_file(
    role: str, ids: list[int], states: list[int], words: str
) -> None:
    with pytest.raises(BadData, match=rf"(?s){words}.*gt\.h5") as caught:
        refuse_unlabelled(counted(ids, states), False, "gt.h5", role)
    assert ("ground truth" in caught.value.what) == (role == "target")
    refuse_unlabelled(counted([5, 7], [1, 1]), True, "gt.h5", role)


def test_ids_that_seem_special_warn_with_the_option() -> None:
    assert "ignore_ids = [-3]" in label_warnings(counted([1, 2, 3, 4, 5, 2**64 - 3], [1] * 6))[0]


@pytest.mark.proves("DAT-11")
def test_constant_and_clipped_raw_warn() -> None:
    raw = RawStatistics()
    raw.add(np.full((2, 2, 2), 7, np.uint8))
    assert "constant" in raw_warnings(raw)[0]
    raw.add(np.zeros((2, 2, 2), np.uint8), clipped=8)
    assert "50.0%" in raw_warnings(raw)[0]


@pytest.mark.proves("DAT-11")
def test_components_warn_when_many_neurons_are_in_many_pieces() -> None:
    assert component_warnings(dict.fromkeys(range(100), 3)) == []
    assert component_warnings({1: 5000, **dict.fromkeys(range(2, 100), 1)}) == []
    assert "20 of 100" in component_warnings({label: 50 if label < 20 else 1 for label in range(100)})[0]


@pytest.mark.proves("DAT-06")
def test_small_training_volumes_warn_and_targets_do_not() -> None:
    assert shape_warnings((249, 300, 300), "training")
    assert not shape_warnings((250, 250, 250), "training")
    assert not shape_warnings((10, 10, 10), "target")


def test_findings_keep_each_problem_once_and_continue() -> None:
    findings = Findings()
    for _ in range(2):
        with findings.collecting():
            raise BadData("bad", where="a")
        findings.warn("a", "odd")
    assert (len(findings.errors), findings.warnings) == (1, ["a: odd"])


@pytest.mark.proves("DAT-12")
def test_given_probabilities_are_kept_and_others_follow_labelled_voxels() -> None:
    assert probabilities([0.05, 0.05, 0.45, 0.45], [1, 1, 1, 1]) == [0.05, 0.05, 0.45, 0.45]
    assert probabilities([None, None], [300, 100]) == [0.75, 0.25]


def test_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(BadData, match="no training volume"):
        probabilities([None], [0])


def test_voxels_that_no_microscope_has_warn_with_what_depends_on_them() -> None:
    assert voxel_size_warnings((40.0, 4.0, 4.0)) == []
    for size in ((0.04, 0.004, 0.004), (40_000.0, 4000.0, 4000.0)):
        assert "expansion_factor right? The Gaussian of the LSDs" in voxel_size_warnings(size)[0]


@pytest.mark.parametrize("values", [(7, 7), (100_000_001, 100_000_005), (0, 900)])
def test_the_range_that_is_advised_can_be_used(values: tuple[int, int]) -> None:
    raw = np.array(values, np.uint32).reshape(1, 1, 2)
    with pytest.raises(BadData) as caught:
        to_u8(raw, None, "raw.zarr")
    advised = re.search(r"raw_range = \[([0-9.]+), ([0-9.]+)\]", caught.value.fix)
    assert (advised is None) == (values[0] == values[1])
    if advised:
        given = VolumeTable(raw="raw.zarr", raw_range=(float(advised[1]), float(advised[2]))).raw_range
        assert to_u8(raw, given, "raw.zarr").values.ravel().tolist() == [0, 255]


@pytest.mark.parametrize(("mask", "advised"), [([0, 255], True), ([1, 255], False), ([0, 7, 9], False)])
def test_a_value_of_the_mask_is_advised_only_if_it_then_is_one(mask: list[int], advised: bool) -> None:
    values = np.array(mask, np.int16)
    with pytest.raises(BadData) as caught:
        mask_states(values, 1, "mask")
    given = re.search(r"mask_train_value = (\d+)", caught.value.fix)
    assert (given is not None) == advised
    if given:
        mask_states(values, int(given[1]), "mask")
