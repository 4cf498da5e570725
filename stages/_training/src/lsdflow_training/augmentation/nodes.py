"""gunpowder nodes that augment a patch: each draws what is in description.py, and applies it on the CPU.

All draw with the seed of the request, so a batch number gives the same batch in any process. For a training device,
data/draw.py asks the same nodes for what they draw.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import augment  # type: ignore[import-untyped]
import gunpowder as gp
import numpy as np

from lsdflow_contract.geometry import Vox3
from lsdflow_training.augmentation.cpu import changed, fine_field, gather_linear, gather_nearest
from lsdflow_training.augmentation.description import (
    GLOBAL_DICE,
    Blurring,
    Change,
    Contrast,
    Damage,
    Damages,
    Dice,
    Exponents,
    Field,
    Noise,
    Warp,
    draw_artifact,
)
from lsdflow_training.data.nodes import InPlaceFilter
from lsdflow_training.settings import Augmentation


class ElasticAugment(gp.ElasticAugment):  # type: ignore[misc]
    """gunpowder's ElasticAugment (rotation, jitter, slip, shift; same random numbers), for 3-D arrays.

    The published pipeline deforms each patch twice, on regions up to eight times the patch. With gunpowder's scipy
    routines this is most of the cost of the data; they also convert ids to float64, which merges those beyond 2^53.
    """

    def _ElasticAugment__create_transformation(self, shape: Vox3) -> Field:  # noqa: N802  (replaces a private method)
        """The field of one patch, as in gunpowder."""
        return fine_field(self.draw(shape, GLOBAL_DICE))

    def draw(self, shape: Vox3, dice: Dice) -> Warp:
        """The deformation of a patch of this shape, drawn as in gunpowder."""
        shape = (int(shape[0]), int(shape[1]), int(shape[2]))
        return Warp(shape, self._draw_coarse_field(shape, dice), self._draw_section_shifts(shape[0], dice))

    def _draw_coarse_field(self, shape: Vox3, dice: Dice) -> Field:
        """Jitter and rotation of a patch of this shape at every `subsample`-th voxel."""
        dice.plain.random()  # gunpowder draws a scale, here always 1: keeps the sequence of random numbers
        field: Field = augment.create_identity_transformation(shape, subsample=self.subsample)
        if sum(self.jitter_sigma) > 0:
            sizes = zip(shape, self.control_point_spacing, strict=True)
            moved = np.zeros((3, *(max(1, round(n / spacing)) for n, spacing in sizes)), np.float32)
            for points, sigma in zip(moved, self.jitter_sigma, strict=True):
                if sigma > 0:
                    points[...] = dice.arrays.normal(scale=sigma, size=points.shape)
            field += augment.upscale_transformation(moved, field.shape[1:], interpolate_order=3)
        rotation = dice.plain.random() * self.rotation_max_amount + self.rotation_start
        if rotation != 0:
            field += augment.create_rotation_transformation(shape, rotation, subsample=self.subsample)
        return field

    def _draw_section_shifts(self, sections: int, dice: Dice) -> Field | None:
        """Slips and shifts of sections, (sections, 2) voxels y, x; None if both are disabled."""
        if self.prob_slip + self.prob_shift == 0:
            return None
        shifts = np.zeros((sections, 2), np.float32)
        for z in range(sections):
            number = dice.plain.random()
            if number <= self.prob_slip + self.prob_shift:
                far = [self.max_misalign - dice.plain.randint(0, 2 * int(self.max_misalign)) for _ in range(2)]
                if number <= self.prob_slip:
                    shifts[z] = far
                else:
                    shifts[z:] += np.array(far, np.float32)
        return shifts

    def process(self, batch: gp.Batch, request: gp.BatchRequest) -> None:
        """Deform every 3-D array of the batch in place, with linear interpolation if it allows it, else nearest."""
        for key, array in batch.arrays.items():
            if key not in self.target_rois:
                continue
            gather = gather_linear if self.spec[key].interpolatable else gather_nearest
            array.data = gather(array.data, self.transformations[key])
            array.spec.roi = request[key].roi


def elastic_augment(augmentation: Augmentation, jitter: bool) -> ElasticAugment:
    """The first (jitter=False: rotation only) or second elastic augmentation of the published pipeline."""
    return ElasticAugment(
        control_point_spacing=augmentation.control_point_spacing_vox,
        jitter_sigma=augmentation.jitter_sigma_vox if jitter else (0, 0, 0),
        rotation_interval=(0, augmentation.rotation_max_rad),
        prob_slip=augmentation.slip_probability if jitter else 0,
        prob_shift=augmentation.shift_probability if jitter else 0,
        max_misalign=augmentation.max_misalign_vox if jitter else 0,
        subsample=augmentation.subsample,
        p=augmentation.elastic_probability,
    )


class IntensityNode(InPlaceFilter):
    """A node that draws a change of raw (float32, 0 to 1), and applies it on the CPU."""

    def __init__(self, raw: gp.ArrayKey, augmentation: Augmentation) -> None:
        super().__init__(raw)
        self.augmentation = augmentation

    def process(self, batch: gp.Batch, request: gp.BatchRequest) -> None:
        """Change raw."""
        array = batch[self.keys[0]]
        raw = array.data.astype(np.float32, copy=False)
        array.data = changed(raw, self.drawn(raw.shape, request.random_seed, GLOBAL_DICE))

    def skip_node(self, _request: gp.BatchRequest) -> bool:
        """Skip the patches that are not changed."""
        return self.skips(GLOBAL_DICE)

    def skips(self, _dice: Dice) -> bool:
        """Whether a patch is not changed."""
        return False

    def drawn(self, shape: Sequence[int], seed: int, dice: Dice) -> Change:
        """The change of a patch of this shape (z, y, x). seed: that of the request."""
        raise NotImplementedError


class IntensityAugment(IntensityNode):
    """Contrast and brightness, drawn as gunpowder's IntensityAugment draws them: for the patch, or for each section."""

    def drawn(self, shape: Sequence[int], _seed: int, dice: Dice) -> Contrast:
        """A scale and a shift in their ranges."""
        count = shape[0] if self.augmentation.intensity_per_section else 1
        ranges = (self.augmentation.intensity_scale, self.augmentation.intensity_shift)
        scales, shifts = np.array([[dice.arrays.uniform(*ends) for ends in ranges] for _ in range(count)]).T
        return Contrast(scales, shifts)


