"""Clusters of voxels and the mutexes between them: the data structures of the mutex watershed.

parent      for each voxel the next one towards the root of its cluster; for a root minus the cluster's size
pairs       the mutexes: a hash set (open addressing) of pairs of roots; a pair with a voxel that is no longer a root is
            obsolete, and is removed when the set grows
first,      for each root a list of the clusters it has a mutex with (by one voxel of each). When two clusters are
other,      joined, the mutexes of the shorter list are renamed, and the list is appended to the longer one
following

A test for a mutex is one lookup in the set, however many mutexes a cluster has; a join costs the shorter list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import ConfigError
from lsdflow_runtime.compiled import compiled

Int32s = NDArray[np.int32]
Pairs = NDArray[np.uint64]

_LIVE, _MADE, _FREE = 0, 1, 2
_MOST_ENTRIES = 2**31 - 1


class Mutexes(NamedTuple):
    """The set of pairs and the list of each root: its first entry and its length (degree); see above.

    tally: pairs in the set, list entries ever made, first free entry (or -1).
    """

    pairs: Pairs
    first: Int32s
    degree: Int32s
    other: Int32s
    following: Int32s
    tally: NDArray[np.int64]


@dataclass
class Clusters:
    """The state of all clusters; all arrays are flat."""

    parent: Int32s
    mutexes: Mutexes

    @classmethod
    def of_single_voxels(cls, size: int) -> Clusters:
        """Every voxel on its own."""
        room = max(16, size // 4)
        mutexes = Mutexes(
            pairs=np.zeros(_power_of_two(2 * room), np.uint64),
            first=np.full(size, -1, np.int32),
            degree=np.zeros(size, np.int32),
            other=np.empty(2 * room, np.int32),
            following=np.empty(2 * room, np.int32),
            tally=np.array([0, 0, -1], np.int64),
        )
        return cls(np.full(size, -1, np.int32), mutexes)

    def take(self, voxels: Int32s, to_end: int, attracts: bool) -> None:
        """Apply the edges from each of `voxels` to the voxel with the index larger by `to_end`, in order.

        :raises ConfigError: more mutexes than can be numbered.
        """
        done = 0
        while done < voxels.size:
            done, needed = _take(voxels, done, to_end, attracts, self.parent, self.mutexes)
            if done < voxels.size:
                self._make_room(needed)

    def _make_room(self, needed: int) -> None:
        pairs, _, _, other, following, tally = self.mutexes
        if tally[_LIVE] + needed > _most_pairs(pairs.size):
            live = _count_live(pairs, self.parent)
            tally[_LIVE] = live
            pairs = _rehashed(pairs, self.parent, np.zeros(_power_of_two(2 * (live + needed)), np.uint64))
        if tally[_MADE] + 2 > other.size:
            if other.size >= _MOST_ENTRIES - 1:
                raise ConfigError(
                    "too many mutexes for one block",
                    where="watershed.block_shape",
                    wanted=f"less than {_MOST_ENTRIES // 2}",
                    fix="make watershed.block_shape smaller, or watershed.mutex_strides larger",
                )
            more = np.empty(min(other.size // 2 + 2, _MOST_ENTRIES - other.size), np.int32)
            other, following = np.concatenate([other, more]), np.concatenate([following, more])
        self.mutexes = self.mutexes._replace(pairs=pairs, other=other, following=following)

    def flatten(self) -> None:
        """Make the root of its cluster the parent of every voxel."""
        _flatten(self.parent)

    def numbered(self, counted: NDArray[np.uint8]) -> NDArray[np.uint32]:
        """Number of each voxel's cluster, 1, 2, ... in the order of first voxels; 0 where `counted` is 0."""
        self.flatten()
        return _numbered(self.parent, counted, np.zeros(self.parent.size, np.uint32))


def _power_of_two(least: int) -> int:
    return 1 << max(4, (least - 1).bit_length())


@compiled
def _most_pairs(room: int) -> int:
    return room * 5 // 8


@compiled
def _root(parent: Int32s, voxel: int) -> int:
    """Root of a voxel's cluster; paths are halved on the way."""
    while True:
        up: int = parent[voxel]
        if up < 0:
            return voxel
        above: int = parent[up]
        if above < 0:
            return up
        parent[voxel] = above
        voxel = above


