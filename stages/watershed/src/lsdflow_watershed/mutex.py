"""Mutex watershed: computes fragments from affinities to near and far voxels, without seeds and without a threshold.

1. An affinity (0 to 1) plus the bias of its channel is the weight of an edge: above 0 it attracts, below 0 it repels.
2. Edges, attracting and repelling together, are processed from strong to weak. For the two clusters that contain the
   ends of an edge:

       attracting   they become one, unless there is a mutex between them;       (o o)~~~(o o)   ->   (o o o o)
       repelling    they get a mutex: they never become one.                     (o o) | (o o)

3. The clusters are the fragments. A voxel without attracting edges is in no fragment.
4. `remove_debris_vox`: clear fragments of few voxels.
5. `filter_fragments` and `epsilon_agglomerate` as for seeded fragments, with the three nearest affinities.

Edges of equal strength are ordered by channel, attracting before repelling, then by position. So the result depends on
the affinities only, and equals `mwatershed.agglom(affs + bias, offsets)` if no two strengths are equal.

Source: Wolf et al. (2019), The Mutex Watershed and its Objective, arXiv 1904.12654. Clusters and mutexes are in
mutex_clusters.py. There are few grey levels, so edges are sorted by counting. They are processed in rounds of at most
as many edges as voxels; later rounds use only edges between different clusters (Osipov et al. 2009, filter-Kruskal).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import ConfigError
from lsdflow_contract.geometry import Nm3, Vox3
from lsdflow_runtime.compiled import compiled
from lsdflow_watershed.distance import FULL_SCALE
from lsdflow_watershed.fragments import FragmentRules, strong_fragments
from lsdflow_watershed.mutex_clusters import Clusters

Bytes = NDArray[np.uint8]
_LEVELS = FULL_SCALE + 1
# Weights are rounded to so many decimals, so that 51/255 - 0.2 is 0.
_DECIMALS = 9
_NEAREST = 3
_EVERY_VOXEL: Vox3 = (1, 1, 1)
# In shortest voxel edges; of 1, 2, 4 and 8 this was the best on FIB-25 (benchmarks/README.md).
_USUAL_STRIDE_EDGES = 4


@dataclass(frozen=True)
class Channel:
    """One channel of affinities: offset of the other voxel (z, y, x), bias, and stride of the voxels that are used."""

    offset_vox: Vox3
    bias: float
    stride_vox: Vox3 = (1, 1, 1)


@dataclass(frozen=True)
class _Edges:
    """The edges of a channel in a box. Rows: begin, end and step of voxels per axis; flat offset to the end."""

    channel: int
    bounds: NDArray[np.int64]
    to_end: int


@dataclass(frozen=True)
class _Level:
    """All edges of one channel and one grey level, which have the same strength."""

    channel: int
    grey: int
    attracts: bool


def mutex_watershed(
    affs: Bytes, channels: Sequence[Channel], mask: Bytes | None = None, begin_vox: Vox3 = (0, 0, 0)
) -> NDArray[np.uint32]:
    """Compute the fragments of a box.

    :param affs: (channels, z, y, x) u8: affinity of a voxel to the voxel at the channel's offset.
    :param mask: (z, y, x) u8, fragments only where > 0; None = everywhere.
    :param begin_vox: where the box begins in the volume; strides are counted from the volume's first voxel.
    :returns: (z, y, x) numbers 1, 2, ... in the order of their first voxels; 0 = no fragment.
    """
    shape = affs.shape[1:]
    usable = np.ones(shape, np.uint8) if mask is None else (mask > 0).astype(np.uint8)
    edges = [_edges_in(number, channel, shape, begin_vox) for number, channel in enumerate(channels)]
    weights = [_weights(channel.bias) for channel in channels]
    attracted = np.zeros(shape, np.uint8)
    for some, weight in zip(edges, weights, strict=True):
        _mark_attracted(affs[some.channel], usable.ravel(), some.bounds, some.to_end, weight > 0, attracted.ravel())
    clusters = Clusters.of_single_voxels(attracted.size)
    counts = [_count(affs[some.channel], attracted.ravel(), some.bounds, some.to_end) for some in edges]
    order = np.empty(attracted.size, np.int32)
    for levels in _rounds(_by_strength(weights), counts, order.size):
        _take(levels, affs, attracted.ravel(), edges, clusters, order, counts)
    return clusters.numbered(attracted.ravel()).reshape(shape)


def _edges_in(number: int, channel: Channel, shape: tuple[int, ...], begin_vox: Vox3) -> _Edges:
    """The edges that end inside the box, for every n-th voxel of the volume."""
    bounds = np.zeros((3, 3), np.int64)
    for axis, (offset, stride) in enumerate(zip(channel.offset_vox, channel.stride_vox, strict=True)):
        first = max(0, -offset)
        bounds[:, axis] = first + -(begin_vox[axis] + first) % stride, min(shape[axis], shape[axis] - offset), stride
    z, y, x = channel.offset_vox
    return _Edges(number, bounds, (z * shape[1] + y) * shape[2] + x)


def _weights(bias: float) -> NDArray[np.float64]:
    """Weight of each grey level."""
    return np.round(np.arange(_LEVELS) / FULL_SCALE + bias, _DECIMALS)


def _by_strength(weights: Sequence[NDArray[np.float64]]) -> list[_Level]:
    """Levels from strong to weak; a weight of 0 is left out."""
    keyed = [
        (-abs(weight), channel, weight < 0, grey)
        for channel, of_channel in enumerate(weights)
        for grey, weight in enumerate(of_channel.tolist())
        if weight != 0
    ]
    return [_Level(channel, grey, not repels) for _, channel, repels, grey in sorted(keyed)]


def _rounds(levels: Sequence[_Level], counts: Sequence[NDArray[np.int64]], room: int) -> Iterator[list[_Level]]:
    """Levels in order, as many at a time as have edges that fit into `room`, at least one."""
    together: list[_Level] = []
    edges = 0
    for level in levels:
        more = int(counts[level.channel][level.grey])
        if together and edges + more > room:
            yield together
            together, edges = [], 0
        if more:
            together.append(level)
            edges += more
    if together:
        yield together


def _take(
    levels: Sequence[_Level],
    affs: Bytes,
    attracted: Bytes,
    edges: Sequence[_Edges],
    clusters: Clusters,
    order: NDArray[np.int32],
    counts: Sequence[NDArray[np.int64]],
) -> None:
    """Sort the edges of some levels by counting, without those inside a cluster, and apply them to the clusters."""
    clusters.flatten()
    places = np.full((len(edges), _LEVELS), -1, np.int64)
    begin = 0
    for level in levels:
        places[level.channel, level.grey] = begin
        begin += int(counts[level.channel][level.grey])
    begins = places.copy()
    for some in edges:
        if (places[some.channel] >= 0).any():
            values, room = affs[some.channel], places[some.channel]
            _collect(values, attracted, some.bounds, some.to_end, clusters.parent, room, order)
    for level in levels:
        found = order[begins[level.channel, level.grey] : places[level.channel, level.grey]]
        clusters.take(found, edges[level.channel].to_end, level.attracts)


@compiled
def _mark_attracted(
    affs: Bytes, usable: Bytes, bounds: NDArray[np.int64], to_end: int, attracts: NDArray[np.bool_], attracted: Bytes
) -> None:
    ny, nx = affs.shape[1:]
    for z in range(bounds[0, 0], bounds[1, 0], bounds[2, 0]):
        for y in range(bounds[0, 1], bounds[1, 1], bounds[2, 1]):
            row = (z * ny + y) * nx
            for x in range(bounds[0, 2], bounds[1, 2], bounds[2, 2]):
                if attracts[affs[z, y, x]] and usable[row + x] and usable[row + x + to_end]:
                    attracted[row + x] = attracted[row + x + to_end] = 1


@compiled
def _count(affs: Bytes, attracted: Bytes, bounds: NDArray[np.int64], to_end: int) -> NDArray[np.int64]:
    """Number of edges of each grey level, without those that end at a voxel without attracting edges."""
    counts = np.zeros(256, np.int64)
    ny, nx = affs.shape[1:]
    for z in range(bounds[0, 0], bounds[1, 0], bounds[2, 0]):
        for y in range(bounds[0, 1], bounds[1, 1], bounds[2, 1]):
            row = (z * ny + y) * nx
            for x in range(bounds[0, 2], bounds[1, 2], bounds[2, 2]):
                if attracted[row + x] and attracted[row + x + to_end]:
                    counts[affs[z, y, x]] += 1
    return counts


@compiled
def _collect(
    affs: Bytes,
    attracted: Bytes,
    bounds: NDArray[np.int64],
    to_end: int,
    parent: NDArray[np.int32],
    places: NDArray[np.int64],
    order: NDArray[np.int32],
) -> None:
    """Write the voxels of levels with a place to `order`, if their edges are between two (flattened) clusters."""
    ny, nx = affs.shape[1:]
    for z in range(bounds[0, 0], bounds[1, 0], bounds[2, 0]):
        for y in range(bounds[0, 1], bounds[1, 1], bounds[2, 1]):
            row = (z * ny + y) * nx
            for x in range(bounds[0, 2], bounds[1, 2], bounds[2, 2]):
                grey = affs[z, y, x]
                place = places[grey]
                if place < 0:
                    continue
                begin, end = row + x, row + x + to_end
                if not (attracted[begin] and attracted[end]):
                    continue
                one = parent[begin] if parent[begin] >= 0 else begin
                other = parent[end] if parent[end] >= 0 else end
                if one != other:
                    order[place] = begin
                    places[grey] = place + 1


@dataclass(frozen=True)
class MutexRules:
    """The channels of the affinities, and the smallest size of a fragment."""

    channels: tuple[Channel, ...]
    remove_debris_vox: int = 0


def usual_stride_vox(voxel_size_nm: Nm3) -> Vox3:
    """The default stride per axis, about the same length along each; without it, noise splits cells."""
    reach_nm = _USUAL_STRIDE_EDGES * min(voxel_size_nm)
    z, y, x = (max(1, round(reach_nm / edge)) for edge in voxel_size_nm)
    return z, y, x


def mutex_channels(neighborhood: Sequence[Vox3], bias: Sequence[float], strides: Sequence[Vox3]) -> tuple[Channel, ...]:
    """Offset, bias and stride of each channel: as given (one for all, or one each), else every voxel as published.

    :raises ConfigError: the number of values is neither one nor that of the channels.
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
    chosen = [n for n, channel in enumerate(mutex.channels) if not (rules.fragments_in_xy and channel.offset_vox[0])]
    values = affs if len(chosen) == len(affs) else affs[chosen]
    fragments = mutex_watershed(values, [mutex.channels[n] for n in chosen], mask, begin_vox)
    if mutex.remove_debris_vox > 1:
        fragments = remove_debris(fragments, mutex.remove_debris_vox)
    return strong_fragments(fragments, affs, mask, rules)


def remove_debris(fragments: NDArray[np.uint32], smallest_vox: int) -> NDArray[np.uint32]:
    """Clear fragments of fewer than `smallest_vox` voxels."""
    sizes = np.bincount(fragments.ravel())
    kept = np.arange(sizes.size, dtype=np.uint32)
    kept[sizes < smallest_vox] = 0
    cleared: NDArray[np.uint32] = kept[fragments]
    return cleared
