"""ElasticAugment with faster loops: gunpowder draws the deformation, deformation.py applies it to the voxels.

The published pipeline deforms each patch twice, on regions up to eight times the patch. With gunpowder's scipy
routines this is most of the cost of the data; they also convert ids to float64, which merges those beyond 2^53.
"""

from __future__ import annotations

import math
import random  # gunpowder draws from this module, so it is seeded for each batch
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

import augment  # type: ignore[import-untyped]
import gunpowder as gp
import numpy as np

from lsdflow_contract.geometry import Vox3
from lsdflow_training.augmentation.cpu import (
    blurred,
    changed_gamma,
    damaged,
    gather_linear,
    gather_nearest,
    upsample_field,
)
from lsdflow_training.augmentation.description import Blurring, Damage, Damages, Exponents, Field, Raw, draw_artifact
from lsdflow_training.data.nodes import InPlaceFilter
from lsdflow_training.settings import Augmentation


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


Drawn = TypeVar("Drawn", Exponents, Blurring, Damages)


class IntensityNode(InPlaceFilter, Generic[Drawn]):
    """A node that changes raw (float32, 0 to 1) with its own random numbers."""

    salt: ClassVar[int]

    def __init__(self, raw: gp.ArrayKey, how: Augmentation) -> None:
        super().__init__(raw)
        self.how = how

    def process(self, batch: gp.Batch, request: gp.BatchRequest) -> None:
        """Change raw."""
        array = batch[self.keys[0]]
        raw = array.data.astype(np.float32, copy=False)
        array.data = self.changed(raw, self.drawn(raw.shape, request))

    def drawn(self, shape: Sequence[int], request: gp.BatchRequest) -> Drawn:
        """The change of a patch of this shape (z, y, x), drawn with the seed of the request."""
        return self.draw(shape, np.random.default_rng((request.random_seed, self.salt)))

    def draw(self, shape: Sequence[int], generator: np.random.Generator) -> Drawn:
        """Draw the change; see `drawn`."""
        raise NotImplementedError

    def changed(self, raw: Raw, how: Drawn) -> Raw:
        """Raw (float32 (z, y, x), 0 to 1) after the change; the same array if this patch is not changed."""
        raise NotImplementedError


class Gamma(IntensityNode[Exponents]):
    """Exponents with a uniform logarithm, one per patch or (intensity_per_section) per section."""

    salt = 1

    def draw(self, shape: Sequence[int], generator: np.random.Generator) -> Exponents:
        """Exponents in the range `gamma`."""
        low, high = (math.log(exponent) for exponent in self.how.gamma)
        count = shape[0] if self.how.intensity_per_section else 1
        return Exponents(np.exp(generator.uniform(low, high, count)))

    def changed(self, raw: Raw, how: Exponents) -> Raw:
        """Raise every voxel to its exponent."""
        return changed_gamma(raw, how.values)


class Blur(IntensityNode[Blurring]):
    """Out-of-focus blur of some patches, equal in all directions; in anisotropic volumes of some sections, in y, x."""

    salt = 2

    def draw(self, shape: Sequence[int], generator: np.random.Generator) -> Blurring:
        """Standard deviations up to blur_sigma_vox for a share blur_probability, 0 for the others."""
        count = shape[0] if self.how.anisotropic else 1
        hit = generator.random(count) < self.how.blur_probability
        sigmas = generator.uniform(0, self.how.blur_sigma_vox, count)
        return Blurring(np.where(hit, sigmas, 0.0), by_section=self.how.anisotropic)

    def changed(self, raw: Raw, how: Blurring) -> Raw:
        """Raw, blurred where sigma is not 0."""
        if not how.by_section:
            return blurred(raw, float(how.sigmas_vox[0])) if how.sigmas_vox[0] else raw
        result = raw.copy()
        for z in np.flatnonzero(how.sigmas_vox):
            result[z] = blurred(raw[z], float(how.sigmas_vox[z]))
        return result


class DamagedSections(IntensityNode[Damages]):
    """Sections (planes of z) that are black, pale, partly covered, or replaced by their neighbour."""

    salt = 3

    def draw(self, shape: Sequence[int], generator: np.random.Generator) -> Damages:
        """At most one kind of damage for each section."""
        kinds = np.searchsorted(np.cumsum(damage_probabilities(self.how)), generator.random(shape[0]), side="right")
        what = np.array([*list(Damage)[1:], Damage.NONE])[kinds]
        covered = np.flatnonzero(what == Damage.ARTIFACT)
        return Damages(what, self.how.low_contrast_scale, {int(z): draw_artifact(shape, generator) for z in covered})

    def changed(self, raw: Raw, how: Damages) -> Raw:
        """Raw with its sections damaged."""
        return damaged(raw, how)


def before_intensity(raw: gp.ArrayKey, how: Augmentation) -> list[gp.BatchFilter]:
    """The enabled nodes before IntensityAugment: blur and gamma, which come from the microscope."""
    nodes: list[gp.BatchFilter] = [Blur(raw, how)] if how.blur_probability > 0 else []
    return nodes + ([Gamma(raw, how)] if how.gamma != (1.0, 1.0) else [])


def after_intensity(raw: gp.ArrayKey, how: Augmentation) -> list[gp.BatchFilter]:
    """The enabled nodes after IntensityAugment: noise and damaged sections."""
    nodes: list[gp.BatchFilter] = []
    if how.noise_probability > 0 and how.noise_std > 0:
        nodes.append(gp.NoiseAugment(raw, p=how.noise_probability, var=how.noise_std**2))
    if sum(damage_probabilities(how)) > 0:
        nodes.append(DamagedSections(raw, how))
    return nodes


def damage_probabilities(how: Augmentation) -> tuple[float, float, float, float]:
    """Share of the sections with each kind of Damage, in the order of Damage; the others are undamaged."""
    return (
        how.missing_section_probability,
        how.low_contrast_probability,
        how.artifact_probability,
        how.repeated_section_probability,
    )
