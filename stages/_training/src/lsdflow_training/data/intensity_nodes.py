"""gunpowder nodes that change the intensities of raw, before IntensityScaleShift; the arithmetic is in intensities.py.

Each draws from a generator seeded by the request, so a batch number gives the same batch in any process. Noise is
gunpowder's NoiseAugment; its DefectAugment is not used, because it requests artefacts with a seed from the clock.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

import gunpowder as gp
import numpy as np

from lsdflow_training.data.intensities import (
    Blurring,
    Damage,
    Damages,
    Exponents,
    Raw,
    blurred,
    changed_gamma,
    damaged,
    draw_artifact,
)
from lsdflow_training.data.nodes import InPlaceFilter
from lsdflow_training.recipe import Augmentation

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
