"""The arrays that stages exchange: dataset name, dtype, channels; and the conversion of floats to grey levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING

from lsdflow_contract.geometry import Vox3

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

AFFINITY_NEIGHBORHOOD: tuple[Vox3, ...] = ((-1, 0, 0), (0, -1, 0), (0, 0, -1))


@dataclass(frozen=True)
class ArraySpec:
    """The required form of an array: its dataset name in the container, dtype, number of channels (0 = none), kind.

    `neighborhood`: the offset z, y, x of each channel, for affinities to more than the three nearest voxels.
    """

    dataset: str
    dtype: str
    channels: int
    kind: str
    neighborhood: tuple[Vox3, ...] = ()

    @property
    def axis_names(self) -> tuple[str, ...]:
        """`c^` if there are channels, then z, y, x (the spelling of funlib.persistence)."""
        return ("c^", "z", "y", "x") if self.channels else ("z", "y", "x")


RAW = ArraySpec("volumes/raw", "uint8", 0, "image")
LABELS = ArraySpec("volumes/labels/neuron_ids", "uint64", 0, "labels")
MASK = ArraySpec("volumes/labels/mask", "uint8", 0, "mask")
LSDS = ArraySpec("volumes/lsds", "uint8", 10, "image")
AFFS = ArraySpec("volumes/affs", "uint8", 3, "image")
FRAGMENTS = ArraySpec("volumes/fragments", "uint64", 0, "labels")
SEGMENTATION = ArraySpec("volumes/segmentation", "uint64", 0, "labels")
LSD_ERROR = ArraySpec("volumes/lsd_error", "uint8", 0, "image")


def affinities_to(neighborhood: Sequence[Vox3]) -> ArraySpec:
    """The spec of affinities to the voxels at these offsets; AFFS for the three nearest, or for no offsets."""
    if tuple(neighborhood) in ((), AFFINITY_NEIGHBORHOOD):
        return AFFS
    return replace(AFFS, channels=len(neighborhood), neighborhood=tuple(neighborhood))


def is_neighborhood(offsets: Sequence[Vox3]) -> bool:
    """True if the first three are the nearest voxels, in order, and no voxel (or its opposite) is named twice."""
    pairs = {frozenset({(z, y, x), (-z, -y, -x)}) for z, y, x in offsets}
    return tuple(offsets[:3]) == AFFINITY_NEIGHBORHOOD and len(pairs) == len(offsets) and (0, 0, 0) not in offsets


class MaskState(IntEnum):
    """The three states of a training mask voxel.

    IGNORE adds exactly 0 to every loss. TRAIN is trained with its label. BACKGROUND is trained as background,
    whatever its label is.
    """

    IGNORE = 0
    TRAIN = 1
    BACKGROUND = 2


def quantise_u8(values: npt.NDArray[np.floating]) -> npt.NDArray[np.uint8]:
    """Floats in [0, 1] (clipped) to grey levels floor(value * 255), as stored by predict and used in training."""
    import numpy as np  # a third of the time in which a command starts

    clipped = np.clip(values, 0.0, 1.0).astype(np.float32, copy=False)
    grey: npt.NDArray[np.uint8] = (clipped * np.float32(255.0)).astype(np.uint8)
    return grey


def dequantise_u8(values: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Grey levels 0-255 to float32 in [0, 1]."""
    import numpy as np

    return values.astype(np.float32) / np.float32(255.0)
