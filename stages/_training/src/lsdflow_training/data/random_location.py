"""RandomLocation that checks the patch itself, finds rare places, and fails if there is none.

gunpowder's own compares the mask with the region requested at this stage of the pipeline, which augmentation and shape
descriptors have enlarged up to eight times; in a small volume no place ever qualifies, and it searches forever.

Places are tried at random. After MAX_TRIES for one patch all places are examined, plane by plane, and one of those that
qualify is drawn; if there is none, this is an error. With sparse labels no places are tried: a trained voxel is drawn,
and then a patch that contains it.
"""

from __future__ import annotations

import random  # gunpowder draws from this module, so it is seeded for each batch
from collections.abc import Callable

import gunpowder as gp
import numpy as np
import numpy.typing as npt

from lsdflow_contract.arrays import MaskState
from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Vox3
from lsdflow_training.data.trained_places import box_sum, integral_image, random_place

MAX_TRIES = 20_000
SECTIONS_AT_ONCE = 32


class RandomLocation(gp.RandomLocation):  # type: ignore[misc]
    """A random place where at least the share `min_masked` of a patch of `patch_vox` is not ignored.

    sparse: a place whose patch has at least one voxel that is not ignored, found without tries; places with many such
    voxels are drawn more often. Raises BadData if there is no such place.
    """

    min_masked: float

    def __init__(self, min_masked: float, mask: gp.ArrayKey, patch_vox: Vox3, name: str, sparse: bool = False) -> None:
        super().__init__(min_masked=min_masked, mask=mask)
        self.patch_vox, self.name_of_volume, self.sparse = patch_vox, name, sparse
        self.trained: npt.NDArray[np.integer] = np.empty((0, 3), np.int64)

    def setup(self) -> None:
        """Read the mask a few sections at a time, because labels may have to be read with it."""
        min_masked, self.min_masked = self.min_masked, 0.0
        super().setup()
        self.min_masked = min_masked
        if min_masked > 0 or self.sparse:
            self.mask_spec = self.upstream_spec.array_specs[self.mask]
            upstream = self.get_upstream_provider()
            trained = read_trained(upstream.request_batch, self.mask, self.mask_spec.roi)
            if self.sparse:
                self.trained = np.argwhere(trained)
            else:
                self.mask_integral = integral_image(trained)

    def _RandomLocation__select_random_shift(  # noqa: N802
        self, request: gp.BatchRequest, shifts: gp.Roi, voxel_size: gp.Coordinate
    ) -> gp.Coordinate:
        """Replaces gunpowder's private loop: try places, then examine all of them; sparse: around a trained voxel."""
        begin = gp.Coordinate(self._patch_begin(request, gp.Coordinate(0, 0, 0)))
        if self.sparse:
            return self._around_a_trained_voxel(shifts, begin)
        for _ in range(MAX_TRIES):
            shift = self._RandomLocation__select_random_location(shifts, voxel_size)
            if self._RandomLocation__is_min_masked(shift, request):
                return shift
        wanted = self.min_masked * np.prod(self.patch_vox)
        place = random_place(self.mask_integral, self.patch_vox, shifts.begin + begin, shifts.end + begin, wanted)
        if place is None:
            raise self._nowhere(f"{self.min_masked:.0%} of {list(self.patch_vox)} vox not ignored by the mask")
        return gp.Coordinate(place) - begin

    def _RandomLocation__is_min_masked(self, random_shift: gp.Coordinate, request: gp.BatchRequest) -> bool:  # noqa: N802
        """Replaces gunpowder's private check: the share of trained voxels in the patch at the centre of the request."""
        if self.min_masked <= 0:
            return True
        begin = self._patch_begin(request, random_shift)
        trained = box_sum(self.mask_integral, begin, [b + n for b, n in zip(begin, self.patch_vox, strict=True)])
        return bool(trained >= self.min_masked * np.prod(self.patch_vox))

    def _patch_begin(self, request: gp.BatchRequest, shift: gp.Coordinate) -> list[int]:
        """Begin of the patch in the mask's array, if the request is shifted by `shift`."""
        if self.mask_spec is None:
            return [0, 0, 0]
        roi = request[self.mask].roi.shift(shift) - self.mask_spec.roi.offset
        return [int(c - n // 2) for c, n in zip(roi.center, self.patch_vox, strict=True)]

    def _around_a_trained_voxel(self, shifts: gp.Roi, begin: gp.Coordinate) -> gp.Coordinate:
        """A shift that puts a random trained voxel at a random position in the patch."""
        for _ in range(MAX_TRIES if len(self.trained) else 0):
            voxel = self.trained[random.randrange(len(self.trained))]  # noqa: S311
            low = [
                max(int(v) - n + 1 - b, s)
                for v, n, b, s in zip(voxel, self.patch_vox, begin, shifts.begin, strict=True)
            ]
            high = [min(int(v) - b, s - 1) for v, b, s in zip(voxel, begin, shifts.end, strict=True)]
            if all(first <= last for first, last in zip(low, high, strict=True)):
                return gp.Coordinate(random.randint(*ends) for ends in zip(low, high, strict=True))  # noqa: S311
        raise self._nowhere("a labelled voxel that is not ignored")

    def _nowhere(self, wanted: str) -> BadData:
        return BadData(
            "no place found where enough of a patch is trained",
            where=f"training volume {self.name_of_volume}",
            wanted=wanted,
            found="none in the whole volume",
            fix="lower min_masked or input_shape_vox, set sparse_labels if few voxels are labelled, or take this "
            "volume out of the training",
        )


def read_trained(
    request_batch: Callable[[gp.BatchRequest], gp.Batch], mask: gp.ArrayKey, roi: gp.Roi
) -> npt.NDArray[np.bool_]:
    """Where the mask of `roi` is not IGNORE, (z, y, x); reads a few sections at a time."""
    trained = np.empty(tuple(roi.shape), np.bool_)
    for begin in range(0, roi.shape[0], SECTIONS_AT_ONCE):
        depth = min(SECTIONS_AT_ONCE, roi.shape[0] - begin)
        request = gp.BatchRequest()
        sections = gp.Roi(roi.begin + gp.Coordinate(begin, 0, 0), (depth, *roi.shape[1:]))
        request[mask] = gp.ArraySpec(roi=sections)
        trained[begin : begin + depth] = request_batch(request)[mask].data != MaskState.IGNORE
    return trained
