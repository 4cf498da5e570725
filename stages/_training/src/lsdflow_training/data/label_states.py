"""gunpowder nodes for incomplete labels: ids to ignore, sparse labels, labels under the mask."""

from __future__ import annotations

import gunpowder as gp
import numpy as np
import numpy.typing as npt

from lsdflow_contract.arrays import MaskState
from lsdflow_training.data.nodes import ApplyBackground

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


class DropIgnoredLabels(ApplyBackground):
    """Labels under IGNORE become 0, so that the shape descriptors of their neighbours do not depend on them."""

    def process(self, batch: gp.Batch, _request: gp.BatchRequest) -> gp.Batch:
        """Labels (u64) with ignored voxels set to 0."""
        array = batch[self.labels]
        mask = batch[self.mask].crop(array.spec.roi).data
        outputs = gp.Batch()
        outputs[self.labels] = gp.Array(np.where(mask == MaskState.IGNORE, 0, array.data), array.spec.copy())
        return outputs
