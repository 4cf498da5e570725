"""Fragments of one block: computes one number per voxel from its affinities.

1. inside = mean affinity above one half, and in the mask.
2. Distance of each inside voxel to the nearest other voxel.
3. Seeds at the local maxima of the distance; each seed floods down until it meets the others. Who gets the voxels that
   are not inside is decided by `boundary` (distance.py).
4. Clear voxels outside the mask.
5. `filter_fragments`: clear fragments whose mean affinity is too low.
6. `epsilon_agglomerate`: join fragments that surely belong together.

blocks      :func:`extract_fragments`: the order and the result of the published script (`lsd.post.parallel_fragments`)
seamless    :func:`seeded_fragments`: the seeds are the same; ties of the flood are decided by them (seamless_flood.py)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import waterz
from numpy.typing import NDArray

from lsdflow_contract.arrays import dequantise_u8
from lsdflow_runtime.compiled import silent_stdout
from lsdflow_watershed.distance import FULL_SCALE, inside_mask, raise_boundary_zone, squared_distance
from lsdflow_watershed.flood import flood
from lsdflow_watershed.ids import number_seeds
from lsdflow_watershed.seamless_flood import flood_by_seed
from lsdflow_watershed.seeds import label_seeds

EPSILON_SCORING = "OneMinus<HistogramQuantileAffinity<RegionGraphType, 25, ScoreValue, 256, false>>"
_BINS = 256


@dataclass(frozen=True)
class FragmentRules:
    """Options for the computation of fragments, named as in the experiment file.

    boundary: for seamless fragments; epsilon_agglomerate: for those of blocks.
    """

    fragments_in_xy: bool = False
    min_seed_distance_vox: int = 10
    filter_fragments: float = 0.0
    epsilon_agglomerate: float = 0.0
    boundary: Literal["affinity", "distance"] = "affinity"


def extract_fragments(
    affs: NDArray[np.uint8], mask: NDArray[np.uint8] | None, rules: FragmentRules
) -> NDArray[np.uint32]:
    """Make the fragments of one block as published: `rules.boundary` is always "distance".

    :param affs: (3, z, y, x) u8, channels z, y, x.
    :param mask: (z, y, x) u8, fragments only where > 0; None = everywhere.
    :returns: (z, y, x), 0 = no fragment; numbers mean nothing outside this array.
    :raises BadData: if `affs` is not a u8 array of three channels.
    """
    distance, seeds = _distance_and_seeds(affs, mask, rules)
    return strong_fragments(flood(distance, seeds, rules.fragments_in_xy), affs, mask, rules)


def seeded_fragments(
    affs: NDArray[np.uint8], mask: NDArray[np.uint8] | None, rules: FragmentRules
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Seamless fragments of a box, numbered by their seeds. Arguments and errors as in :func:`extract_fragments`.

    :returns: (z, y, x) numbers 1..n, 0 = none; and (n,) row-major index of the first voxel of each seed in the box.
    """
    depth, seeds = _distance_and_seeds(affs, mask, rules)
    if rules.boundary == "affinity":
        depth = raise_boundary_zone(depth, affs, rules.fragments_in_xy)
        if mask is not None:
            depth[mask == 0] = 0
    seeds, first = number_seeds(seeds)
    return strong_fragments(flood_by_seed(depth, seeds, rules.fragments_in_xy), affs, mask, rules), first


def _distance_and_seeds(
    affs: NDArray[np.uint8], mask: NDArray[np.uint8] | None, rules: FragmentRules
) -> tuple[NDArray[np.int32], NDArray[np.uint32]]:
    in_xy = rules.fragments_in_xy
    inside = inside_mask(affs, in_xy)
    if mask is not None:
        inside &= mask > 0
    distance = squared_distance(inside, in_xy)
    return distance, label_seeds(distance, rules.min_seed_distance_vox, in_xy)


def strong_fragments(
    fragments: NDArray[np.uint32], affs: NDArray[np.uint8], mask: NDArray[np.uint8] | None, rules: FragmentRules
) -> NDArray[np.uint32]:
    """The last steps: without voxels outside the mask and without weak fragments, and joined, as the rules say."""
    if mask is not None:
        fragments[mask == 0] = 0
    if rules.filter_fragments > 0:
        fragments = drop_weak_fragments(fragments, affs, rules.filter_fragments, rules.fragments_in_xy)
    if rules.epsilon_agglomerate > 0:
        fragments = agglomerate_until(fragments, affs, rules.epsilon_agglomerate)
    return fragments


def drop_weak_fragments(
    fragments: NDArray[np.uint32], affs: NDArray[np.uint8], lowest_mean: float, in_xy: bool
) -> NDArray[np.uint32]:
    """Clear the fragments whose mean affinity (0 to 1) is below `lowest_mean`.

    With `in_xy` the mean is that of the in-plane channels 1 and 2, from which the fragments were computed (the
    published script averages 0 and 1 here).

    :param affs: (3, z, y, x) u8.
    """
    channels = affs[1:3] if in_xy else affs[:3]
    total = channels.sum(axis=0, dtype=np.uint16).ravel()
    sizes = np.bincount(fragments.ravel())
    sums = np.bincount(fragments.ravel(), weights=total)
    kept = np.arange(sizes.size, dtype=np.uint32)
    scale = FULL_SCALE * channels.shape[0]
    kept[sums / scale < lowest_mean * sizes] = 0
    cleared: NDArray[np.uint32] = kept[fragments]
    return cleared


def agglomerate_until(fragments: NDArray[np.uint32], affs: NDArray[np.uint8], threshold: float) -> NDArray[np.uint32]:
    """Join fragments while their score, 1 - quartile of the affinities between them, is below `threshold`.

    :param threshold: score in (0, 1]; higher joins more.
    """
    merged = fragments.astype(np.uint64)
    if not merged.any():
        return fragments
    with silent_stdout():
        steps = waterz.agglomerate(
            affs=dequantise_u8(affs[:3]),
            thresholds=[threshold],
            fragments=merged,
            scoring_function=EPSILON_SCORING,
            discretize_queue=_BINS,
        )
        for _ in steps:
            pass
    return merged.astype(np.uint32)
