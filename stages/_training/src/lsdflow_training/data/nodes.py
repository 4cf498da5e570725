"""Small gunpowder nodes: padding, mask states, ids, boundaries, validation slab, trained voxels, incomplete labels.

They are used in pipeline.py; each class documents how it changes the arrays of a batch.
"""

from __future__ import annotations

import gunpowder as gp
import numpy as np
import numpy.typing as npt

from lsdflow_contract.arrays import MaskState
from lsdflow_contract.geometry import Box
from lsdflow_training.targets.boundaries import compact_ids, grow_boundary


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


class Pad(gp.Pad):  # type: ignore[misc]
    """gunpowder's Pad with 0, also for regions that are completely outside the volume (where gunpowder's fails)."""

    def prepare(self, request: gp.BatchRequest) -> gp.BatchRequest | None:
        """Require the part of the region that is within the volume, or an empty region."""
        if self.key not in request:
            return None
        upstream = self.get_upstream_provider().spec[self.key].roi
        within = request[self.key].roi.intersect(upstream)
        # gunpowder merges the returned region with the request, so the request itself must shrink
        request[self.key].roi = gp.Roi(upstream.offset, (0,) * upstream.dims) if within.empty else within
        needed = gp.BatchRequest()
        needed[self.key] = request[self.key]
        return needed

    def process(self, batch: gp.Batch, request: gp.BatchRequest) -> None:
        """The requested region, with 0 around the volume."""
        if self.key in request and batch[self.key].data.size == 0:
            array = batch[self.key]
            array.data = np.zeros(request[self.key].roi.shape, array.data.dtype)
            array.spec.roi = request[self.key].roi
        else:
            super().process(batch, request)


class RestrictMask(InPlaceFilter):
    """Set the mask outside `inside` or within `outside` (voxel boxes) to IGNORE: separates the validation slab."""

    def __init__(self, mask: gp.ArrayKey, inside: Box | None = None, outside: Box | None = None) -> None:
        super().__init__(mask)
        self.inside, self.outside = inside, outside

    def process(self, batch: gp.Batch, _request: gp.BatchRequest) -> None:
        """Set the mask (u8) in place."""
        for key in self.keys:
            array = batch[key]
            box = Box(tuple(array.spec.roi.begin), tuple(array.spec.roi.shape))
            data = np.array(array.data)
            if self.inside is not None:
                kept = np.zeros_like(data)
                slices = box.intersect(self.inside).slices(box.begin_vox)
                kept[slices] = data[slices]
                data = kept
            if self.outside is not None and not box.intersect(self.outside).is_empty:
                data[box.intersect(self.outside).slices(box.begin_vox)] = MaskState.IGNORE
            array.data = data


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


class AllTrained(gp.BatchFilter):  # type: ignore[misc]
    """Mask of a volume without one: TRAIN everywhere."""

    def __init__(self, mask: gp.ArrayKey, spec: gp.ArraySpec) -> None:
        self.mask, self.mask_spec = mask, spec

    def setup(self) -> None:
        """Announce the mask."""
        self.enable_autoskip()
        self.provides(self.mask, self.mask_spec)

    def prepare(self, _request: gp.BatchRequest) -> gp.BatchRequest:
        """Require nothing."""
        return gp.BatchRequest()

    def process(self, _batch: gp.Batch, request: gp.BatchRequest) -> gp.Batch:
        """The mask, u8, TRAIN everywhere."""
        spec = self.mask_spec.copy()
        spec.roi = request[self.mask].roi
        outputs = gp.Batch()
        outputs[self.mask] = gp.Array(np.full(spec.roi.shape, MaskState.TRAIN, np.uint8), spec)
        return outputs


Labels = npt.NDArray[np.unsignedinteger]
States = npt.NDArray[np.uint8]


def states_of_labels(labels: Labels, states: States, ignore_ids: tuple[int, ...], sparse: bool) -> States:
    """Mask states (same shape) with ignore_ids, and if `sparse` TRAIN voxels without a label, set to IGNORE."""
    ignored = np.isin(labels, np.array(ignore_ids, labels.dtype))
    if sparse:
        ignored |= (labels == 0) & (states == MaskState.TRAIN)
    return np.where(ignored, np.uint8(MaskState.IGNORE), states)


class LabelStates(gp.BatchFilter):  # type: ignore[misc]
    """Update the mask of a volume from its labels, see `states_of_labels`; ignored ids become label 0.

    Must come before RandomLocation, which requests the whole mask to choose places by the voxels that are trained.
    """

    def __init__(self, labels: gp.ArrayKey, mask: gp.ArrayKey, ignore_ids: tuple[int, ...], sparse: bool) -> None:
        self.labels, self.mask, self.ignore_ids, self.sparse = labels, mask, ignore_ids, sparse

    def setup(self) -> None:
        """Announce that labels and mask are updated."""
        self.enable_autoskip()
        for key in (self.labels, self.mask):
            self.updates(key, self.spec[key])

    def prepare(self, request: gp.BatchRequest) -> gp.BatchRequest:
        """Require the labels wherever they exist and the mask is requested."""
        needed = gp.BatchRequest()
        rois = [request[self.labels].roi] if self.labels in request else []
        if self.mask in request:
            needed[self.mask] = request[self.mask].copy()
            rois.append(request[self.mask].roi.intersect(self.spec[self.labels].roi))
        rois = [roi for roi in rois if not roi.empty]
        if rois:
            needed[self.labels] = gp.ArraySpec(roi=rois[0].union(rois[-1]))
        return needed

    def process(self, batch: gp.Batch, _request: gp.BatchRequest) -> gp.Batch:
        """The updated mask (u8) and labels."""
        outputs = gp.Batch()
        labels = batch[self.labels] if self.labels in batch.arrays else None
        if self.mask in batch.arrays:
            outputs[self.mask] = self._states(batch[self.mask], labels)
        if labels is not None:
            kept = np.isin(labels.data, np.array(self.ignore_ids, labels.data.dtype), invert=True)
            outputs[self.labels] = gp.Array(
                np.where(kept, labels.data, 0).astype(labels.data.dtype), labels.spec.copy()
            )
        return outputs

    def _states(self, mask: gp.Array, labels: gp.Array | None) -> gp.Array:
        """The mask states, with label 0 outside the labels."""
        around = np.zeros(mask.data.shape, np.uint64)
        if labels is not None:
            common = mask.spec.roi.intersect(labels.spec.roi)
            if not common.empty:
                around[(common - mask.spec.roi.begin).get_bounding_box()] = labels.crop(common).data
        return gp.Array(states_of_labels(around, mask.data, self.ignore_ids, self.sparse), mask.spec.copy())
