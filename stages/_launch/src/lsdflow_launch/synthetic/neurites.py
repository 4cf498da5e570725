"""Centrelines of synthetic neurites: tortuous tubes of very different calibre, packed side by side.

They are persistent random walks in nm, thick ones first. Every step tries a few directions and chooses the one with
the most clearance from existing tubes, so that tubes pack as axons and dendrites do. The radius varies along the way,
and some neurites get one thin side branch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from scipy.spatial import cKDTree

Floats = NDArray[np.float64]

# Radii of insect neuropil in nm: (lower, upper, maximal number of this class in 3.3 cubic micrometres, share of the
# block that the tubes of this class may fill before they grow into the gaps).
CALIBRES_NM = ((170.0, 230.0, 2, 0.18), (80.0, 140.0, 13, 0.30), (24.0, 60.0, 74, 0.40))
CALIBRE_BLOCK_NM3 = 3.3e9
STEP_NM = 40.0
POINT_PITCH_NM = 12.0
TRIES_PER_NEURITE = 6
WIDE_NM = 150.0  # neurites wider than this swell little: one swelling would fill a small block


@dataclass(frozen=True)
class Neurite:
    """One neurite: centreline points (N,3) z,y,x in nm and the tube radius (N,) in nm at each of them."""

    points_nm: Floats
    radii_nm: Floats


class Tubes:
    """The tubes placed so far, as balls along their centrelines, STEP_NM apart."""

    def __init__(self, neurites: list[Neurite]) -> None:
        stride = max(1, int(STEP_NM / POINT_PITCH_NM))
        self._points_nm = np.concatenate([np.empty((0, 3)), *(n.points_nm[::stride] for n in neurites)])
        self._radii_nm = np.concatenate([np.empty(0), *(n.radii_nm[::stride] for n in neurites)])
        self._widest_nm = float(self._radii_nm.max(initial=0.0))
        self._index = cKDTree(self._points_nm)

    def clearance_nm(self, places_nm: Floats) -> Floats:
        """Return the distance (M,) in nm from each place to the nearest tube surface; 1e6 if there are no tubes."""
        return _clearance_nm(places_nm, self._points_nm, self._radii_nm)

    def clearance_around_nm(self, here_nm: Floats, places_nm: Floats, most_nm: float) -> Floats:
        """Return the same for places up to STEP_NM from `here_nm`, at most `most_nm`; only near tubes are examined."""
        near = self._index.query_ball_point(here_nm, STEP_NM + most_nm + self._widest_nm + 1.0)
        return np.minimum(_clearance_nm(places_nm, self._points_nm[near], self._radii_nm[near]), most_nm)


def _clearance_nm(places_nm: Floats, points_nm: Floats, radii_nm: Floats) -> Floats:
    gaps = np.linalg.norm(places_nm[:, None] - points_nm[None], axis=2) - radii_nm[None]
    return np.asarray(gaps.min(axis=1, initial=1e6), np.float64)


def place_neurites(extent_nm: Floats, rng: np.random.Generator) -> list[Neurite]:
    """Return neurites in a block of `extent_nm` (3,): thick first, until each calibre class has its share."""
    neurites: list[Neurite] = []
    tubes = Tubes(neurites)
    block_nm3 = float(np.prod(extent_nm))
    for lower, upper, most, share in CALIBRES_NM:
        misses, placed, filled_nm3 = 0, 0, 0.0
        # `most` is a density, so small blocks hold few neurites and large ones many.
        most_here = max(1, round(most * max(block_nm3 / CALIBRE_BLOCK_NM3, 0.3)))
        while filled_nm3 < share * block_nm3 and placed < most_here and misses < TRIES_PER_NEURITE * most_here:
            radius_nm = float(np.exp(rng.uniform(np.log(lower), np.log(upper))))
            neurite = _walk(extent_nm, min(radius_nm, float(extent_nm.min()) / 5), tubes, rng)
            if neurite is None:
                misses += 1
                continue
            placed += 1
            neurites.append(neurite)
            tubes = Tubes(neurites)
            filled_nm3 += _volume_inside_nm3(neurite, extent_nm)
    return [_with_branch(n, extent_nm, neurites, rng) for n in neurites]


def _volume_inside_nm3(neurite: Neurite, extent_nm: Floats) -> float:
    inside = np.all((neurite.points_nm >= 0) & (neurite.points_nm < extent_nm), axis=1)
    return float((np.pi * neurite.radii_nm[inside] ** 2).sum() * POINT_PITCH_NM)


def _walk(extent_nm: Floats, radius_nm: float, others: Tubes, rng: np.random.Generator) -> Neurite | None:
    """Walk in both directions from a free place; None if there is room for only a few radii."""
    start = _free_place(extent_nm, radius_nm, others, rng)
    if start is None:
        return None
    heading = rng.standard_normal(3)
    heading /= np.linalg.norm(heading)
    back = _half_walk(start, -heading, radius_nm, extent_nm, others, rng)
    ahead = _half_walk(start, heading, radius_nm, extent_nm, others, rng)
    line = np.concatenate([back[::-1], start[None], ahead])
    if (len(line) - 1) * STEP_NM < max(3 * radius_nm, 240.0):
        return None
    return _tube(line, radius_nm, rng)


def _free_place(extent_nm: Floats, radius_nm: float, others: Tubes, rng: np.random.Generator) -> Floats | None:
    """Return the clearest of a few random places; None if it is inside or too close to another tube."""
    places = rng.uniform(0.0, 1.0, (48, 3)) * extent_nm
    clear = others.clearance_nm(places)
    best = int(np.argmax(clear))
    return places[best] if clear[best] > 0.6 * radius_nm else None


def _half_walk(
    start: Floats, heading: Floats, radius_nm: float, extent_nm: Floats, others: Tubes, rng: np.random.Generator
) -> Floats:
    """Return steps from `start` until the walk leaves the block or is blocked; (N,3) nm, without the start."""
    line: list[Floats] = []
    here, margin = start, radius_nm + STEP_NM
    for _ in range(int(4 * extent_nm.max() / STEP_NM)):
        turns = heading + 0.45 * rng.standard_normal((9, 3))
        turns /= np.linalg.norm(turns, axis=1, keepdims=True)
        clear = others.clearance_around_nm(here, here + turns * STEP_NM, 1.3 * radius_nm)
        best = int(np.argmax(clear + 0.35 * radius_nm * rng.standard_normal(9)))
        if clear[best] < 0.35 * radius_nm:
            break
        heading, here = turns[best], here + turns[best] * STEP_NM
        line.append(here)
        if np.any(here < -margin) or np.any(here > extent_nm + margin):
            break
    return np.asarray(line).reshape(-1, 3)


def _tube(line_nm: Floats, radius_nm: float, rng: np.random.Generator) -> Neurite:
    """Return a smooth curve through the walk with a fine pitch; its radius varies along it."""
    smooth = ndimage.gaussian_filter1d(line_nm, 1.2, axis=0, mode="nearest")
    n = max(2, int(len(line_nm) * STEP_NM / POINT_PITCH_NM))
    at = np.linspace(0, len(smooth) - 1, n)
    points = np.stack([np.interp(at, np.arange(len(smooth)), smooth[:, a]) for a in range(3)], axis=1)
    swelling = ndimage.gaussian_filter1d(rng.standard_normal(n + 80), 14.0)[40:-40] * 6.5
    radii = radius_nm * np.exp(np.clip(0.30 * swelling, -0.6, 0.35 if radius_nm > WIDE_NM else 0.7))
    return Neurite(points, radii)


def _with_branch(neurite: Neurite, extent_nm: Floats, others: list[Neurite], rng: np.random.Generator) -> Neurite:
    """Return the neurite; about a third get one thinner side branch that starts on the centreline."""
    if rng.uniform() > 0.35:
        return neurite
    at = int(rng.integers(len(neurite.points_nm)))
    start, radius_nm = neurite.points_nm[at], max(28.0, 0.45 * float(neurite.radii_nm[at]))
    heading = rng.standard_normal(3)
    heading /= np.linalg.norm(heading)
    foot = start + heading * STEP_NM * np.arange(1, 2 + int(neurite.radii_nm[at] / STEP_NM))[:, None]
    strangers = Tubes([o for o in others if o is not neurite])
    if strangers.clearance_nm(foot[-1:])[0] < 0.35 * radius_nm:
        return neurite
    rest = _half_walk(foot[-1], heading, radius_nm, extent_nm, strangers, rng)
    branch = _tube(np.concatenate([start[None], foot, rest]), radius_nm, rng)
    return Neurite(
        np.concatenate([neurite.points_nm, branch.points_nm]), np.concatenate([neurite.radii_nm, branch.radii_nm])
    )
