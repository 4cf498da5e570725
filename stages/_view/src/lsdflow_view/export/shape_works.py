"""Meshes and skeletons of chosen segments of a precomputed volume, segment by segment, each in bounded memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from cloudvolume import CloudVolume

from lsdflow_contract.errors import UsageError
from lsdflow_contract.files import storage_errors, write_json
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_contract.hashing import hash_of
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.chunk_files import make_durable
from lsdflow_view.export.folder import Work
from lsdflow_view.export.precomputed_layer import BLOCK_VOX, PrecomputedLayer
from lsdflow_view.export.pyramid import Level
from lsdflow_view.export.segments import SegmentTable, table_of_blocks
from lsdflow_view.export.shapes import (
    MESH_BYTES_PER_VOXEL,
    RADIUS,
    SKELETON_BYTES_PER_VOXEL,
    mesh_of,
    skeleton_of,
)

LOG = logging.getLogger("lsdflow.export")
Kind = Literal["mesh", "skeletons"]
_BYTES_PER_VOXEL = {"mesh": MESH_BYTES_PER_VOXEL, "skeletons": SKELETON_BYTES_PER_VOXEL}


@dataclass(frozen=True)
class ShapeOptions:
    """What is wanted: so many of the largest segments (0: none), from which level, and at what price.

    error_nm: how far vertices of a mesh may be moved to save triangles; None: the smallest edge of a voxel.
    """

    meshes: int = 0
    skeletons: int = 0
    of: str = "segmentation"
    level: int = 0
    error_nm: float | None = None
    memory_gib: float = 4.0


@dataclass(frozen=True)
class ShapeWork:
    """The meshes, or the skeletons, of chosen segments."""

    kind: Kind
    layer: PrecomputedLayer
    table: SegmentTable
    rows: list[int]
    options: ShapeOptions

    @cached_property
    def key(self) -> str:
        """Names what is made: segments, of which level, how exact."""
        ids = [int(self.table.ids[row]) for row in self.rows]
        return hash_of([self.layer.key, self.kind, ids, self.level.number, self.error_nm])

    @property
    def name(self) -> str:
        """The word for several of them."""
        return "meshes" if self.kind == "mesh" else "skeletons"

    @property
    def level(self) -> Level:
        """The level that the masks are read from."""
        return self.layer.levels[self.options.level]

    @property
    def error_nm(self) -> float:
        """How far a vertex of a mesh may be moved."""
        told = self.options.error_nm
        return min(self.level.voxel_size_nm) if told is None else told

    def work(self) -> Work:
        """The segments, one after another."""
        return Work(
            name=f"{self.layer.layer.name}-{self.kind}",
            key=self.key,
            count=len(self.rows),
            folder=self._folder,
            begin=self._begin,
            write=lambda number: self._write(self.rows[number]),
        )

    def list_segments(self) -> None:
        """Name the segments, so that neuroglancer lists them beside the volume."""
        folder = self.layer.folder / "segment_properties"
        write_json(folder / "info", segment_properties(self.table, self.rows))

    def require_fit(self) -> None:
        """UsageError (2) for a segment whose bounding box needs more memory than is allowed."""
        allowed = self.options.memory_gib * 2**30
        for row in self.rows:
            needed = self._bytes(row, self.level.number)
            if needed <= allowed:
                continue
            fits = [n for n in range(len(self.layer.levels)) if self._bytes(row, n) <= allowed]
            coarser = f"take them from a coarser level: --shape-level {fits[0]}; or " if fits else ""
            raise UsageError(
                f"the bounding box of a segment is too large for its {self.kind}",
                where=f"segment {self.table.ids[row]}: {self._box(row, self.level.number)}, level {self.level.number}",
                wanted=f"at most {self.options.memory_gib:g} GiB",
                found=f"about {needed / 2**30:.1f} GiB",
                hint=f"{coarser}allow more: --shape-memory-gib {needed / 2**30:.1f}",
            )

    @property
    def _folder(self) -> Path:
        return self.layer.folder / self.kind

    def _begin(self) -> bool:
        """The info of the shapes; that of the volume names them only when they are all there."""
        new = not self._folder.is_dir()
        write_json(self._folder / "info", _INFO[self.kind])
        return new

    def _write(self, row: int) -> None:
        segment, box = int(self.table.ids[row]), self._box(row, self.options.level)
        mask = self._mask(segment, box)
        if not mask.any():
            LOG.warning("segment %d has no voxel in level %d: it gets no %s", segment, self.level.number, self.kind)
            return
        size = self.level.voxel_size_nm
        with storage_errors(self._folder):
            if self.kind == "mesh":
                mesh = mesh_of(mask, box.begin_vox, size, self.error_nm, segment)
                self._opened.mesh.put(mesh, compress=None)
                names = [f"{segment}:0", f"{segment}:0:1"]
            else:
                self._opened.skeleton.upload(skeleton_of(mask, box.begin_vox, size, segment))
                names = [str(segment)]
            make_durable(self._folder, [self._folder / name for name in names])

    @cached_property
    def _opened(self) -> CloudVolume:
        return self.layer.open(self.options.level)

    def _mask(self, segment: int, box: Box) -> npt.NDArray[np.bool_]:
        mask = np.zeros(box.shape_vox, np.bool_)
        for block in BlockPlan(box, (BLOCK_VOX,) * 3).blocks():
            mask[block.write.slices(box.begin_vox)] = self.layer.read(self.options.level, block.write) == segment
        return mask

    def _box(self, row: int, number: int) -> Box:
        """The segment's bounding box in voxels of a level."""
        begin, end = self.table.box(row).begin_vox, self.table.box(row).end_vox
        for level in self.layer.levels[1 : number + 1]:
            begin = _three(b // s for b, s in zip(begin, level.step, strict=True))
            end = _three(-(-e // s) for e, s in zip(end, level.step, strict=True))
        return Box.from_bounds(begin, end)

    def _bytes(self, row: int, number: int) -> int:
        return self._box(row, number).grow((1, 1, 1)).size * _BYTES_PER_VOXEL[self.kind]


def shape_works(layer: PrecomputedLayer | None, options: ShapeOptions) -> list[ShapeWork]:
    """What is to be made of the largest segments of a layer (None: nothing) as soon as its levels are written.

    Raises UsageError (2) if the layer has no such level or a segment is too large.
    """
    if layer is None:
        return []
    if options.level >= len(layer.levels):
        raise UsageError("no such level", where="--shape-level", wanted=f"0 to {len(layer.levels) - 1}")
    wanted: tuple[tuple[Kind, int], ...] = (("mesh", options.meshes), ("skeletons", options.skeletons))
    table = table_of_blocks(_blocks(layer))
    works = [ShapeWork(kind, layer, table, table.largest(count), options) for kind, count in wanted if count]
    for work in works:
        work.require_fit()
    return works


def segment_properties(table: SegmentTable, rows: list[int]) -> dict[str, Any]:
    """The list of chosen segments that neuroglancer shows beside the volume, with their voxels."""
    voxels = {"id": "voxels", "type": "number", "data_type": "float32"}
    return {
        "@type": "neuroglancer_segment_properties",
        "inline": {
            "ids": [str(table.ids[row]) for row in rows],
            "properties": [{**voxels, "values": [float(table.sizes_vox[row]) for row in rows]}],
        },
    }


def _blocks(layer: PrecomputedLayer) -> Iterator[tuple[npt.NDArray[Any], Vox3]]:
    """The source's blocks, and where they lie on the grid of the world."""
    volume, begin = layer.layer.volume, layer.levels[0].box.begin_vox
    for block in BlockPlan(volume.box, volume.chunk_shape_vox).blocks():
        yield volume.read(block.write), block.write.translate(begin).begin_vox


def _three(values: Iterator[int]) -> Vox3:
    z, y, x = values
    return z, y, x


_INFO: dict[str, dict[str, Any]] = {
    "mesh": {"@type": "neuroglancer_legacy_mesh"},
    "skeletons": {
        "@type": "neuroglancer_skeletons",
        "transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
        "vertex_attributes": [RADIUS],
    },
}