@compiled
def _place(pairs: Pairs, one: int | np.int64, other: int | np.int64) -> tuple[np.int64, np.uint64]:
    """The index of the pair in the set, or a free index for it."""
    pair = (np.uint64(min(one, other)) << np.uint64(32)) | np.uint64(max(one, other))
    mixed = pair * np.uint64(0x9E3779B97F4A7C15)
    last = np.uint64(pairs.size - 1)
    place = (mixed ^ (mixed >> np.uint64(32))) & last
    while pairs[place] != 0 and pairs[place] != pair:
        place = (place + np.uint64(1)) & last
    return np.int64(place), pair


@compiled
def _take(voxels: Int32s, begin: int, to_end: int, attracts: bool, parent: Int32s, mutexes: Mutexes) -> tuple[int, int]:
    """Apply edges while there is room; returns the first remaining edge, and the number of pairs it needs room for."""
    pairs, _, degree, other, _, tally = mutexes
    most = _most_pairs(pairs.size)
    for n in range(begin, voxels.size):
        a, b = _root(parent, voxels[n]), _root(parent, voxels[n] + to_end)
        if a == b:
            continue
        if not attracts:
            if tally[_LIVE] + 1 > most or tally[_MADE] + 2 > other.size:
                return n, 1
            place, pair = _place(pairs, a, b)
            if pairs[place] == 0:
                pairs[place] = pair
                tally[_LIVE] += 1
                _append(a, b, mutexes)
                _append(b, a, mutexes)
            continue
        if degree[a] > 0 and degree[b] > 0 and pairs[_place(pairs, a, b)[0]] != 0:
            continue
        if degree[a] < degree[b] or (degree[a] == degree[b] and parent[a] > parent[b]):
            a, b = b, a
        if tally[_LIVE] + degree[b] > most:
            return n, degree[b]
        parent[a] += parent[b]
        parent[b] = a
        _reassign_mutexes(a, b, parent, mutexes)
    return voxels.size, 0


@compiled
def _append(root: int, to: int, mutexes: Mutexes) -> None:
    """Append an entry to the list of `root`."""
    _, first, degree, other, following, tally = mutexes
    entry = tally[_FREE]
    if entry >= 0:
        tally[_FREE] = following[entry]
    else:
        entry = tally[_MADE]
        tally[_MADE] += 1
    other[entry] = to
    following[entry] = first[root]
    first[root] = entry
    degree[root] += 1


@compiled
def _reassign_mutexes(a: int, b: int, parent: Int32s, mutexes: Mutexes) -> None:
    """Assign the mutexes of b to a, because b has become a part of a."""
    pairs, first, degree, other, following, tally = mutexes
    entry = first[b]
    while entry >= 0:
        after = following[entry]
        place, pair = _place(pairs, a, _root(parent, other[entry]))
        if pairs[place] == 0:
            pairs[place] = pair
            tally[_LIVE] += 1
            following[entry] = first[a]
            first[a] = entry
            degree[a] += 1
        else:
            following[entry] = tally[_FREE]
            tally[_FREE] = entry
        entry = after
    first[b] = -1


@compiled
def _flatten(parent: Int32s) -> None:
    for voxel in range(parent.size):
        root = _root(parent, voxel)
        if root != voxel:
            parent[voxel] = root


@compiled
def _count_live(pairs: Pairs, parent: Int32s) -> int:
    live = 0
    for pair in pairs:
        if pair != 0 and parent[pair >> np.uint64(32)] < 0 and parent[pair & np.uint64(0xFFFFFFFF)] < 0:
            live += 1
    return live


@compiled
def _rehashed(pairs: Pairs, parent: Int32s, larger: Pairs) -> Pairs:
    for pair in pairs:
        one, other = np.int64(pair >> np.uint64(32)), np.int64(pair & np.uint64(0xFFFFFFFF))
        if pair != 0 and parent[one] < 0 and parent[other] < 0:
            larger[_place(larger, one, other)[0]] = pair
    return larger


@compiled
def _numbered(parent: Int32s, counted: NDArray[np.uint8], number: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Number the clusters; `number`: (voxels,) zeros, in which roots get their numbers."""
    numbers = np.zeros(parent.size, np.uint32)
    known = np.uint32(0)
    for voxel in range(parent.size):
        if counted[voxel] == 0:
            continue
        root = parent[voxel] if parent[voxel] >= 0 else voxel
        if number[root] == 0:
            known += np.uint32(1)
            number[root] = known
        numbers[voxel] = number[root]
    return numbers
