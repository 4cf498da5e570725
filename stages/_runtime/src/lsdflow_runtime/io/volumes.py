"""Arrays of lsdflow on disk: checked against the contract, read and written by boxes of the target grid.

Every chunk is written, even if it is all zeros, so a missing chunk is lost data (BadData), never zeros. Values have a
checksum (zstd), so a flipped bit is also an error. The exception are holes that the manifest of the result lists
(accepted failed blocks): they are read as 0, and `known` leaves them out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import zarr
import zarr.codecs
import zarr.errors
from numcodecs import Zstd as Zstd2

from lsdflow_contract.arrays import ArraySpec
from lsdflow_contract.errors import (
    BadData,
    ConfigError,
    MissingInput,
    OutputConflict,
    StorageFailure,
)
from lsdflow_contract.failed_blocks import failed_blocks_of_array
from lsdflow_contract.files import storage_errors
from lsdflow_contract.geometry import Box, Geometry, Vox3
from lsdflow_contract.metadata import PROVENANCE, array_attributes, read_geometry, understanding_metadata
from lsdflow_contract.sealing import require_sealed_array
from lsdflow_runtime.formats.folders import arrays_below, folder_of
from lsdflow_runtime.formats.zarr_array import is_array
from lsdflow_runtime.io.array_metadata import make_array, write_groups, write_metadata_again
from lsdflow_runtime.io.chunk_files import ChunkFiles, inner_chunk, make_durable, zstd_level
from lsdflow_runtime.transient_errors import is_of_storage

Outside = Literal["error", "zero", "mirror"]


@dataclass(frozen=True)
class Volume:
    """An open array; `box` is its position on the grid it was opened on (its own grid starts at 0).

    `holes`: boxes of whole chunks on that grid that were not written because their blocks failed.
    """

    array: zarr.Array[Any]
    where: str
    geometry: Geometry
    box: Box
    holes: tuple[Box, ...] = ()

    @property
    def channels(self) -> int:
        """Leading channels; 0 for a plain z, y, x array."""
        return int(self.array.shape[0]) if self.array.ndim == 4 else 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return np.dtype(self.array.dtype)

    @property
    def array_axes(self) -> tuple[str, ...]:
        """The names of the array's own axes, or the names that zarr readers use for unnamed axes."""
        names = getattr(self.array.metadata, "dimension_names", None) or self.array.attrs.get("_ARRAY_DIMENSIONS")
        unnamed = "d" if self.array.metadata.zarr_format == 2 else "dim_"
        given: list[str | None] = list(cast(Any, names)) if names else [None] * self.array.ndim
        return tuple(name or f"{unnamed}{i}" for i, name in enumerate(given))

    @property
    def provenance(self) -> dict[str, Any]:
        """The lsdflow block of the attributes; empty for foreign arrays."""
        return cast(dict[str, Any], dict(self.array.attrs).get(PROVENANCE, {}))

    def read(self, box: Box, outside: Outside = "error") -> npt.NDArray[Any]:
        """The values of `box`, ([c,] z, y, x), 0 in holes; voxels outside the array: an error, 0, or mirrored.

        Raises BadData for a missing or damaged chunk, and with outside="error" for a box that is not inside the array.
        """
        inside = box.intersect(self.box)
        if inside != box and outside == "error":
            raise BadData("the box leaves the array", where=self.where, wanted=str(self.box), found=str(box))
        if outside == "mirror" and inside != box:
            return self._read_mirrored(box)
        if inside.is_empty:
            return np.zeros((*self.array.shape[:-3], *box.shape_vox), self.dtype)
        values = self._read_inside(inside)
        if inside == box:
            return values
        padded = np.zeros((*self.array.shape[:-3], *box.shape_vox), self.dtype)
        padded[(..., *inside.slices(box.begin_vox))] = values
        return padded

    def holds(self, box: Box) -> bool:
        """True if all files of `box` exist; False if some of its blocks are not done, missing, or failed."""
        return all(file.exists() for file in self._chunk_files(box))

    def known(self, box: Box) -> npt.NDArray[np.bool_] | None:
        """Which voxels of `box` (z, y, x) are not in a hole; None if there is no hole in it."""
        return outside_of(self.holes, box)

    def write(self, box: Box, values: npt.NDArray[Any]) -> None:
        """Write `values` to `box`, which must cover whole chunks (or end at the array's end)."""
        self._require_whole_chunks(box)
        with storage_errors(Path(self.where)):
            if self._files is None:
                self.array[self._index(box)] = values
            else:
                self._files.write(self._index(box), values)

    def make_durable(self, box: Box) -> None:
        """Flush the files of `box` to disk (fsync)."""
        with storage_errors(Path(self.where)):
            make_durable(Path(self.where), self._chunk_files(box))

    @property
    def read_shape_vox(self) -> Vox3:
        """The smallest unit that can be decoded, z, y, x: the chunk, also in a sharded array."""
        z, y, x = self.array.chunks[-3:]
        return int(z), int(y), int(x)

    @property
    def chunk_shape_vox(self) -> Vox3:
        """The write unit, z, y, x: the shard of a sharded array, else the chunk."""
        z, y, x = (self.array.shards or self.array.chunks)[-3:]
        return int(z), int(y), int(x)

    @cached_property
    def _files(self) -> ChunkFiles | None:
        return ChunkFiles.of(Path(self.where), self.array) if self.provenance else None

    def _index(self, box: Box) -> tuple[slice, ...]:
        return (*(slice(0, n) for n in self.array.shape[:-3]), *box.slices(self.box.begin_vox))

    def _read_inside(self, box: Box) -> npt.NDArray[Any]:
        """The values of a box inside the array; files of holes are not read, even if they exist."""
        hole = next((hole for hole in self.holes if not hole.intersect(box).is_empty), None)
        if hole is None:
            return self._read_made(box)
        values = np.zeros((*self.array.shape[:-3], *box.shape_vox), self.dtype)
        for part in box.without(hole):
            values[(..., *part.slices(box.begin_vox))] = self._read_inside(part)
        return values

    def _read_made(self, box: Box) -> npt.NDArray[Any]:
        if self.provenance and self._files is None:
            self._require_chunks(box)
        try:
            if self._files is None:
                return np.asarray(self.array[self._index(box)])
            return self._files.read(self._index(box))
        except (RuntimeError, ValueError, OSError) as error:
            if isinstance(error, FileNotFoundError) and self._files is not None:
                self._require_chunks(box)
            if is_of_storage(error):
                raise StorageFailure("reading failed", where=f"{self.where} {box}", found=error) from error
            raise BadData(
                "a chunk cannot be read",
                where=f"{self.where} {box}",
                found=error,
                fix="recompute the damaged blocks (lsdflow repair EXPERIMENT), or copy the file again",
            ) from error

    def _read_mirrored(self, box: Box) -> npt.NDArray[Any]:
        """The values of a box with reflection at the faces, repeated if needed, without repeating the face voxel."""
        indices = [
            mirrored(np.arange(b, b + s) - o, n)
            for b, s, o, n in zip(box.begin_vox, box.shape_vox, self.box.begin_vox, self.box.shape_vox, strict=True)
        ]
        lower = tuple(int(i.min()) for i in indices)
        upper = tuple(int(i.max()) + 1 for i in indices)
        source = Box.from_bounds(cast(Vox3, lower), cast(Vox3, upper))
        values = self._read_inside(source.translate(self.box.begin_vox))
        # One axis after the other, and only those with a face: ten times faster than one index of three axes.
        for axis, (index, low) in enumerate(zip(indices, lower, strict=True), -3):
            if not np.array_equal(index, np.arange(low, low + values.shape[axis])):
                values = values.take(index - low, axis=axis)
        return values

    def _require_chunks(self, box: Box) -> None:
        for file in self._chunk_files(box):
            if not file.exists():
                raise BadData(
                    "a chunk that should exist does not",
                    where=file,
                    wanted=f"the values of {box}",
                    found="no file",
                    fix="the data is lost or was never computed: lsdflow repair EXPERIMENT",
                )

    def _chunk_files(self, box: Box) -> Iterator[Path]:
        local = box.translate(cast(Vox3, tuple(-b for b in self.box.begin_vox)))
        ranges = [
            range(b // c, -(-e // c))
            for b, e, c in zip(local.begin_vox, local.end_vox, self.chunk_shape_vox, strict=True)
        ]
        leading = (0,) * (self.array.ndim - 3)
        for index in itertools.product(*ranges):
            yield Path(self.where) / self.array.metadata.encode_chunk_key((*leading, *index))

    def _require_whole_chunks(self, box: Box) -> None:
        local = box.translate(cast(Vox3, tuple(-b for b in self.box.begin_vox)))
        axes = zip(local.begin_vox, local.end_vox, self.chunk_shape_vox, self.box.shape_vox, strict=True)
        if not all(b % c == 0 and (e % c == 0 or e == n) for b, e, c, n in axes):
            raise ConfigError(
                "a block must cover whole chunks",
                where=self.where,
                wanted=f"multiples of {self.chunk_shape_vox}",
                found=str(local),
                fix="choose a block shape that is a multiple of the chunk shape",
            )


def open_volume(path: Path, dataset: str, grid: Geometry | None = None) -> Volume:
    """Open `path/dataset` (zarr 2 or 3) for reading, or an array of lsdflow for writing. `grid`: use its voxel indices.

    Raises MissingInput if it does not exist, BadData without a voxel size or if metadata of lsdflow were changed,
    ConfigError if it is not aligned with `grid` or if the dataset is outside the container.
    """
    folder = folder_of(path, dataset)
    require_sealed_array(folder)
    with understanding_metadata(folder):
        try:
            array = zarr.open_array(folder, mode="r+" if folder.exists() else "r")
        except (FileNotFoundError, zarr.errors.ContainsGroupError) as error:
            raise MissingInput(
                "no such array", where=folder, fix=f"arrays there: {', '.join(arrays_below(path, is_array)) or 'none'}"
            ) from error
        z, y, x = array.shape[-3:]
        geometry = read_geometry(dict(array.attrs), (z, y, x), folder)
    begin = (0, 0, 0) if grid is None else geometry.voxel_offset_from(grid, folder)
    array = array.with_config({"write_empty_chunks": True})
    volume = Volume(array, str(folder), geometry, Box(begin, geometry.shape_vox))
    key = volume.provenance.get("key")
    failed = failed_blocks_of_array(path, key) if key else ()
    return replace(volume, holes=tuple(block.box_in(geometry, begin) for block in failed))


def outside_of(holes: Iterable[Box], box: Box) -> npt.NDArray[np.bool_] | None:
    """Which voxels of `box` (z, y, x) are in none of the boxes `holes`; None if none of them overlaps `box`."""
    inside = [part for hole in holes if not (part := hole.intersect(box)).is_empty]
    if not inside:
        return None
    known = np.ones(box.shape_vox, np.bool_)
    for part in inside:
        known[part.slices(box.begin_vox)] = False
    return known


@dataclass(frozen=True)
class OutputArray:
    """An array that a stage writes: path, spec, box on its grid, write unit, and format.

    chunk_shape_vox: shape of a chunk of format 2, if a write unit consists of several chunks.
    """

    path: Path
    spec: ArraySpec
    grid: Geometry
    box: Box
    write_shape_vox: Vox3
    zarr_format: Literal[2, 3] = 3
    chunk_shape_vox: Vox3 | None = None

    @property
    def folder(self) -> Path:
        """The folder of the array."""
        return self.path / self.spec.dataset

    def open(self) -> Volume:
        """Open the array for writing blocks."""
        return open_volume(self.path, self.spec.dataset, self.grid)

    def create(self, provenance: Mapping[str, Any]) -> bool:
        """Create the array; returns False if it already exists with the same key.

        Raises OutputConflict (73) if other data is at its path.
        """
        if self.folder.exists():
            self.refuse_others(provenance)
            return False
        make_array(self.folder, lambda folder: self._create(folder, provenance))
        return True

    def write_groups(self) -> None:
        """Make zarr groups of the container and the folders above the array, so that it can be opened from the root."""
        write_groups(self.path, self.spec.dataset, self.zarr_format)

    def restore_metadata(self, provenance: Mapping[str, Any]) -> None:
        """Write missing or damaged metadata again. Only allowed if done marks show that the array is of this pass."""
        if not self.folder.is_dir():
            return
        try:
            open_volume(self.path, self.spec.dataset)
        except (MissingInput, BadData):
            write_metadata_again(self.folder, self.zarr_format, lambda folder: self._create(folder, provenance))

    def refuse_others(self, provenance: Mapping[str, Any]) -> None:
        """Raise OutputConflict (73) if other data is at the path of the array, BadData if its metadata are damaged."""
        if not self.folder.exists():
            return
        require_sealed_array(self.folder)
        try:
            found = open_volume(self.path, self.spec.dataset).provenance
        except (MissingInput, BadData):
            found = {}
        if found.get("key") != provenance["key"]:
            raise OutputConflict(
                "another array is in the place of the output",
                where=self.folder,
                wanted=f"key {str(provenance['key'])[:12]}",
                found=f"key {str(found.get('key', 'none'))[:12]}",
                fix="move it away, or use another experiment folder",
            )

    def _create(self, folder: Path, provenance: Mapping[str, Any]) -> None:
        geometry = Geometry(self.grid.voxel_size_nm, self.grid.position_nm(self.box.begin_vox), self.box.shape_vox)
        leading = (self.spec.channels,) if self.spec.channels else ()
        level = zstd_level(np.dtype(self.spec.dtype))
        # Not cropped to the array: an edge of 251 voxels (a prime) would only allow inner chunks of single voxels.
        write_shape = self.write_shape_vox
        common: dict[str, Any] = {
            "store": folder,
            "shape": (*leading, *self.box.shape_vox),
            "dtype": self.spec.dtype,
            "attributes": array_attributes(self.spec, geometry, provenance),
            "fill_value": 0,
        }
        if self.zarr_format == 2:
            chunks = (*leading, *(self.chunk_shape_vox or write_shape))
            zarr.create_array(**common, zarr_format=2, chunks=chunks, compressors=Zstd2(level=level, checksum=True))
            return
        inner = tuple(inner_chunk(n) for n in write_shape)
        zarr.create_array(
            **common,
            zarr_format=3,
            chunks=(*leading, *inner),
            shards=(*leading, *write_shape) if inner != write_shape else None,
            compressors=zarr.codecs.ZstdCodec(level=level, checksum=True),
            dimension_names=self.spec.axis_names,
        )


def mirrored(index: npt.NDArray[np.int64], length: int) -> npt.NDArray[np.int64]:
    """Indices (n,) of any integers, reflected into 0 ... length - 1 without repeating the first and last one."""
    if length == 1:
        return np.zeros_like(index)
    period = 2 * (length - 1)
    folded = np.abs(index) % period
    return np.where(folded < length, folded, period - folded)
