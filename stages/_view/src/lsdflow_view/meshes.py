"""Meshes of segments as neuroglancer's legacy precomputed meshes, and those that a viewer makes on request.

    <folder>/info            the kind of mesh
    <folder>/<segment>:0     names the file of the mesh
    <file>                   number of vertices (uint32), vertices (float32, x, y, z in nm), triangles (uint32)

No result holds the positions of segments, so a viewer reads a segmentation once: the finest level with READ_VOX voxels
or fewer, or, if there is none, so many voxels around the position that it opens at. It keeps every so many-th voxel of
them, KEPT_VOX or fewer. Thus neither time nor memory depends on the size of the volume.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import fastremap
import numpy as np
import numpy.typing as npt
import zmesh

from lsdflow_contract.errors import StageError
from lsdflow_contract.geometry import Box, Geometry, Nm3, Vox3
from lsdflow_contract.viewer_state import ViewerLayer
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_view.export.levels import Read, pyramid, whole_chunks

LOG = logging.getLogger("lsdflow.view")
SHOWN = 12
READ_VOX = 1 << 26
KEPT_VOX = 1 << 23
AT_ONCE_VOX = 1 << 22
MESH_INFO = {"@type": "neuroglancer_legacy_mesh"}


def mesh_of(mask: npt.NDArray[np.bool_], begin_nm: Nm3, voxel_size_nm: Nm3, error_nm: float) -> bytes:
    """The mesh of a mask (z, y, x) that begins at `begin_nm`; closed, even where the mask touches its border.

    error_nm: how far a vertex may be moved to save triangles.
    """
    size = np.array(voxel_size_nm[::-1])
    mesher = zmesh.Mesher(tuple(size))
    # One voxel of background on every side closes the mesh. (`close` of zmesh moves the mesh by a voxel.)
    mesher.mesh(np.pad(mask.astype(np.uint8), 1).T, close=False)
    simplifying: dict[str, Any] = {"reduction_factor": 100, "max_error": error_nm} if error_nm > 0 else {}
    found = mesher.get(1, normals=False, voxel_centered=True, **simplifying)
    vertices = (found.vertices.astype(np.float64) + np.array(begin_nm[::-1]) - size).astype("<f4")
    parts = (np.array(len(vertices), "<u4"), vertices, found.faces.astype("<u4"))
    return b"".join(part.tobytes() for part in parts)


def mesh_manifest(file: str) -> bytes:
    """The file that names the only file of a mesh."""
    return json.dumps({"fragments": [file]}, separators=(",", ":")).encode()


@dataclass(frozen=True)
class LabelLevel:
    """One level of a segmentation: its voxels (of boxes that begin at 0), their place, and the shape of its chunks."""

    read: Read
    geometry: Geometry
    chunk_vox: Vox3


@dataclass(frozen=True)
class Coarse:
    """Segment ids (z, y, x) in memory, with their place."""

    labels: npt.NDArray[np.uint64]
    voxel_size_nm: Nm3
    begin_nm: Nm3


def coarse_copy(levels: Iterable[LabelLevel], position_nm: Nm3 | None) -> Coarse:
    """At most KEPT_VOX voxels of a segmentation, whose levels are given from the finest on: see the module."""
    *_, coarsest = levels
    level = next((one for one in levels if math.prod(one.geometry.shape_vox) <= READ_VOX), coarsest)
    grid, region = level.geometry, _region(level, position_nm)
    size = grid.voxel_size_nm
    kept = next(found for found in pyramid(size, Box((0, 0, 0), region.shape_vox), 64) if found.box.size <= KEPT_VOX)
    steps = [round(coarse / fine) for coarse, fine in zip(kept.voxel_size_nm, size, strict=True)]
    labels = np.zeros(kept.box.shape_vox, np.uint64)
    for part in BlockPlan(region, whole_chunks(region, level.chunk_vox, AT_ONCE_VOX)).blocks():
        local = part.write.slices(region.begin_vox)
        taken, places = zip(*(_every(along, step) for along, step in zip(local, steps, strict=True)), strict=True)
        labels[places] = level.read(part.write)[taken]
    return Coarse(labels, kept.voxel_size_nm, grid.position_nm(region.begin_vox))


def _region(level: LabelLevel, position_nm: Nm3 | None) -> Box:
    """All voxels of a level, or the chunks around a position (None: the middle) with READ_VOX voxels or fewer."""
    grid = level.geometry
    if grid.box.size <= READ_VOX:
        return grid.box
    edges, begin = whole_chunks(grid.box, level.chunk_vox, READ_VOX), []
    for axis, (chunk, edge, length) in enumerate(zip(level.chunk_vox, edges, grid.shape_vox, strict=True)):
        at = length / 2
        if position_nm is not None:
            at = (position_nm[axis] - grid.offset_nm[axis]) / grid.voxel_size_nm[axis]
        begin.append(max(0, round(min(at - edge / 2, length - edge) / chunk)) * chunk)
    region = Box((begin[0], begin[1], begin[2]), edges).intersect(grid.box)
    LOG.warning(
        "the 3-D panel shows the segments within %s of %s voxels, not of the whole volume, which has no coarser level: "
        "lsdflow export ome DIR FOLDER, then --export FOLDER",
        *(region, grid.shape_vox),
    )
    return region


def _every(along: slice, step: int) -> tuple[slice, slice]:
    """Of the voxels `along` an axis, the middle one of each `step`; and the places of these."""
    first, end = (-(-(bound - step // 2) // step) for bound in (along.start, along.stop))
    return slice(first * step + step // 2 - along.start, None, step), slice(first, end)


class Meshes:
    """The meshes of a segmentation at the address `meshes`: made one at a time, on request.

    is_needed: False once the viewer ends; what is read then fails, because Python takes its threads away.
    """

    def __init__(self, levels: Sequence[LabelLevel], position_nm: Nm3 | None = None) -> None:
        self._levels, self._position_nm = levels, position_nm
        self.is_needed = True
        self._lock = Lock()
        self._copy: Coarse | None = None
        self._layers: tuple[ViewerLayer, ...] | None = None

    def layers(self) -> tuple[ViewerLayer, ...]:
        """The layer of the SHOWN largest segments; none without a segmentation, or if it cannot be read (a warning)."""
        with self._lock:
            if self._layers is None:
                self._layers = self._opened() if self._levels else ()
            return self._layers

    def file(self, name: str) -> bytes | None:
        """The content of a file of the folder of meshes; None if it does not exist."""
        if name == "info":
            return json.dumps(MESH_INFO).encode()
        segment = name.removesuffix(":0")
        if not (segment.isascii() and segment.isdecimal() and self.layers() and self._copy) or int(segment) >= 1 << 64:
            return None
        if name != segment:
            return mesh_manifest(segment)
        with self._lock:
            return _mesh_in(self._copy, int(segment))

    def _opened(self) -> tuple[ViewerLayer, ...]:
        try:
            copy = self._copy = coarse_copy(self._levels, self._position_nm)
        except StageError as error:
            if self.is_needed:
                LOG.warning("no meshes: %s", error.message())
            return ()
        ids, sizes_vox = fastremap.unique(copy.labels, return_counts=True)
        largest = [int(ids[row]) for row in np.argsort(-sizes_vox.astype(np.int64), kind="stable") if ids[row]][:SHOWN]
        place = (copy.voxel_size_nm, copy.begin_nm, copy.labels.shape)
        layer = ViewerLayer("meshes", "labels", "meshes", *place, form="precomputed", segments=tuple(largest))
        return (layer,) if largest else ()


def _mesh_in(copy: Coarse, segment: int) -> bytes | None:
    """The mesh of a segment; None if the copy has no voxel of it."""
    mask = copy.labels == np.uint64(segment)
    along = [np.flatnonzero(mask.any(axis=axes)) for axes in ((1, 2), (0, 2), (0, 1))]
    if not len(along[0]):
        return None
    begin = [int(found[0]) for found in along]
    part = mask[tuple(slice(found[0], found[-1] + 1) for found in along)]
    sizes = copy.voxel_size_nm
    z, y, x = (corner + n * size for corner, n, size in zip(copy.begin_nm, begin, sizes, strict=True))
    return mesh_of(part, (z, y, x), sizes, min(sizes))
