"""gunpowder nodes that change the intensities of raw, before IntensityScaleShift; the arithmetic is in intensities.py.

Each draws from a generator seeded by the request, so the same batch number is the same batch in any process. Noise is
gunpowder's NoiseAugment; its DefectAugment is not used, because it asks for artefacts with a seed of the clock.
"""

from __future__ import annotations

import math
from typing import ClassVar

import gunpowder as gp
import numpy as np

from lsdflow_training.data.intensities import Damage, blurred, changed_gamma, damaged
from lsdflow_training.data.nodes import InPlaceFilter
from lsdflow_training.recipe import Augmentation


class IntensityNode(InPlaceFilter):
    """A node that changes raw (float32, 0 to 1) with random numbers of its own."""

    salt: ClassVar[int]

    def __init__(self, raw: gp.ArrayKey, how: Augmentation) -> None:
        super().__init__(raw)
        self.how = how

    def process(self, batch: gp.Batch, request: gp.BatchRequest) -> None:
        """Change raw."""
        array = batch[self.keys[0]]
        generator = np.random.default_rng((request.random_seed, self.salt))
        array.data = self.changed(array.data.astype(np.float32, copy=False), generator)

    def changed(self, raw: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Raw (float32 (z, y, x), 0 to 1) after the change; the same array if nothing happens to this patch."""
        raise NotImplementedError


class Gamma(IntensityNode):
    """Exponents drawn evenly in their logarithm, one per patch or (intensity_per_section) per section."""

    salt = 1

    def changed(self, raw: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Every voxel to the power of its exponent."""
        low, high = (math.log(exponent) for exponent in self.how.gamma)
        count = len(raw) if self.how.intensity_per_section else 1
        return changed_gamma(raw, np.exp(generator.uniform(low, high, count)))


class Blur(IntensityNode):
    """Out of focus: some patches, blurred alike in all directions; of anisotropic volumes some sections, in y and x."""

    salt = 2

    def changed(self, raw: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Raw, blurred by up to blur_sigma_vox."""
        count = len(raw) if self.how.anisotropic else 1
        hit = generator.random(count) < self.how.blur_probability
        sigmas = generator.uniform(0, self.how.blur_sigma_vox, count)
        if not self.how.anisotropic:
            return blurred(raw, float(sigmas[0])) if hit[0] else raw
        result = raw.copy()
        for z in np.flatnonzero(hit):
            result[z] = blurred(raw[z], float(sigmas[z]))
        return result


class DamagedSections(IntensityNode):
    """Sections (planes of z) that are black, pale, partly covered, or dropped and replaced by their neighbour."""

    salt = 3

    def changed(self, raw: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Raw with at most one kind of damage in each section."""
        kinds = np.searchsorted(np.cumsum(damage_probabilities(self.how)), generator.random(len(raw)), side="right")
        what = np.array([*list(Damage)[1:], Damage.NONE])[kinds]
        return damaged(raw, what, self.how.low_contrast_scale, generator)


def before_intensity(raw: gp.ArrayKey, how: Augmentation) -> list[IntensityNode]:
    """Nodes before IntensityAugment: what the microscope does. None of those that are off."""
    nodes: list[IntensityNode] = [Blur(raw, how)] if how.blur_probability > 0 else []
    return nodes + ([Gamma(raw, how)] if how.gamma != (1.0, 1.0) else [])


def after_intensity(raw: gp.ArrayKey, how: Augmentation) -> list[gp.BatchFilter]:
    """Nodes after IntensityAugment: noise, and sections that are lost. None of those that are off."""
    nodes: list[gp.BatchFilter] = []
    if how.noise_probability > 0 and how.noise_std > 0:
        nodes.append(gp.NoiseAugment(raw, p=how.noise_probability, var=how.noise_std**2))
    if sum(damage_probabilities(how)) > 0:
        nodes.append(DamagedSections(raw, how))
    return nodes


def damage_probabilities(how: Augmentation) -> tuple[float, float, float, float]:
    """Share of the sections with each kind of Damage, in the order of Damage; the rest is as it was."""
    return (
        how.missing_section_probability,
        how.low_contrast_probability,
        how.artifact_probability,
        how.repeated_section_probability,
    )
