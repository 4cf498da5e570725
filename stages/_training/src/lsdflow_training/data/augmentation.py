"""ElasticAugment with faster loops: gunpowder draws the deformation, deformation.py applies it to the voxels.

The published pipeline deforms each patch twice, on regions up to eight times the patch. With gunpowder's scipy
routines this is most of the cost of the data; they also convert ids to float64, which merges those beyond 2^53.
"""

from __future__ import annotations

import random  # gunpowder draws from this module, so it is seeded for each batch

import augment  # type: ignore[import-untyped]
import gunpowder as gp
import numpy as np

from lsdflow_contract.geometry import Vox3
from lsdflow_training.data.deformation import Field, gather_linear, gather_nearest, upsample_field
from lsdflow_training.recipe import Augmentation


class ElasticAugment(gp.ElasticAugment):  # type: ignore[misc]
    """gunpowder's ElasticAugment (rotation, jitter, slip, shift; same random numbers), for 3-D arrays."""

    def _ElasticAugment__create_transformation(self, shape: Vox3) -> Field:  # noqa: N802  (replaces a private method)
        """The field of one patch, as in gunpowder, upsampled by our compiled loop."""
        shape = (int(shape[0]), int(shape[1]), int(shape[2]))
        field = self.draw_coarse_field(shape)
        if self.subsample > 1:
            field = upsample_field(field, shape)
        if self.prob_slip + self.prob_shift > 0:
            self._ElasticAugment__misalign(field)
        return field

    def draw_coarse_field(self, shape: Vox3) -> Field:
        """Jitter and rotation of a patch of this shape at every `subsample`-th voxel, drawn as in gunpowder."""
        random.random()  # noqa: S311  (gunpowder draws a scale, here always 1: keeps the sequence of random numbers)
        field: Field = augment.create_identity_transformation(shape, subsample=self.subsample)
        if sum(self.jitter_sigma) > 0:
            field += augment.create_elastic_transformation(
                shape, self.control_point_spacing, self.jitter_sigma, subsample=self.subsample
            )
        rotation = random.random() * self.rotation_max_amount + self.rotation_start  # noqa: S311
        if rotation != 0:
            field += augment.create_rotation_transformation(shape, rotation, subsample=self.subsample)
        return field

    def draw_section_shifts(self, sections: int) -> Field | None:
        """Slips and shifts of sections, (sections, 2) voxels y, x, drawn as in gunpowder; None if both are disabled."""
        if self.prob_slip + self.prob_shift == 0:
            return None
        column = np.zeros((3, sections, 1, 1), np.float32)
        self._ElasticAugment__misalign(column)
        return np.ascontiguousarray(column[1:, :, 0, 0].T)

    def process(self, batch: gp.Batch, request: gp.BatchRequest) -> None:
        """Deform every 3-D array of the batch in place, with linear interpolation if it allows it, else nearest."""
        for key, array in batch.arrays.items():
            if key not in self.target_rois:
                continue
            gather = gather_linear if self.spec[key].interpolatable else gather_nearest
            array.data = gather(array.data, self.transformations[key])
            array.spec.roi = request[key].roi


def elastic_augment(how: Augmentation, jitter: bool) -> ElasticAugment:
    """The first (jitter=False: rotation only) or second elastic augmentation of the published pipeline."""
    return ElasticAugment(
        control_point_spacing=how.control_point_spacing_vox,
        jitter_sigma=how.jitter_sigma_vox if jitter else (0, 0, 0),
        rotation_interval=(0, how.rotation_max_rad),
        prob_slip=how.slip_probability if jitter else 0,
        prob_shift=how.shift_probability if jitter else 0,
        max_misalign=how.max_misalign_vox if jitter else 0,
        subsample=how.subsample,
        p=how.elastic_probability,
    )
