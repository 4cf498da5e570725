"""Random places for patches: RandomLocation that judges the patch itself, and gives up with a message.

gunpowder's own compares the mask with the region requested at this point of the pipeline, which augmentation and
shape descriptors have made up to eight times the patch; in a small volume no place ever qualifies, and it searches
for ever.
"""

from __future__ import annotations

import itertools

import gunpowder as gp
import numpy as np
import numpy.typing as npt

from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Vox3

MAX_TRIES = 20_000


class RandomLocation(gp.RandomLocation):  # type: ignore[misc]
    """A random place where at least `min_masked` of a patch of `patch_vox` is not ignored."""

    def __init__(self, min_masked: float, mask: gp.ArrayKey, patch_vox: Vox3, name: str) -> None:
        super().__init__(min_masked=min_masked, mask=mask)
        self.patch_vox, self.name_of_volume = patch_vox, name
        self.tries = 0

    def _RandomLocation__is_min_masked(self, random_shift: gp.Coordinate, request: gp.BatchRequest) -> bool:  # noqa: N802
        """Replaces gunpowder's private check: the share of trained voxels in the patch in the middle of the request."""
        if self.min_masked <= 0:
            return True
        roi = request[self.mask].roi.shift(random_shift) - self.mask_spec.roi.offset
        begin = [c - n // 2 for c, n in zip(roi.center, self.patch_vox, strict=True)]
        trained = box_sum(self.mask_integral, begin, [b + n for b, n in zip(begin, self.patch_vox, strict=True)])
        if trained >= self.min_masked * np.prod(self.patch_vox):
            self.tries = 0
            return True
        self.tries += 1
        if self.tries > MAX_TRIES:
            raise BadData(
                "no place found where enough of a patch is trained",
                where=f"training volume {self.name_of_volume}",
                wanted=f"{self.min_masked:.0%} of {list(self.patch_vox)} vox not ignored by the mask",
                found=f"none in {MAX_TRIES} random places",
                hint="lower min_masked or input_shape_vox, or take this volume out of the training",
            )
        return False


def box_sum(integral: npt.NDArray[np.integer], begin: list[int], end: list[int]) -> int:
    """Sum over a box [begin, end) of the array whose cumulative sums along all axes are `integral`; 0 outside."""
    lower = [min(max(b, 0), n) for b, n in zip(begin, integral.shape, strict=True)]
    upper = [min(max(e, 0), n) for e, n in zip(end, integral.shape, strict=True)]
    total = 0
    for corner in itertools.product((0, 1), repeat=integral.ndim):
        index = [u if bit else low for bit, u, low in zip(corner, upper, lower, strict=True)]
        if min(index) > 0:
            value = int(integral[tuple(i - 1 for i in index)])
            total += value if (integral.ndim - sum(corner)) % 2 == 0 else -value
    return total
