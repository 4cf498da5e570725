"""Labels become uint64 without changing an id; special ids and the mask become the three states."""

from __future__ import annotations

import numpy as np
import pytest

from lsdflow_contract.errors import BadData
from lsdflow_prepare.neuron_ids import labelled_block, mask_states

MINUS_3 = 2**64 - 3


def block(
    values: list[int], dtype: object, states: list[int] | None = None, ignore: tuple = (), background: tuple = ()
):
    labels = np.array(values, dtype).reshape(1, 1, -1)
    mask = np.array(states or [1] * len(values), np.uint8).reshape(1, 1, -1)
    found = labelled_block(labels, mask, ignore, background, "a")
    assert found.ids.dtype == np.uint64
    return found.ids.ravel().tolist(), found.states.ravel().tolist()


@pytest.mark.proves("DAT-03")
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int32, np.int64])
def test_ids_of_every_integer_type_are_unchanged(dtype: type) -> None:
    highest = int(np.iinfo(dtype).max)
    assert block([0, 1, highest], dtype)[0] == [0, 1, highest]


@pytest.mark.proves("DAT-03")
def test_ids_above_2_53_survive() -> None:
    ids = [2**53 + 1, 2**63 - 1, 2**64 - 2]
    assert block(ids, np.uint64)[0] == ids


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.bool_])
def test_labels_that_are_no_integers_are_refused(dtype: type) -> None:
    with pytest.raises(BadData, match="labels are"):
        block([0, 1], dtype)


def test_negative_labels_are_refused_with_the_way_to_ignore_them() -> None:
    with pytest.raises(BadData) as caught:
        block([0, -3, 5, -3], np.int32)
    assert "2 voxels" in caught.value.found
    assert caught.value.fix.endswith("ignore_ids = [-3]")


@pytest.mark.parametrize(("value", "dtype"), [(MINUS_3, np.uint64), (-3, np.int64), (-3, np.int16)])
def test_the_ignore_id_of_hemibrain_is_ignored_in_every_type(value: int, dtype: type) -> None:
    assert block([7, value, 0], dtype, ignore=(MINUS_3,)) == ([7, 0, 0], [1, 0, 1])


def test_background_ids_become_background_but_never_where_ignored() -> None:
    assert block([7, 9, 9, 9], np.uint64, [1, 1, 0, 2], background=(9,)) == ([7, 0, 0, 0], [1, 2, 0, 2])


def test_ignore_is_stronger_than_a_background_mask() -> None:
    assert block([7, 9], np.uint64, [2, 2], ignore=(9,)) == ([7, 0], [2, 0])


def test_mask_keeps_its_three_states() -> None:
    mask = np.array([0, 1, 2], np.int64).reshape(1, 1, 3)
    assert mask_states(mask, 1, "a").ravel().tolist() == [0, 1, 2]


def test_mask_of_bool_means_train_where_true() -> None:
    assert mask_states(np.array([[[True, False]]]), 1, "a").ravel().tolist() == [1, 0]


def test_mask_of_255_needs_the_option() -> None:
    mask = np.array([0, 255], np.uint8).reshape(1, 1, 2)
    with pytest.raises(BadData, match="mask_train_value = 255"):
        mask_states(mask, 1, "a")
    assert mask_states(mask, 255, "a").ravel().tolist() == [0, 1]


def test_train_value_2_is_train_not_background() -> None:
    assert mask_states(np.array([[[0, 2]]], np.uint8), 2, "a").ravel().tolist() == [0, 1]


def test_mask_of_floats_is_refused() -> None:
    with pytest.raises(BadData, match="mask is float32"):
        mask_states(np.ones((1, 1, 1), np.float32), 1, "a")
