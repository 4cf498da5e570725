"""gunpowder node that makes the LSD targets of a patch of labels, and the weight of each voxel in the loss.

                          labels, requested with 3 sigma of context
    mask state            label != 0              label 0
    IGNORE                weight 0                weight 0
    TRAIN                 LSDs, weight 1          0, weight 0 (1 with train_background)
    BACKGROUND            0, weight 1             0, weight 1        (also counts as label 0 for its neighbours)

The voxel size is an argument, because gunpowder's voxel sizes are integers and those of the data may be fractions.
"""

from __future__ import annotations

import gunpowder as gp
import numpy as np
import numpy.typing as npt

from lsdflow_contract.arrays import MaskState
from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Box, Nm3
from lsdflow_training.targets.lsd import CHANNELS, Engine, check_engine, context_vox, local_shape_descriptors
from lsdflow_training.targets.lsd_cpu import warm_up


class AddLsdTargets(gp.BatchFilter):  # type: ignore[misc]
    """Adds the LSD targets (float32 (10, z, y, x) in [0, 1]) of the requested region, and their weights (same shape).

    segmentation: key of the labels, unsigned integers. descriptor, lsds_mask: keys of the targets and weights to add.
    labels_mask: key of the mask of MaskState values (None: TRAIN everywhere). sigma_nm: of the Gaussian, one number or
    z, y, x. downsample: see `local_shape_descriptors`; must divide the requested region. train_background: train
    label 0 under TRAIN as background instead of ignoring it. engine: "lsds" uses the package of that name (about 500
    times slower; integer voxel sizes only).

    Raises ConfigError for an engine that is unknown, not installed, or does not support the voxel size.
    """

    def __init__(
        self,
        segmentation: gp.ArrayKey,
        descriptor: gp.ArrayKey,
        lsds_mask: gp.ArrayKey,
        labels_mask: gp.ArrayKey | None = None,
        *,
        sigma_nm: float | Nm3,
        voxel_size_nm: Nm3,
        downsample: int = 1,
        train_background: bool = False,
        engine: Engine = "lsdflow",
    ) -> None:
        self.segmentation, self.labels_mask = segmentation, labels_mask
        self.descriptor, self.lsds_mask = descriptor, lsds_mask
        self.sigma_nm: Nm3 = (sigma_nm,) * 3 if isinstance(sigma_nm, (int, float)) else sigma_nm
        self.voxel_size_nm, self.downsample = voxel_size_nm, downsample
        self.train_background, self.engine = train_background, engine
        self.context_vox = context_vox(self.sigma_nm, voxel_size_nm, downsample)
        check_engine(engine, voxel_size_nm)

    def setup(self) -> None:
        """Provide targets and weights; compile now, because the workers are forked from this process."""
        self.enable_autoskip()
        spec = self.spec[self.segmentation].copy()
        spec.dtype, spec.interpolatable = np.float32, False
        self.provides(self.descriptor, spec)
        self.provides(self.lsds_mask, spec.copy())
        if self.engine == "lsdflow":
            warm_up()

    def prepare(self, request: gp.BatchRequest) -> gp.BatchRequest:
        """Require labels and mask in the requested region and its context."""
        voxel = self.spec[self.segmentation].voxel_size
        context = gp.Coordinate(self.context_vox) * voxel
        needed = gp.BatchRequest()
        for key in (self.segmentation, self.labels_mask):
            if key is not None:
                needed[key] = gp.ArraySpec(roi=self._wanted(request).grow(context, context))
        return needed

    def process(self, batch: gp.Batch, request: gp.BatchRequest) -> gp.Batch:
        """Compute the targets and weights of the requested region."""
        labels, states = self._labels_and_states(batch)
        shape = (self._wanted(request) / self.spec[self.segmentation].voxel_size).shape
        roi = Box(self.context_vox, tuple(shape))
        added = gp.Batch()
        if self.descriptor in request:
            added[self.descriptor] = self._array(self._descriptors(labels, roi), self.descriptor, request)
        if self.lsds_mask in request:
            weights = lsd_weights(labels[roi.slices()], states[roi.slices()], self.train_background)
            added[self.lsds_mask] = self._array(weights, self.lsds_mask, request)
        return added

    def _wanted(self, request: gp.BatchRequest) -> gp.Roi:
        rois = [request[key].roi for key in (self.descriptor, self.lsds_mask) if key in request]
        return rois[0].union(rois[-1])

    def _labels_and_states(self, batch: gp.Batch) -> tuple[npt.NDArray[np.unsignedinteger], npt.NDArray[np.uint8]]:
        labels = batch[self.segmentation].data
        if self.labels_mask is None:
            return labels, np.full(labels.shape, MaskState.TRAIN, dtype=np.uint8)
        states = batch[self.labels_mask].data
        if states.max(initial=0) > max(MaskState):
            raise BadData(
                f"{self.labels_mask} holds no mask states",
                wanted="values 0, 1, 2",
                found=f"values up to {states.max()}",
            )
        return np.where(states == MaskState.BACKGROUND, labels.dtype.type(0), labels), states

    def _descriptors(self, labels: npt.NDArray[np.unsignedinteger], roi: Box) -> npt.NDArray[np.float32]:
        return local_shape_descriptors(
            labels, self.sigma_nm, self.voxel_size_nm, roi, self.downsample, engine=self.engine
        )

    def _array(self, data: npt.NDArray[np.float32], key: gp.ArrayKey, request: gp.BatchRequest) -> gp.Array:
        spec = self.spec[key].copy()
        spec.roi = self._wanted(request)
        return gp.Array(data, spec)


def lsd_weights(
    labels: npt.NDArray[np.unsignedinteger], states: npt.NDArray[np.uint8], train_background: bool
) -> npt.NDArray[np.float32]:
    """Weight of each voxel in the LSD loss, 0 or 1, float32 (10, z, y, x); see the table above. Inputs (z, y, x)."""
    labelled = np.logical_or(labels != 0, train_background)
    counted = (states == MaskState.BACKGROUND) | ((states == MaskState.TRAIN) & labelled)
    return np.repeat(counted[None].astype(np.float32), CHANNELS, axis=0)
