"""Changes of the intensities of a patch: gamma, blur, and damaged sections as microscopes and knives produce them.

The numbers drawn for a patch (`Change`) are separate from their application, so that another device can apply them too.
All are functions on arrays. `raw` is float32 (z, y, x), 0 (black) to 1 (white), and so is every result, a new array.
Labels do not change: the network must infer what is hidden or blurred from its surroundings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
from scipy import ndimage

Raw = npt.NDArray[np.float32]
Alpha = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.floating]

ARTIFACT_EDGE = 0.25  # width of the soft edge, as a fraction of the artefact's radius
ARTIFACT_RADIUS = (0.125, 0.5)  # range, as a fraction of the section's edges


class Damage(IntEnum):
    """Kinds of damage to a section."""

    NONE = 0
    MISSING = 1
    LOW_CONTRAST = 2
    ARTIFACT = 3
    REPEATED = 4


@dataclass(frozen=True)
class Artifact:
    """An ellipse that covers a part of a section, filled with a section of the patch, mirrored and shifted (y, x)."""

    centre_vox: tuple[float, float]
    radius_vox: tuple[float, float]
    section: int
    moved_vox: tuple[int, int]


@dataclass(frozen=True)
class Contrast:
    """A scale of the distances from the mean, and a shift; one of each for the patch, or for each section."""

    scales: Numbers
    shifts: Numbers


@dataclass(frozen=True)
class Exponents:
    """Exponents of gamma; one for the patch, or one for each section."""

    values: Numbers


@dataclass(frozen=True)
class Blurring:
    """Standard deviations in voxels, 0 = none; one for the patch (same in z, y, x), or one for each section (y, x)."""

    sigmas_vox: Numbers
    by_section: bool


@dataclass(frozen=True)
class Noise:
    """Gaussian noise. Its values follow from the seed, but differ between devices."""

    std: float
    seed: int


@dataclass(frozen=True)
class Damages:
    """Damage of each section (z,), contrast of LOW_CONTRAST sections, and the artefacts of ARTIFACT sections, by z."""

    what: npt.NDArray[np.integer]
    contrast: float
    artifacts: Mapping[int, Artifact]


Change = Contrast | Exponents | Blurring | Noise | Damages


def changed_gamma(raw: Raw, exponents: Numbers) -> Raw:
    """Raise each section to its exponent (z,), or all to the only one: > 1 darkens, < 1 brightens."""
    return np.power(raw, exponents.astype(np.float32)[:, None, None])


def blurred(raw: Raw, sigma_vox: float | Sequence[float]) -> Raw:
    """Gaussian blur with one standard deviation, or one for z, y, x (0 = none); edge voxels are repeated outwards."""
    smooth: Raw = ndimage.gaussian_filter(raw, sigma_vox, mode="nearest", truncate=3.0)
    return np.clip(smooth, 0.0, 1.0, out=smooth)


def damaged(raw: Raw, how: Damages) -> Raw:
    """Raw with its sections damaged according to `how.what`.

    MISSING sections are black; LOW_CONTRAST ones keep their mean, and deviations from it are scaled by `how.contrast`;
    REPEATED ones show the section before them (the first shows the one after it); ARTIFACT ones are partly covered by
    another section of the patch, see `covering`.
    """
    result, what = raw.copy(), how.what
    for z in np.flatnonzero(what):
        if what[z] == Damage.MISSING:
            result[z] = 0.0
        elif what[z] == Damage.LOW_CONTRAST:
            mean = raw[z].mean()
            result[z] = np.clip(mean + (raw[z] - mean) * np.float32(how.contrast), 0.0, 1.0)
        elif what[z] == Damage.REPEATED:
            result[z] = raw[z - 1 if z else min(1, len(raw) - 1)]
        elif what[z] == Damage.ARTIFACT:
            alpha, content = covering(raw, how.artifacts[int(z)])
            result[z] = raw[z] * (1 - alpha) + content * alpha
    return result


def draw_artifact(shape: Sequence[int], generator: np.random.Generator) -> Artifact:
    """Draw an artefact for a patch of this shape (z, y, x)."""
    size = shape[1:]
    centre = [generator.uniform(0, n) for n in size]
    radius = [max(1.0, generator.uniform(*ARTIFACT_RADIUS) * n) for n in size]
    section = int(generator.integers(shape[0]))
    moved = [int(generator.integers(n)) for n in size]
    return Artifact((centre[0], centre[1]), (radius[0], radius[1]), section, (moved[0], moved[1]))


def opacity(covers: Artifact, size: Sequence[int]) -> Alpha:
    """Opacity of an artefact in a section of this size, (y, x): 0 to 1, with soft edges."""
    y, x = ((np.arange(n) + 0.5 - c) / r for n, c, r in zip(size, covers.centre_vox, covers.radius_vox, strict=True))
    distance = np.hypot(y[:, None], x[None, :])
    alpha: Alpha = np.clip((1 - distance) / ARTIFACT_EDGE, 0.0, 1.0).astype(np.float32)
    return alpha


def covering(raw: Raw, covers: Artifact) -> tuple[Alpha, Raw]:
    """Opacity of an artefact, and the section it shows, mirrored and shifted so that it does not match; both (y, x)."""
    section = raw[covers.section, ::-1, ::-1]
    return opacity(covers, raw.shape[1:]), np.roll(section, covers.moved_vox, axis=(0, 1))
