"""RandomLocation that checks the patch itself, finds rare places, and fails if there is none.

gunpowder's own compares the mask with the region requested at this stage of the pipeline, which augmentation and shape
descriptors have enlarged up to eight times; in a small volume no place ever qualifies, and it searches forever.

Places are tried at random. After MAX_TRIES for one patch all places are examined, plane by plane, and one of those that
qualify is drawn; if there is none, this is an error. With sparse labels no places are tried: a trained voxel is drawn,
and then a patch that contains it.
"""

from __future__ import annotations

from typing import Any

import gunpowder as gp
import numpy as np
import numpy.typing as npt

from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_training.augmentation.description import GLOBAL_DICE, Dice
from lsdflow_training.data.nodes import as_box, as_vox3
from lsdflow_training.data.trained_places import box_sum, integral_image, random_place
from lsdflow_training.data.volume_arrays import VolumeArrays

MAX_TRIES = 20_000


class Places:
    """Random places of a volume where at least the share `min_masked` of a patch of `patch_vox` is not ignored.

    padding_vox: how far patches may reach beyond labels and mask. sparse: places whose patch has at least one voxel
    that is not ignored, found without tries; places with many such voxels are drawn more often.
    """

    def __init__(
        self, arrays: VolumeArrays, padding_vox: Vox3, min_masked: float, patch_vox: Vox3, sparse: bool = False
    ) -> None:
        self.arrays, self.min_masked, self.patch_vox, self.sparse = arrays, min_masked, patch_vox, sparse
        self._mask = arrays.boxes["mask"].grow(padding_vox)
        self._box = self._mask.intersect(arrays.boxes["labels"].grow(padding_vox))
        if sparse:
            self._voxels = np.argwhere(arrays.trained(self._mask))
        elif min_masked > 0:
            self._integral: npt.NDArray[np.integer[Any]] = integral_image(arrays.trained(self._mask))

    def draw(self, wanted: Box, dice: Dice) -> Vox3:
        """A shift that puts labels and mask of a patch, which are requested in `wanted`, at a random place.

        Raises BadData if there is no place.
        """
        sides = zip(self._box.begin_vox, self._box.end_vox, wanted.begin_vox, wanted.end_vox, strict=True)
        ends = [(begin - low, end - high + 1) for begin, end, low, high in sides]
        middle = zip(wanted.begin_vox, wanted.shape_vox, self.patch_vox, self._mask.begin_vox, strict=True)
        patch = [begin + shape // 2 - edge // 2 - first for begin, shape, edge, first in middle]  # in the mask's array
        if any(low >= high for low, high in ends):
            raise self._nowhere(f"{list(wanted.shape_vox)} vox of labels")
        if self.sparse:
            return self._around_a_trained_voxel(patch, ends, dice)
        enough = self.min_masked * np.prod(self.patch_vox)
        for _ in range(MAX_TRIES):
            shift = as_vox3([dice.plain.randint(low, high - 1) for low, high in ends])
            if self.min_masked <= 0 or self._trained_at(np.add(patch, shift)) >= enough:
                return shift
        first, end = (as_vox3(np.add(patch, side)) for side in np.transpose(ends))
        place = random_place(self._integral, self.patch_vox, first, end, enough, dice)
        if place is None:
            raise self._nowhere(f"{self.min_masked:.0%} of {list(self.patch_vox)} vox not ignored by the mask")
        return as_vox3(np.subtract(place, patch))

    def _trained_at(self, begin: npt.NDArray[np.integer[Any]]) -> int:
        return box_sum(self._integral, begin.tolist(), (begin + self.patch_vox).tolist())

    def _around_a_trained_voxel(self, patch: list[int], ends: list[tuple[int, int]], dice: Dice) -> Vox3:
        """A shift that puts a random trained voxel at a random position in the patch."""
        for _ in range(MAX_TRIES if len(self._voxels) else 0):
            voxel = self._voxels[dice.plain.randrange(len(self._voxels))].tolist()
            sides = zip(voxel, self.patch_vox, patch, ends, strict=True)
            allowed = [(max(v - n + 1 - b, low), min(v - b, high - 1)) for v, n, b, (low, high) in sides]
            if all(first <= last for first, last in allowed):
                return as_vox3([dice.plain.randint(*between) for between in allowed])
        raise self._nowhere("a labelled voxel that is not ignored")

    def _nowhere(self, wanted: str) -> BadData:
        return BadData(
            "no place found where enough of a patch is trained",
            where=f"training volume {self.arrays.name}",
            wanted=wanted,
            found="none in the whole volume",
            fix="lower min_masked or input_shape_vox, set sparse_labels if few voxels are labelled, or take this "
            "volume out of the training",
        )


class RandomLocation(gp.RandomLocation):  # type: ignore[misc]
    """gunpowder's RandomLocation, with `places`."""

    def __init__(self, places: Places, mask: gp.ArrayKey) -> None:
        super().__init__()
        self.places, self.mask_key = places, mask

    def _RandomLocation__select_random_shift(  # noqa: N802
        self, request: gp.BatchRequest, _shifts: gp.Roi, _voxel_size: gp.Coordinate
    ) -> gp.Coordinate:
        """Replaces gunpowder's private loop."""
        return gp.Coordinate(self.places.draw(as_box(request[self.mask_key].roi), GLOBAL_DICE))
