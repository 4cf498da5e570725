"""Small gunpowder nodes: volumes, ids, boundaries, trained voxels.

They are used in pipeline.py; each class documents how it changes the arrays of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gunpowder as gp
import numpy as np
from gunpowder.profiling import Timing

from lsdflow_contract.arrays import MaskState
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_training.augmentation.description import GLOBAL_DICE, moved_seed
from lsdflow_training.data.volume_arrays import Name, VolumeArrays
from lsdflow_training.targets.boundaries import compact_ids, grow_boundary

# gunpowder changes the seed of a request at each node. VolumeSource replaces five nodes (normalize, restrict, pad three
# arrays) and changes the seed as often as they did, so intensities are drawn as in the published pipeline.
MOVES_OF_THE_SEED = 10


class VolumeSource(gp.BatchProvider):  # type: ignore[misc]
    """Provides raw (float32, 0 to 1), labels and mask of a volume, with 0 around them.

    padding_vox: how far around labels and mask a region may reach; None: as around raw, without limit.
    """

    def __init__(self, names: dict[gp.ArrayKey, Name], arrays: VolumeArrays, padding_vox: Vox3 | None) -> None:
        self.names, self.arrays, self.padding_vox = names, arrays, padding_vox

    def setup(self) -> None:
        """Announce the arrays."""
        for key, name in self.names.items():
            roi = gp.Roi((None,) * 3, (None,) * 3)
            if self.padding_vox is not None and name != "raw":
                box = self.arrays.boxes[name].grow(self.padding_vox)
                roi = gp.Roi(box.begin_vox, box.shape_vox)
            dtype = np.float32 if name == "raw" else self.arrays.dtypes[name]
            self.provides(key, gp.ArraySpec(roi, gp.Coordinate(1, 1, 1), name == "raw", False, dtype))

    def provide(self, request: gp.BatchRequest) -> gp.Batch:
        """The requested regions."""
        timing = Timing(self)
        timing.start()
        batch = gp.Batch()
        for key, wanted in request.array_specs.items():
            data = self.arrays.read(self.names[key], as_box(wanted.roi))
            spec = self.spec[key].copy()
            spec.roi = wanted.roi
            batch[key] = gp.Array(data.astype(np.float32) * self.arrays.scale if spec.interpolatable else data, spec)
        for source_of_numbers in GLOBAL_DICE:
            source_of_numbers.seed(moved_seed(request.random_seed, MOVES_OF_THE_SEED - 1))
        timing.stop()
        batch.profiling_stats.add(timing)
        return batch


def as_box(roi: gp.Roi) -> Box:
    """The voxels of a region, whose voxels are units."""
    return Box(as_vox3(roi.begin), as_vox3(roi.shape))


def as_vox3(values: Iterable[Any]) -> Vox3:
    """Three numbers as a position or a shape."""
    z, y, x = (int(value) for value in values)
    return z, y, x


class InPlaceFilter(gp.BatchFilter):  # type: ignore[misc]
    """A node that changes some arrays of a batch, voxel by voxel, and requires only the requested regions."""

    def __init__(self, *keys: gp.ArrayKey) -> None:
        self.keys = keys

    def setup(self) -> None:
        """Announce the arrays that this node changes; it is skipped if none is requested."""
        self.enable_autoskip()
        for key in self.keys:
            self.updates(key, self.spec[key])

    def prepare(self, request: gp.BatchRequest) -> gp.BatchRequest:
        """Require the arrays in the regions in which they are requested."""
        needed = gp.BatchRequest()
        for key in self.keys:
            if key in request:
                needed[key] = request[key].copy()
        return needed


class CompactIds(InPlaceFilter):
    """Ids of the patch -> 1, 2, 3, ... (0 stays 0): AddAffinities compares int32 copies, which merge large ids."""

    def process(self, batch: gp.Batch, _request: gp.BatchRequest) -> None:
        """Relabel (u64) in place."""
        array = batch[self.keys[0]]
        array.data = compact_ids(array.data)


class ApplyBackground(gp.BatchFilter):  # type: ignore[misc]
    """Set labels to 0 where the mask is BACKGROUND."""

    def __init__(self, labels: gp.ArrayKey, mask: gp.ArrayKey) -> None:
        self.labels, self.mask = labels, mask

    def setup(self) -> None:
        """Announce that the labels are updated."""
        self.enable_autoskip()
        self.updates(self.labels, self.spec[self.labels])

    def prepare(self, request: gp.BatchRequest) -> gp.BatchRequest:
        """Require the mask wherever labels are requested."""
        needed = gp.BatchRequest()
        needed[self.labels] = request[self.labels].copy()
        needed[self.mask] = _with_roi(request, self.mask, request[self.labels].roi)
        return needed

    def process(self, batch: gp.Batch, _request: gp.BatchRequest) -> gp.Batch:
        """Labels (u64) with background set to 0."""
        mask = batch[self.mask].crop(batch[self.labels].spec.roi).data
        array = batch[self.labels]
        outputs = gp.Batch()
        outputs[self.labels] = gp.Array(np.where(mask == MaskState.BACKGROUND, 0, array.data), array.spec.copy())
        return outputs


class GrowBoundary(ApplyBackground):
    """gunpowder's GrowBoundary, one pass for all labels: see boundaries.py."""

    def __init__(self, labels: gp.ArrayKey, mask: gp.ArrayKey, steps: int = 1, only_xy: bool = False) -> None:
        super().__init__(labels, mask)
        self.steps, self.only_xy = steps, only_xy

    def process(self, batch: gp.Batch, _request: gp.BatchRequest) -> gp.Batch:
        """Labels (u64) with grown boundaries."""
        array = batch[self.labels]
        mask = batch[self.mask].crop(array.spec.roi).data
        grown = grow_boundary(array.data, mask, self.steps, self.only_xy)
        outputs = gp.Batch()
        outputs[self.labels] = gp.Array(grown, array.spec.copy())
        return outputs


class TrainedVoxels(gp.BatchFilter):  # type: ignore[misc]
    """New array: 1 where the mask is TRAIN or BACKGROUND, 0 where it is IGNORE (gunpowder's meaning of a mask)."""

    def __init__(self, mask: gp.ArrayKey, trained: gp.ArrayKey) -> None:
        self.mask, self.trained = mask, trained

    def setup(self) -> None:
        """Announce the binary mask."""
        self.enable_autoskip()
        self.provides(self.trained, self.spec[self.mask].copy())

    def prepare(self, request: gp.BatchRequest) -> gp.BatchRequest:
        """Require the mask where the binary mask is requested."""
        needed = gp.BatchRequest()
        needed[self.mask] = _with_roi(request, self.mask, request[self.trained].roi)
        return needed

    def process(self, batch: gp.Batch, request: gp.BatchRequest) -> gp.Batch:
        """Binary mask, u8."""
        array = batch[self.mask].crop(request[self.trained].roi)
        outputs = gp.Batch()
        outputs[self.trained] = gp.Array((array.data != MaskState.IGNORE).astype(np.uint8), array.spec.copy())
        return outputs


def _with_roi(request: gp.BatchRequest, key: gp.ArrayKey, roi: gp.Roi) -> gp.ArraySpec:
    """Spec of `key` for a region, merged with the region in which it is already requested."""
    if key in request:
        return gp.ArraySpec(roi=request[key].roi.union(roi))
    return gp.ArraySpec(roi=roi.copy())