class NoiseAugment(IntensityNode):
    """Gaussian noise in some patches, drawn as gunpowder's NoiseAugment draws it."""

    def skips(self, dice: Dice) -> bool:
        """Skip the patches without noise."""
        return bool(dice.plain.random() > self.augmentation.noise_probability)

    def drawn(self, _shape: Sequence[int], seed: int, _dice: Dice) -> Noise:
        """Noise with the seed of the request."""
        return Noise(self.augmentation.noise_std, seed)


class SaltedNode(IntensityNode):
    """A node with its own random numbers. gunpowder's DefectAugment is not used: its seed comes from the clock."""

    salt: ClassVar[int]

    def drawn(self, shape: Sequence[int], seed: int, _dice: Dice) -> Change:
        """The change, drawn with the seed of the request."""
        return self.draw(shape, np.random.default_rng((seed, self.salt)))

    def draw(self, shape: Sequence[int], generator: np.random.Generator) -> Change:
        """Draw the change; see `drawn`."""
        raise NotImplementedError


class Gamma(SaltedNode):
    """Exponents with a uniform logarithm, one per patch or (intensity_per_section) per section."""

    salt = 1

    def draw(self, shape: Sequence[int], generator: np.random.Generator) -> Exponents:
        """Exponents in the range `gamma`."""
        low, high = (math.log(exponent) for exponent in self.augmentation.gamma)
        count = shape[0] if self.augmentation.intensity_per_section else 1
        return Exponents(np.exp(generator.uniform(low, high, count)))


class Blur(SaltedNode):
    """Out-of-focus blur of some patches, equal in all directions; in anisotropic volumes of some sections, in y, x."""

    salt = 2

    def draw(self, shape: Sequence[int], generator: np.random.Generator) -> Blurring:
        """Standard deviations up to blur_sigma_vox for a share blur_probability, 0 for the others."""
        count = shape[0] if self.augmentation.anisotropic else 1
        hit = generator.random(count) < self.augmentation.blur_probability
        sigmas = generator.uniform(0, self.augmentation.blur_sigma_vox, count)
        return Blurring(np.where(hit, sigmas, 0.0), by_section=self.augmentation.anisotropic)


class DamagedSections(SaltedNode):
    """Sections (planes of z) that are black, pale, partly covered, or replaced by their neighbour."""

    salt = 3

    def draw(self, shape: Sequence[int], generator: np.random.Generator) -> Damages:
        """At most one kind of damage for each section."""
        cumulative = np.cumsum(damage_probabilities(self.augmentation))
        kinds = np.searchsorted(cumulative, generator.random(shape[0]), side="right")
        what = np.array([*list(Damage)[1:], Damage.NONE])[kinds]
        covered = np.flatnonzero(what == Damage.ARTIFACT)
        artifacts = {int(z): draw_artifact(shape, generator) for z in covered}
        return Damages(what, self.augmentation.low_contrast_scale, artifacts)


def intensity_nodes(raw: gp.ArrayKey, augmentation: Augmentation) -> list[gp.BatchFilter]:
    """The enabled nodes in their order: what the microscope does to the image, then noise and damaged sections."""
    nodes: list[gp.BatchFilter] = [Blur(raw, augmentation)] if augmentation.blur_probability > 0 else []
    nodes += [Gamma(raw, augmentation)] if augmentation.gamma != (1.0, 1.0) else []
    nodes.append(IntensityAugment(raw, augmentation))
    noisy = augmentation.noise_probability > 0 and augmentation.noise_std > 0
    nodes += [NoiseAugment(raw, augmentation)] if noisy else []
    return nodes + ([DamagedSections(raw, augmentation)] if sum(damage_probabilities(augmentation)) > 0 else [])


def damage_probabilities(augmentation: Augmentation) -> tuple[float, float, float, float]:
    """Share of the sections with each kind of Damage, in the order of Damage; the others are undamaged."""
    return (
        augmentation.missing_section_probability,
        augmentation.low_contrast_probability,
        augmentation.artifact_probability,
        augmentation.repeated_section_probability,
    )
