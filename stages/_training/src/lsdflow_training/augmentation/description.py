"""What is drawn for the augmentation of a patch: one description for both executors.

    nodes.py    draws the steps and changes of a patch, as gunpowder nodes; data/draw.py without gunpowder
    cpu.py      applies them to arrays, in the gunpowder pipeline
    device.py   applies them to tensors, on the training device

A patch is deformed by its steps, in their order, and then its intensities by its changes. `raw` is float32 (z, y, x),
0 (black) to 1 (white). Labels do not change with the intensities: the network must infer what is hidden or blurred from
its surroundings.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lsdflow_contract.geometry import Box, Vox3

Field = npt.NDArray[np.float32]
Positions = npt.NDArray[np.float32]
ARTIFACT_EDGE = 0.25  # width of the soft edge, as a fraction of the artefact's radius
ARTIFACT_RADIUS = (0.125, 0.5)  # range, as a fraction of the section's edges


class Dice(NamedTuple):
    """Sources of random numbers: `random` and `numpy.random`, which gunpowder seeds at each node, or own objects.

    Own ones are not touched by other threads.
    """

    plain: Any
    arrays: Any

    @classmethod
    def of(cls, seed: int) -> Dice:
        """The random numbers that a node draws which gunpowder calls with this seed."""
        return cls(random.Random(seed), np.random.RandomState(seed))  # noqa: S311


GLOBAL_DICE = Dice(random, np.random)


def moved_seed(seed: int, times: int) -> int:
    """The seed of a gunpowder request that was copied so many times; each copy has a seed of its own."""
    for _ in range(times):
        seed = hash((seed + 1) ** 2) % 2**32
    return seed


@dataclass(frozen=True)
class Region:
    """Of one array: box of its result in the deformed box, and where its source begins (both relative to that box)."""

    target: Box
    source_begin_vox: Vox3


@dataclass(frozen=True)
class Warp:
    """An elastic deformation of a box: coarse field (3, a, b, c), shifts of sections (z, 2), regions of the arrays."""

    shape_vox: Vox3
    coarse: Field
    section_shifts_vox: Field | None
    regions: Mapping[str, Region] = field(default_factory=dict)


@dataclass(frozen=True)
class Turn:
    """Axes mirrored, then axes transposed, with the arguments of numpy's flip and transpose."""

    mirror: tuple[bool, bool, bool]
    transpose: Vox3


Step = Warp | Turn
Raw = npt.NDArray[np.float32]
Alpha = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.floating]


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
