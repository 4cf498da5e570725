"""Meshes and skeletons of chosen segments of a precomputed volume. Workers make one at a time, in bounded memory.

The libraries are zmesh (LGPL) and kimimaro (GPL), of the optional environment. Vertices are in nanometers, x, y, z, as
in precomputed: voxel i of an axis is between i and i + 1 times its size.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, Literal

import kimimaro
import numpy as np
import numpy.typing as npt
from cloudvolume import Skeleton

from lsdflow_command.machine import free_memory_bytes
from lsdflow_contract.errors import UsageError
from lsdflow_contract.files import write_atomically, write_json
from lsdflow_contract.geometry import Box, Nm3, Vox3
from lsdflow_contract.hashing import hash_of
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.formats.folders import json_object
from lsdflow_view.export.levels import Level, Read
from lsdflow_view.export.passes import ExportPass, PassRunner, Write, row_of_blocks
from lsdflow_view.export.precomputed_volume import BLOCK_VOX, PrecomputedLayer
from lsdflow_view.export.segments import SEARCH_BLOCK_VOX, LargestSegments, SegmentTable
from lsdflow_view.meshes import MESH_INFO, mesh_manifest, mesh_of

LOG = logging.getLogger("lsdflow.export")
Kind = Literal["mesh", "skeletons"]
# Memory of a worker without any segment, mostly for its libraries.
PROCESS_BYTES = 300 * 2**20
# Bytes for each voxel of the bounding box. Measured on real neurites: 6 to 12 for a mesh, 47 for a skeleton whose
# segment fills its box; with a margin.
MESH_BYTES_PER_VOXEL = 24
SKELETON_BYTES_PER_VOXEL = 64
# The only attribute of skeleton nodes, as precomputed describes it: distance to the surface in nm.
RADIUS = {"id": "radius", "data_type": "float32", "num_components": 1}
_BYTES_PER_VOXEL = {"mesh": MESH_BYTES_PER_VOXEL, "skeletons": SKELETON_BYTES_PER_VOXEL}
_INFO: dict[str, dict[str, Any]] = {
    "mesh": MESH_INFO,
    "skeletons": {
        "@type": "neuroglancer_skeletons",
        "transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
        "vertex_attributes": [RADIUS],
    },
}


def skeleton_of(mask: npt.NDArray[np.bool_], begin_vox: Vox3, voxel_size_nm: Nm3, segment: int) -> Skeleton:
    """Centre lines of a mask, each node in the centre of one of its voxels, with the distance to the surface (radius).

    The skeleton has no node if the mask is too small for a line.
    """
    size = np.array(voxel_size_nm[::-1])
    found = kimimaro.skeletonize(
        np.asfortranarray(mask.astype(np.uint8).T),
        anisotropy=tuple(size),
        dust_threshold=0,
        fix_borders=False,
        progress=False,
        parallel=1,
    )
    line = found.get(1, Skeleton())
    corner = (np.array(begin_vox[::-1]) + 0.5) * size
    vertices = (line.vertices.astype(np.float64) + corner).astype(np.float32)
    return Skeleton(
        vertices,
        line.edges,
        radii=line.radii,
        segid=segment,
        space="physical",
        extra_attributes=[RADIUS],
        default_attributes=False,
    )


def fitting_workers(wanted: int, each_bytes: int, free_bytes: int, what: str) -> int:
    """As many of the `wanted` workers as `free_bytes` hold if each needs `each_bytes`; at least 1.

    what: what the workers do, for the warning if fewer are used.
    """
    fitting = max(1, min(wanted, free_bytes // max(1, each_bytes)))
    if fitting < wanted:
        one, free = each_bytes / 2**30, free_bytes / 2**30
        LOG.info("%s: %d of %d workers: one may need %.1f GiB, %.1f GiB are free", what, fitting, wanted, one, free)
    return fitting


@dataclass(frozen=True)
class ShapeOptions:
    """How many of the largest segments get shapes (0: none), from which level, and how exactly.

    error_nm: how far mesh vertices may be moved to save triangles; None: the shortest edge of a voxel.
    """

    meshes: int = 0
    skeletons: int = 0
    of: str = "segmentation"
    level: int = 0
    error_nm: float | None = None
    memory_gib: float = 4.0


@dataclass(frozen=True)
class Shapes:
    """The meshes, or the skeletons, of the `count` largest segments."""

    kind: Kind
    count: int
    segments: LargestSegments
    options: ShapeOptions

    @cached_property
    def key(self) -> str:
        """Identifies the shapes: the data, the number of segments, the level and the accuracy."""
        return hash_of([self.layer.key, self.kind, self.count, self.level.number, self.error_nm])

    @property
    def name(self) -> str:
        """The plural for messages."""
        return "meshes" if self.kind == "mesh" else "skeletons"

    @property
    def layer(self) -> PrecomputedLayer:
        """The layer of the segments."""
        return self.segments.layer

    @property
    def level(self) -> Level:
        """The level that the masks are read from."""
        return self.layer.levels[self.options.level]

    @property
    def error_nm(self) -> float:
        """How far a vertex of a mesh may be moved."""
        given = self.options.error_nm
        return min(self.level.voxel_size_nm) if given is None else given

    def make(self, runner: PassRunner) -> int:
        """Write the shapes and the list of segments; returns how many were written. Requires the table of segments."""
        table, made = self._table(), 0
        if len(table):
            made = replace(runner, workers=self.workers(runner.workers)).run([self._pass(len(table))])
        listed = self.layer.folder / "segment_properties" / "info"
        # The longest list has all segments with a mesh or a skeleton, because both are of the largest.
        if len(json_object(listed).get("inline", {}).get("ids", [])) < len(table) or not listed.exists():
            write_json(listed, segment_properties(table))
        if self.level.number and (missing := [n for n in table.ids.tolist() if not self._file(n).exists()]):
            LOG.warning(
                "%d segments have no voxel in level %d and get no %s: %s",
                *(len(missing), self.level.number, self.kind, ", ".join(map(str, missing[:10]))),
            )
        return made

    def _pass(self, count: int) -> ExportPass:
        return ExportPass(
            name=f"{self.layer.layer.name}-{self.kind}",
            key=self.key,
            plan=row_of_blocks(count),
            folder=self._folder,
            begin=self._begin,
            open=self._open_pass,
            unit="segment",
            in_process=1,
        )

    def workers(self, wanted: int) -> int:
        """As many of the `wanted` processes as fit into memory if each has the segment that needs most."""
        most = int(self._bytes(self.level.number).max(initial=0))
        return fitting_workers(wanted, PROCESS_BYTES + most, free_memory_bytes(), self.name)

    def require_fit(self) -> None:
        """Raise UsageError (2) if the bounding box of a segment needs more memory than is allowed."""
        allowed, needed = self.options.memory_gib * 2**30, self._bytes(self.level.number)
        too_large = np.flatnonzero(needed > allowed)
        if len(too_large) == 0:
            return
        row = too_large[0]
        fits = [n for n in range(len(self.layer.levels)) if self._bytes(n)[row] <= allowed]
        coarser = f"take them from a coarser level: --shape-level {fits[0]}; or " if fits else ""
        # Rounded up, so that the reported memory is enough.
        gib = math.ceil(needed[row] / 2**30 * 10) / 10
        raise UsageError(
            f"the bounding box of a segment is too large for its {self.kind}",
            where=f"segment {self._table().ids[row]}: {self._boxes(self.level.number).box(row)}, "
            f"level {self.level.number}",
            wanted=f"at most {self.options.memory_gib:g} GiB",
            found=f"about {gib:.1f} GiB",
            fix=f"{coarser}allow more: --shape-memory-gib {gib:.1f}",
        )

    @property
    def _folder(self) -> Path:
        return self.layer.folder / self.kind

    def _table(self) -> SegmentTable:
        """A copy of the table of segments, because the memory-mapped one must not be kept."""
        return self.segments.table().take(slice(self.count))

    def _begin(self) -> bool:
        """Write the info of the shapes; the info of the volume names them only once they are complete."""
        new = not self._folder.is_dir()
        write_json(self._folder / "info", _INFO[self.kind])
        return new

    @contextmanager
    def _open_pass(self) -> Iterator[Write]:
        read = self.layer.reader(self.level.number)

        def write(block: Block) -> None:
            """Write the files of one segment, whose row has the number of the block."""
            row = self.segments.table().take(slice(block.number, block.number + 1))
            segment, box = int(row.ids[0]), self._on_level(row, self.level.number).box(0)
            mask = _mask(read, segment, box)
            for name, content in self._files(segment, mask, box.begin_vox).items() if mask.any() else ():
                write_atomically(self._folder / name, partial(_put, content))

        yield write

    def _file(self, segment: int) -> Path:
        """The last file of a segment."""
        return self._folder / (f"{segment}:0" if self.kind == "mesh" else f"{segment}")

    def _files(self, segment: int, mask: npt.NDArray[np.bool_], begin_vox: Vox3) -> dict[str, bytes]:
        """Contents of the files by name; a file that names another one comes last."""
        size = self.level.voxel_size_nm
        if self.kind == "skeletons":
            return {str(segment): skeleton_of(mask, begin_vox, size, segment).to_precomputed()}
        z, y, x = (begin * edge for begin, edge in zip(begin_vox, size, strict=True))
        fragment = f"{segment}:0:1"
        return {fragment: mesh_of(mask, (z, y, x), size, self.error_nm), f"{segment}:0": mesh_manifest(fragment)}

    def _boxes(self, number: int) -> SegmentTable:
        return self._on_level(self._table(), number)

    def _on_level(self, table: SegmentTable, number: int) -> SegmentTable:
        """The same segments, with their bounding boxes in voxels of a level."""
        begin, end = table.begin_vox, table.end_vox
        for level in self.layer.levels[1 : number + 1]:
            begin, end = begin // level.step, -(-end // level.step)
        return replace(table, begin_vox=begin, end_vox=end)

    def _bytes(self, number: int) -> npt.NDArray[np.int64]:
        """Memory that each segment needs, with one voxel of background on every side."""
        boxes = self._boxes(number)
        edges = boxes.end_vox - boxes.begin_vox + 2
        needed: npt.NDArray[np.int64] = edges.prod(axis=1) * _BYTES_PER_VOXEL[self.kind]
        return needed


def _mask(read: Read, segment: int, box: Box) -> npt.NDArray[np.bool_]:
    mask = np.zeros(box.shape_vox, np.bool_)
    for part in BlockPlan(box, (BLOCK_VOX,) * 3).blocks():
        mask[part.write.slices(box.begin_vox)] = read(part.write) == segment
    return mask


def wanted_shapes(layer: PrecomputedLayer | None, unfinished: Path, options: ShapeOptions) -> list[Shapes]:
    """The wanted meshes and skeletons of a layer (None: none); `unfinished` is the folder for unfinished data.

    Raises UsageError (2) if the layer has no such level.
    """
    if layer is None:
        return []
    if options.level >= len(layer.levels):
        raise UsageError("no such level", where="--shape-level", wanted=f"0 to {len(layer.levels) - 1}")
    wanted: tuple[tuple[Kind, int], ...] = (("mesh", options.meshes), ("skeletons", options.skeletons))
    # Meshes and skeletons share one table.
    segments = LargestSegments(layer, unfinished, max(count for _, count in wanted), SEARCH_BLOCK_VOX)
    return [Shapes(kind, count, segments, options) for kind, count in wanted if count]


def segment_properties(table: SegmentTable) -> dict[str, Any]:
    """The list of chosen segments with their voxels, which neuroglancer shows next to the volume."""
    voxels = {"id": "voxels", "type": "number", "data_type": "float32"}
    return {
        "@type": "neuroglancer_segment_properties",
        "inline": {
            "ids": [str(segment) for segment in table.ids.tolist()],
            "properties": [{**voxels, "values": [float(size) for size in table.sizes_vox.tolist()]}],
        },
    }


def _put(content: bytes, file: BinaryIO) -> None:
    file.write(content)
