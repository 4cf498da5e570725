"""Conversion of labels of any integer type to uint64 ids and their three-state mask.

    mask state      from
    0 ignore        mask 0; label in ignore_ids; ignore regions; voxels without labels
    1 train         mask train value (or no mask)
    2 background    mask 2; label in background_ids
Ignore has priority over background. Ids are never changed, but voxels of ignore_ids and background_ids get label 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.arrays import MaskState
from lsdflow_contract.errors import BadData

MOST_SPECIAL_IDS, LARGEST_TRAIN_VALUE = 5, 255


class LabelledBlock(NamedTuple):
    """Ids u64 and mask states u8 of the same voxels."""

    ids: NDArray[np.uint64]
    states: NDArray[np.uint8]


def labelled_block(
    labels: NDArray[Any],
    states: NDArray[np.uint8],
    ignore_ids: Sequence[int],
    background_ids: Sequence[int],
    where: str,
) -> LabelledBlock:
    """A block of labels (z,y,x; any integer type) and its mask states, with special ids converted to states.

    Raises:
        BadData: labels are not integers, or have negative ids that are not listed as special.
    """
    refuse_label_type(labels.dtype, where)
    ids = labels.astype(np.int64).view(np.uint64) if labels.dtype.kind == "i" else labels.astype(np.uint64)
    ignored = np.isin(ids, np.array(ignore_ids, np.uint64)) if ignore_ids else np.False_
    background = np.isin(ids, np.array(background_ids, np.uint64)) if background_ids else np.False_
    if labels.dtype.kind == "i":
        _refuse_negative(labels, np.asarray(ignored | background), where)
    result = states.copy()
    result[background & (states != MaskState.IGNORE)] = MaskState.BACKGROUND
    result[ignored] = MaskState.IGNORE
    ids[ignored | background] = 0
    return LabelledBlock(ids, result)


def refuse_label_type(dtype: np.dtype[np.generic], where: str) -> None:
    """Raise BadData if labels are not integers."""
    if dtype.kind not in "ui":
        raise BadData(
            f"labels are {dtype}",
            where=where,
            wanted="an integer type: one number per neuron, 0 = background",
            found=dtype,
            fix="float cannot hold ids above 2^53: export the labels again as uint64",
        )


def _refuse_negative(labels: NDArray[Any], special: NDArray[np.bool_], where: str) -> None:
    negative = np.asarray(labels < 0) & ~special
    if negative.any():
        values = np.unique(labels[negative]).tolist()
        few = len(values) <= MOST_SPECIAL_IDS
        raise BadData(
            "labels are negative",
            where=where,
            wanted="ids >= 0",
            found=f"{int(np.count_nonzero(negative))} voxels with {values[:MOST_SPECIAL_IDS]}{'' if few else ' ...'}",
            fix=f"if these mark voxels to be ignored: ignore_ids = {values}"
            if few
            else "were unsigned ids written as signed ones? Export the labels again as uint64",
        )


def mask_states(mask: NDArray[Any], train_value: int, where: str) -> NDArray[np.uint8]:
    """The three mask states for mask values (any integer type or bool).

    Raises:
        BadData: values other than 0, the train value and 2.
    """
    if mask.dtype.kind not in "uib":
        raise BadData(
            f"the mask is {mask.dtype}", where=where, wanted="uint8: 0 ignore, 1 train, 2 background", found=mask.dtype
        )
    states = np.zeros(mask.shape, np.uint8)
    states[mask == MaskState.BACKGROUND] = MaskState.BACKGROUND
    states[mask == train_value] = MaskState.TRAIN
    unknown = (states == MaskState.IGNORE) & (mask != 0)
    if unknown.any():
        values = np.unique(mask[unknown]).tolist()
        other = len(values) == 1 and 0 < values[0] <= LARGEST_TRAIN_VALUE and not (mask == train_value).any()
        raise BadData(
            "the mask holds values without a meaning",
            where=where,
            wanted=f"0 ignore, {train_value} train, 2 background",
            found=f"values {values[:MOST_SPECIAL_IDS]} in {int(np.count_nonzero(unknown))} voxels",
            fix=f"if {values[0]} means train: mask_train_value = {values[0]}"
            if other
            else "write the mask again with 0, 1 and 2",
        )
    return states
