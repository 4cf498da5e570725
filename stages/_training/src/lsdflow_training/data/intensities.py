"""Changes of the intensities of a patch: gamma, blur, and sections damaged as microscopes and knives do it.

Functions on arrays. `raw` is float32 (z, y, x), 0 (black) to 1 (white), and so is every result, a new array. Labels
know nothing of these changes: what is hidden or blurred has to be inferred from what is around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import numpy.typing as npt
from scipy import ndimage

Raw = npt.NDArray[np.float32]
Alpha = npt.NDArray[np.float32]

ARTIFACT_EDGE = 0.25  # of an artefact's radius: where it fades into the section
ARTIFACT_RADIUS = (0.125, 0.5)  # of the section's edges


class Damage(IntEnum):
    """What can happen to a section."""

    NONE = 0
    MISSING = 1
    LOW_CONTRAST = 2
    ARTIFACT = 3
    REPEATED = 4


def changed_gamma(raw: Raw, exponents: npt.NDArray[np.floating]) -> Raw:
    """Each section to the power of its exponent (z,), or all to that of the only one: > 1 darkens, < 1 lightens."""
    return np.power(raw, exponents.astype(np.float32)[:, None, None])


def blurred(raw: Raw, sigma_vox: float | Sequence[float]) -> Raw:
    """Gaussian blur of one standard deviation, or z, y, x (0 = not along it); edges continue as they end."""
    smooth: Raw = ndimage.gaussian_filter(raw, sigma_vox, mode="nearest", truncate=3.0)
    return np.clip(smooth, 0.0, 1.0, out=smooth)


def damaged(raw: Raw, what: npt.NDArray[np.integer], contrast: float, generator: np.random.Generator) -> Raw:
    """Sections damaged as `what` (z,) of Damage values says.

    MISSING is black; LOW_CONTRAST keeps its mean, and `contrast` of the distance from it; REPEATED shows the section
    before it (the first: the one after it); ARTIFACT is covered in part by another section of the patch, see
    `artifact`.
    """
    result = raw.copy()
    for z in np.flatnonzero(what):
        if what[z] == Damage.MISSING:
            result[z] = 0.0
        elif what[z] == Damage.LOW_CONTRAST:
            mean = raw[z].mean()
            result[z] = np.clip(mean + (raw[z] - mean) * np.float32(contrast), 0.0, 1.0)
        elif what[z] == Damage.REPEATED:
            result[z] = raw[z - 1 if z else min(1, len(raw) - 1)]
        elif what[z] == Damage.ARTIFACT:
            alpha, content = artifact(raw, generator)
            result[z] = raw[z] * (1 - alpha) + content * alpha
    return result


def artifact(raw: Raw, generator: np.random.Generator) -> tuple[Alpha, Raw]:
    """What covers a section, both (y, x): opacity 0 to 1, an ellipse with soft edges; and a section of the patch,
    mirrored and moved, so that it does not go on into its surroundings."""
    size = raw.shape[1:]
    centre = [generator.uniform(0, n) for n in size]
    radius = [max(1.0, generator.uniform(*ARTIFACT_RADIUS) * n) for n in size]
    y, x = ((np.arange(n) + 0.5 - c) / r for n, c, r in zip(size, centre, radius, strict=True))
    distance = np.hypot(y[:, None], x[None, :])
    alpha = np.clip((1 - distance) / ARTIFACT_EDGE, 0.0, 1.0).astype(np.float32)
    section = raw[generator.integers(len(raw)), ::-1, ::-1]
    moved = [int(generator.integers(n)) for n in size]
    return alpha, np.roll(section, moved, axis=(0, 1))
