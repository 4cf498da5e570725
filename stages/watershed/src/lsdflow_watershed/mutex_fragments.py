"""Fragments of one block by the mutex watershed: which channels count how, and what is cleared afterwards.

1. Mutex watershed of the read box (mutex.py); section by section with the affinities that stay in a section.
2. `remove_debris_vox`: clear fragments of few voxels.
3. `filter_fragments` and `epsilon_agglomerate` as for seeded fragments, by the three nearest affinities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Nm3, Vox3
from lsdflow_watershed.fragments import FragmentRules, agglomerate_until, drop_weak_fragments
from lsdflow_watershed.mutex import Channel, mutex_watershed

_NEAREST = 3
_EVERY_VOXEL: Vox3 = (1, 1, 1)
# In shortest voxel edges; of 1, 2, 4 and 8 this was the best on FIB-25 (benchmarks/README.md).
_USUAL_STRIDE_EDGES = 4


@dataclass(frozen=True)
class MutexRules:
    """The channels of the affinities, and the smallest fragment that is kept."""

    channels: tuple[Channel, ...]
    remove_debris_vox: int = 0


def usual_stride_vox(voxel_size_nm: Nm3) -> Vox3:
    """Every so many voxels per axis, about as far apart along each: with all of them, noise cuts cells to pieces."""
    reach_nm = _USUAL_STRIDE_EDGES * min(voxel_size_nm)
    z, y, x = (max(1, round(reach_nm / edge)) for edge in voxel_size_nm)
    return z, y, x


def mutex_channels(neighborhood: Sequence[Vox3], bias: Sequence[float], strides: Sequence[Vox3]) -> tuple[Channel, ...]:
    """Offset, bias and stride of each channel: as given (one for all, or one each), else as published: every voxel.

    :raises ConfigError: neither one nor as many as there are channels.
    """
    count = len(neighborhood)
    if not bias:
        bias = [-0.5] * count if count == _NEAREST else [0.0] * _NEAREST + [-1.0] * (count - _NEAREST)
    if len(bias) == 1:
        bias = [bias[0]] * count
    if len(strides) <= 1:
        strides = [_EVERY_VOXEL] * _NEAREST + [strides[0] if strides else _EVERY_VOXEL] * (count - _NEAREST)
    for name, values in (("mutex_bias", bias), ("mutex_strides", strides)):
        if len(values) != count:
            raise ConfigError(
                "not as many values as the affinities have channels",
                where=f"watershed.{name}",
                wanted=f"one, or {count}: for the offsets {[list(offset) for offset in neighborhood]}",
                found=len(values),
            )
    return tuple(Channel(*of_channel) for of_channel in zip(neighborhood, bias, strides, strict=True))


def extract_mutex_fragments(
    affs: NDArray[np.uint8],
    mask: NDArray[np.uint8] | None,
    rules: FragmentRules,
    mutex: MutexRules,
    begin_vox: Vox3,
) -> NDArray[np.uint32]:
    """Make the fragments of one block.

    :param affs: (channels, z, y, x) u8, the three nearest first.
    :param mask: (z, y, x) u8, fragments only where > 0; None = everywhere.
    :param begin_vox: where the box begins in the volume.
    :returns: (z, y, x), 0 = no fragment; numbers mean nothing outside this array.
    """
    in_xy = rules.fragments_in_xy
    chosen = [n for n, channel in enumerate(mutex.channels) if not (in_xy and channel.offset_vox[0])]
    values = affs if len(chosen) == len(affs) else affs[chosen]
    fragments = mutex_watershed(values, [mutex.channels[n] for n in chosen], mask, begin_vox)
    if mutex.remove_debris_vox > 1:
        fragments = remove_debris(fragments, mutex.remove_debris_vox)
    if rules.filter_fragments > 0:
        fragments = drop_weak_fragments(fragments, affs, rules.filter_fragments, in_xy)
    if rules.epsilon_agglomerate > 0:
        fragments = agglomerate_until(fragments, affs, rules.epsilon_agglomerate)
    return fragments


def remove_debris(fragments: NDArray[np.uint32], smallest_vox: int) -> NDArray[np.uint32]:
    """Clear fragments of fewer than `smallest_vox` voxels."""
    sizes = np.bincount(fragments.ravel())
    kept = np.arange(sizes.size, dtype=np.uint32)
    kept[sizes < smallest_vox] = 0
    cleared: NDArray[np.uint32] = kept[fragments]
    return cleared
