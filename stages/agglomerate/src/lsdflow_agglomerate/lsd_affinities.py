"""Affinities from LSDs: high where the predicted LSDs fit better to two fragments as one than to each alone.

For every face between two fragments, voxel p on one side and q on the other:

    +-------+-------+     apart       e_apart  = |L(p) - D_u(p)|^2  + |L(q) - D_v(q)|^2
    |  u  p | q  v  |     together    e_joined = |L(p) - D_uv(p)|^2 + |L(q) - D_uv(q)|^2
    +-------+-------+
                          gain = e_apart - e_joined
                          affinity = 1/2 + 1/2 gain / (1 + |gain|)      1: surely one neuron; 1/2: no difference

L are the predicted LSDs, D_u those of the fragment u, D_uv those of u and v as one.
1. List the faces of a box towards lower neighbours.
2. Take the moments of each fragment around the voxels of its faces, on both sides, by convolutions on their box alone.
3. The moments of u and v as one are the sum of both, so a pair needs no convolution.
4. Convert moments to channels, and channels to affinities.

A voxel's descriptors depend on labels within a fixed distance, which is read around the box, so the result does not
depend on the blocks.
Source: LsdAgglomeration in the repository of the LSD paper scores a merge by s(u + v) - s(u) - s(v), s being the sum of
squared differences. As an affinity of faces, the score can be used with every merge function, and on the whole graph.
Errors of the network that affect both terms cancel in the difference. There is no exp, because its last bit differs
between machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.arrays import dequantise_u8, quantise_u8
from lsdflow_contract.geometry import Box, Nm3
from lsdflow_descriptors.label_descriptors import CHANNELS, channels_of, kernels_of, moments_of, radius_vox
from lsdflow_runtime.io.volumes import Volume

UInt64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]
Floats = NDArray[np.float32]
INSIDE, HALF = np.uint8(255), np.float32(0.5)


@dataclass(frozen=True)
class LsdAffinities:
    """A volume like that of predicted affinities, (3, z, y, x) u8, computed from fragments and predicted LSDs."""

    fragments: Volume
    lsds: Volume
    sigma_nm: Nm3
    voxel_size_nm: Nm3

    def read(self, box: Box) -> NDArray[np.uint8]:
        """The affinities of a box; 255 where there is no face between fragments."""
        near = box.grow((1, 1, 1), (0, 0, 0)).intersect(self.fragments.box)
        seen = near.grow(radius_vox(self.sigma_nm, self.voxel_size_nm))
        labels = self.fragments.read(seen, outside="zero")
        return lsd_affinities(labels, self.lsds.read(near), (box, near), self.sigma_nm, self.voxel_size_nm)


def lsd_affinities(
    labels: UInt64s, predicted: NDArray[np.uint8], boxes: tuple[Box, Box], sigma_nm: Nm3, voxel_size_nm: Nm3
) -> NDArray[np.uint8]:
    """Affinities (3, z, y, x) u8 of the first of `boxes`; 255 where there is no face between fragments.

    :param labels: ids of the second box and of `radius_vox` voxels around it, 0 = none.
    :param predicted: LSDs (10, z, y, x) u8 of the second box: the first box, and the layer below it if there is one.
    """
    write, near = boxes
    radius = radius_vox(sigma_nm, voxel_size_nm)
    own = labels[tuple(slice(r, r + n) for r, n in zip(radius, near.shape_vox, strict=True))]
    before = np.subtract(write.begin_vox, near.begin_vox)
    axis, p = _faces(own, before)
    q = p - np.eye(3, dtype=np.int64)[axis]
    u, v = own[tuple(p.T)], own[tuple(q.T)]
    kernels = [kernels_of(s / n) for s, n in zip(sigma_nm, voxel_size_nm, strict=True)]
    of_u_at_p, of_u_at_q, of_v_at_p, of_v_at_q = np.split(
        _moments(labels, np.concatenate([u, u, v, v]), np.concatenate([p, q, p, q]), kernels), 4, axis=1
    )
    at_p, at_q = (dequantise_u8(predicted[(slice(None), *voxels.T)]) for voxels in (p, q))
    error = partial(_squared_error, sizes_nm=(sigma_nm, voxel_size_nm))
    apart = error(of_u_at_p, at_p) + error(of_v_at_q, at_q)
    joined = error(of_u_at_p + of_v_at_p, at_p) + error(of_u_at_q + of_v_at_q, at_q)
    gain = apart - joined
    affinity = HALF + HALF * gain / (1 + np.abs(gain))
    made = np.full((3, *write.shape_vox), INSIDE)
    made[(axis, *(p - before).T)] = quantise_u8(affinity)
    return made


def _squared_error(moments: Floats, seen: Floats, sizes_nm: tuple[Nm3, Nm3]) -> Floats:
    """Sums (F,) of squared differences of the channels from `moments` (10, F) and those seen; sizes: sigma, voxels."""
    difference = channels_of(moments, *sizes_nm) - seen
    squared: Floats = (difference * difference).sum(axis=0)
    return squared


def _faces(own: UInt64s, before: Int64s) -> tuple[Int64s, Int64s]:
    """Faces of the voxels from `before` on, towards lower neighbours in another fragment: axis (F,), voxel (F, 3)."""
    axes, voxels = [np.zeros(0, np.int64)], [np.zeros((0, 3), np.int64)]
    for axis in range(3):
        first = before.copy()
        first[axis] = 1
        upper = tuple(slice(int(f), None) for f in first)
        lower = tuple(slice(0, -1) if n == axis else part for n, part in enumerate(upper))
        here, there = own[upper], own[lower]
        found = np.argwhere((here != there) & (here != 0) & (there != 0)) + first
        axes.append(np.full(len(found), axis, np.int64))
        voxels.append(found)
    return np.concatenate(axes), np.concatenate(voxels)


def _moments(labels: UInt64s, wanted: UInt64s, voxels: Int64s, kernels: list[NDArray[np.float64]]) -> Floats:
    """Moments (10, N) of the label wanted[n] around voxels[n], whose indices do not include the context of `labels`."""
    found = np.empty((CHANNELS, len(wanted)), np.float32)
    radius = [kernel.shape[1] // 2 for kernel in kernels]
    for label, rows in _by_label(wanted):
        begin, end = voxels[rows].min(axis=0), voxels[rows].max(axis=0) + 1
        box = tuple(slice(b, e + 2 * r) for b, e, r in zip(begin.tolist(), end.tolist(), radius, strict=True))
        mask = (labels[box] == label).astype(np.float32)
        moments = moments_of(mask, kernels, radius, (end - begin).tolist())
        found[:, rows] = moments[(slice(None), *(voxels[rows] - begin).T)]
    return found


def _by_label(wanted: UInt64s) -> Iterator[tuple[np.uint64, Int64s]]:
    """Each label with its rows."""
    order = np.argsort(wanted, kind="stable")
    labels, first = np.unique(wanted[order], return_index=True)
    # Without labels, np.split returns one empty part.
    yield from zip(labels, np.split(order, first[1:]), strict=False)
