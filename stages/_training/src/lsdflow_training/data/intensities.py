"""Changes of the intensities of a patch: gamma, blur, and sections damaged as microscopes and knives do it.

What is drawn for a patch (`Change`) is apart from what it does, so that another device can do the same. Functions on
arrays. `raw` is float32 (z, y, x), 0 (black) to 1 (white), and so is every result, a new array. Labels
know nothing of these changes: what is hidden or blurred has to be inferred from what is around it.
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

ARTIFACT_EDGE = 0.25  # of an artefact's radius: where it fades into the section
ARTIFACT_RADIUS = (0.125, 0.5)  # of the section's edges


class Damage(IntEnum):
    """What can happen to a section."""

    NONE = 0
    MISSING = 1
    LOW_CONTRAST = 2
    ARTIFACT = 3
    REPEATED = 4


@dataclass(frozen=True)
class Artifact:
    """What covers a section in part: an ellipse, filled with a section of the patch, mirrored and moved (y, x)."""

    centre_vox: tuple[float, float]
    radius_vox: tuple[float, float]
    section: int
    moved_vox: tuple[int, int]


@dataclass(frozen=True)
class Contrast:
    """Distances from the mean times a scale, and a shift; one of each for the patch, or one for each section."""

    scales: Numbers
    shifts: Numbers


@dataclass(frozen=True)
class Exponents:
    """Of gamma; one for the patch, or one for each section."""

    values: Numbers


@dataclass(frozen=True)
class Blurring:
    """Standard deviations in voxels, 0 = none; one for the patch (z, y, x alike), or each section's (y, x)."""

    sigmas_vox: Numbers
    by_section: bool


@dataclass(frozen=True)
class Noise:
    """Gaussian; the voxels' own numbers follow from the seed, each device has its own."""

    std: float
    seed: int


@dataclass(frozen=True)
class Damages:
    """Damage of each section (z,), the contrast of pale ones, and what covers the others, by z."""

    what: npt.NDArray[np.integer]
    contrast: float
    artifacts: Mapping[int, Artifact]


Change = Contrast | Exponents | Blurring | Noise | Damages


def changed_gamma(raw: Raw, exponents: Numbers) -> Raw:
    """Each section to the power of its exponent (z,), or all to that of the only one: > 1 darkens, < 1 lightens."""
    return np.power(raw, exponents.astype(np.float32)[:, None, None])


def blurred(raw: Raw, sigma_vox: float | Sequence[float]) -> Raw:
    """Gaussian blur of one standard deviation, or z, y, x (0 = not along it); edges continue as they end."""
    smooth: Raw = ndimage.gaussian_filter(raw, sigma_vox, mode="nearest", truncate=3.0)
    return np.clip(smooth, 0.0, 1.0, out=smooth)


def damaged(raw: Raw, how: Damages) -> Raw:
    """Sections damaged as `how.what` says.

    MISSING is black; LOW_CONTRAST keeps its mean, and `how.contrast` of the distance from it; REPEATED shows the
    section before it (the first: the one after it); ARTIFACT is covered in part by another section of the patch, see
    `covering`.
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
    """An artefact of a patch of this shape (z, y, x)."""
    size = shape[1:]
    centre = [generator.uniform(0, n) for n in size]
    radius = [max(1.0, generator.uniform(*ARTIFACT_RADIUS) * n) for n in size]
    section = int(generator.integers(shape[0]))
    moved = [int(generator.integers(n)) for n in size]
    return Artifact((centre[0], centre[1]), (radius[0], radius[1]), section, (moved[0], moved[1]))


def opacity(covers: Artifact, size: Sequence[int]) -> Alpha:
    """Of an artefact in a section of this size, (y, x): 0 to 1, with soft edges."""
    y, x = ((np.arange(n) + 0.5 - c) / r for n, c, r in zip(size, covers.centre_vox, covers.radius_vox, strict=True))
    distance = np.hypot(y[:, None], x[None, :])
    alpha: Alpha = np.clip((1 - distance) / ARTIFACT_EDGE, 0.0, 1.0).astype(np.float32)
    return alpha


def covering(raw: Raw, covers: Artifact) -> tuple[Alpha, Raw]:
    """What covers a section, both (y, x): opacity, and a section that does not go on into what is around."""
    section = raw[covers.section, ::-1, ::-1]
    return opacity(covers, raw.shape[1:]), np.roll(section, covers.moved_vox, axis=(0, 1))
