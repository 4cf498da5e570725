"""How fragments overlap with the truth: a row for each pair of labels that meet in a block, with their voxels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lsdflow_contract.errors import BadData

# Truth 0 is "not labelled": such voxels are one row of fragment 0 and truth 0.
NOT_LABELLED = 0


def overlaps_collection(region: str) -> str:
    """Name of the collection of a region's overlaps."""
    return f"overlaps_{region}"


@dataclass(frozen=True)
class Overlaps:
    """Pairs of labels: fragment u64 (N,), truth u64 (N,), shared voxels u64 (N,)."""

    fragment: npt.NDArray[np.uint64]
    truth: npt.NDArray[np.uint64]
    size_vox: npt.NDArray[np.uint64]

    def __post_init__(self) -> None:
        if not len(self.fragment) == len(self.truth) == len(self.size_vox):
            found = (len(self.fragment), len(self.truth), len(self.size_vox))
            raise BadData("overlap columns differ in length", found=found)

    def __len__(self) -> int:
        return len(self.fragment)

    @classmethod
    def empty(cls) -> Overlaps:
        """No pairs."""
        return cls(np.zeros(0, np.uint64), np.zeros(0, np.uint64), np.zeros(0, np.uint64))
