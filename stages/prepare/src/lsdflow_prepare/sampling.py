"""How often each training volume is drawn."""

from __future__ import annotations

from collections.abc import Sequence

from lsdflow_contract.errors import BadData


def probabilities(given: Sequence[float | None], labelled_voxels: Sequence[int]) -> list[float]:
    """The given probabilities, or those proportional to the labelled voxels of the volumes; they sum to 1.

    Raises:
        BadData: no volume has a voxel that is not ignored.
    """
    numbers = [value for value in given if value is not None]
    if given and len(numbers) == len(given):
        return numbers
    total = sum(labelled_voxels)
    if given and total == 0:
        raise BadData("no training volume has a voxel to train on", found="masks are 0 everywhere")
    return [voxels / total for voxels in labelled_voxels]
