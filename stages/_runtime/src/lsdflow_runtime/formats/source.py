"""A volume of any format: shape, dtype, the position from its metadata, and reading one box at a time."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice, product
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData, MissingInput, PermissionDenied, StageError, StorageFailure
from lsdflow_contract.geometry import Box, Geometry, Nm3, Vox3
from lsdflow_contract.hashing import hash_of
from lsdflow_runtime.formats.attributes import (
    channels_of,
    check_axes,
    refuse_time_series,
    shape_zyx,
    stored_slices,
    to_zyx,
)
from lsdflow_runtime.formats.claims import GeometryClaim, place
from lsdflow_runtime.formats.file_stamp import file_stamp, files_below
from lsdflow_runtime.transient_errors import is_of_storage

METADATA_FIX = "correct the metadata, or write the volume again with a library of its format"
# Names of files beside chunks that are no data; hidden files are none either.
NO_DATA = ("zarr.json", "attributes.json", "info", "provenance")
MOST_VOXELS = 2**63
MOST_CHUNKS_COMPARED = 2**20


@dataclass(frozen=True)
class ChunkGrid:
    """The chunks of a stored array: whether a chunk exists, and the file that contains it (stored axis order).

    exists: raises an error for a chunk whose presence cannot be determined. fill_value: what is read for a chunk that
    does not exist.
    """

    chunk_shape: tuple[int, ...]
    exists: Callable[[tuple[int, ...]], bool]
    file: Callable[[tuple[int, ...]], str] | None = None
    fill_value: object = 0

    def touched_by(self, slices: tuple[slice, ...]) -> Iterator[tuple[int, ...]]:
        """Indices of the chunks that contain elements of `slices`; none if there are no elements."""
        spans = (
            range(piece.start // size, -(-piece.stop // size) if piece.start < piece.stop else 0)
            for piece, size in zip(slices, self.chunk_shape, strict=True)
        )
        return product(*spans)


@dataclass
class SourceVolume:
    """One array of a foreign container, opened for reading.

    Attributes:
        where: path and dataset, for messages.
        form: name of the format, "zarr 2", "n5", ...
        axes: stored axis order, one letter each.
        stored_shape: stored shape, same order.
        dtype: element type as stored.
        fetch: stored slices -> array in stored order.
        files: the files, or folders of files, with the voxels and their metadata.
        claims: voxel size and offset from each entry of the metadata.
        grid: the chunks, if missing ones can be distinguished from zeros; else None.
        roi_nm: (offset, shape) z,y,x of a region that the container defines (JSON ROI container).
        palette: the values are numbers of colours, not grey values.
        fetch_numbers: `fetch` of the stored numbers, where viewers show other grey values (WhiteIsZero); else None.
    """

    where: str
    form: str
    axes: str
    stored_shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    fetch: Callable[[tuple[slice, ...]], NDArray[np.generic]]
    files: tuple[Path, ...]
    claims: tuple[GeometryClaim, ...] = ()
    grid: ChunkGrid | None = None
    roi_nm: tuple[Nm3, Nm3] | None = None
    palette: bool = False
    fetch_numbers: Callable[[tuple[slice, ...]], NDArray[np.generic]] | None = None
    closer: Callable[[], None] = field(default=lambda: None)

    def __post_init__(self) -> None:
        check_axes(self.axes, len(self.stored_shape), self.where)
        refuse_time_series(self.stored_shape, self.axes, self.where)
        if 0 in self.stored_shape:
            raise BadData(
                "the volume is empty", where=self.where, wanted="at least one voxel", found=str(self.stored_shape)
            )
        if math.prod(self.stored_shape) >= MOST_VOXELS:
            found = str(self.stored_shape)
            raise BadData("no volume is that large", where=self.where, wanted="below 2^63 voxels", found=found)
        if self.grid is not None and min(self.grid.chunk_shape) < 1:
            raise BadData("its chunks are empty", where=self.where, wanted="voxels", found=str(self.grid.chunk_shape))

    @property
    def shape_vox(self) -> Vox3:
        """Voxels along z, y, x."""
        return shape_zyx(self.stored_shape, self.axes)

    @property
    def channels(self) -> int | None:
        """Number of channels; None for one or none."""
        return channels_of(self.stored_shape, self.axes)

    @property
    def box(self) -> Box:
        """All voxels."""
        return Box((0, 0, 0), self.shape_vox)

    @property
    def chunk_shape_vox(self) -> Vox3 | None:
        """Shape z, y, x of a stored chunk; None if unknown."""
        return None if self.grid is None else shape_zyx(self.grid.chunk_shape, self.axes)

    def geometry(
        self, *, voxel_size_nm: Nm3 | None = None, expansion_factor: float = 1.0, setting: str = "voxel_size"
    ) -> Geometry:
        """The position of the volume in nm; see `claims.place` for the rules and errors."""
        size, factor = voxel_size_nm, expansion_factor
        return place(
            self.claims, self.shape_vox, self.where, voxel_size_nm=size, expansion_factor=factor, setting=setting
        )

    def read(self, box: Box) -> NDArray[np.generic]:
        """The voxels of `box` as ([c,] z, y, x), stored dtype, C-contiguous.

        Raises:
            BadData: the box is not inside the volume, or a chunk in it cannot be decoded.
        """
        if not self.box.contains(box):
            raise BadData("read outside the volume", where=self.where, wanted=f"within {self.box}", found=str(box))
        slices = stored_slices(box, self.stored_shape, self.axes)
        try:
            with reading(f"{self.where} voxels {box.begin_vox}..{box.end_vox}"):
                piece = np.asarray(self.fetch(slices))
        except BadData as error:
            error.where = self._damaged_file(slices) or error.where
            raise
        return to_zyx(piece, self.axes)

    def _damaged_file(self, slices: tuple[slice, ...]) -> str | None:
        """The file of the first chunk in `slices` that cannot be read; None if chunks are not files."""
        if self.grid is None or self.grid.file is None:
            return None
        for index in self.grid.touched_by(slices):
            begins = [i * n for i, n in zip(index, self.grid.chunk_shape, strict=True)]
            ends = [min(b + n, s) for b, n, s in zip(begins, self.grid.chunk_shape, self.stored_shape, strict=True)]
            try:
                with reading(self.where):
                    self.fetch(tuple(map(slice, begins, ends)))
            except BadData:
                return f"{self.grid.file(index)} ({self.axes} {tuple(begins)}..{tuple(ends)})"
        return None

    def state(self) -> dict[str, str]:
        """Two hashes that detect a change.

        form: format, shape, dtype, voxel size, offset, region. files: names, sizes, modification times and a sample of
        the bytes of the files (`file_stamp`).
        Raises MissingInput, PermissionDenied or StorageFailure for a file that cannot be examined.
        """
        claims = [[claim.voxel_size_nm, claim.offset_nm] for claim in self.claims]
        stored = [self.form, self.axes, list(self.stored_shape), str(self.dtype)]
        with reading(self.where):
            files = file_stamp(self.files)
        return {"form": hash_of({"stored": stored, "claims": claims, "roi": self.roi_nm}), "files": files}

    def missing_chunks(self, box: Box) -> list[tuple[int, ...]] | None:
        """Indices (stored order) of chunks in `box` that were never written; None if the format does not show it."""
        if self.grid is None:
            return None
        slices = stored_slices(box, self.stored_shape, self.axes)
        with reading(self.where):
            return [index for index in self.grid.touched_by(slices) if not self.grid.exists(index)]

    def other_file(self) -> str | None:
        """A data file in the folders of the volume that is no chunk by its metadata; None if there is none."""
        grid = self.grid
        if grid is None or grid.file is None:
            return None
        indices = grid.touched_by(stored_slices(self.box, self.stored_shape, self.axes))
        chunks = {grid.file(index) for index in islice(indices, MOST_CHUNKS_COMPARED)}
        if len(chunks) == MOST_CHUNKS_COMPARED:
            return None
        data = (f"{root}/{name}" for root in self.files if root.is_dir() for name in data_files(root))
        return next((path for path in data if path not in chunks), None)

    def as_numbers(self) -> Self:
        """The same volume, of labels or a mask: with the stored numbers, not the grey values that viewers show."""
        return replace(self, fetch=self.fetch_numbers or self.fetch)

    def close(self) -> None:
        """Close the files."""
        self.closer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def is_file(path: str) -> bool:
    """True if a chunk file exists; OSError if that cannot be determined, which is not the same as a missing file."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)  # noqa: PTH116 (for speed)
    except (FileNotFoundError, NotADirectoryError):
        return False


def data_files(folder: Path) -> Iterator[str]:
    """Names of the files below a folder, relative to it, without metadata and hidden files."""
    for name, _ in files_below((folder,)):
        if not name.rpartition("/")[2].startswith(".") and name.rpartition("/")[2] not in NO_DATA:
            yield name


def refuse_other_names(folder: Path, key: str, setting: str, is_chunk: Callable[[str], object] | None = None) -> None:
    """Refuse an array folder with data files of which none is a chunk by its metadata: all voxels would be missing.

    Args:
        key: name of a chunk file, relative to `folder`, as an example.
        setting: what in the metadata determines the names.
        is_chunk: whether a name is that of a chunk; default: like `key`, with other numbers.

    Raises:
        BadData: names the first such file.
    """
    pattern, other = re.escape(key).replace("0", r"\d+"), None
    for name in data_files(folder) if folder.is_dir() else ():
        if is_chunk(name) if is_chunk else re.fullmatch(pattern, name):
            return
        other = other or name
    if other is not None:
        raise BadData(
            "no data file of the array has the name of a chunk by its metadata",
            where=folder,
            wanted=f"names like {key}, by {setting}",
            found=other,
            fix=f"correct {setting}, or give the files the names that the metadata require",
        )


def no_codec(name: object, where: object, known: Collection[str] = ()) -> BadData:
    """The error for voxels in a form that cannot be decoded here, although they may be whole."""
    return BadData(
        "the volume is stored with a codec that is not installed",
        where=where,
        wanted=", ".join(known),
        found=name,
        fix="write the volume again with another codec, with the program that wrote it",
    )


@contextmanager
def reading(where: str, *, metadata: bool = False) -> Iterator[None]:
    """Convert errors of the libraries for unreadable voxels (or metadata) to StageErrors that name `where`."""
    try:
        yield
    except (StageError, MemoryError):
        raise
    except PermissionError as error:
        raise PermissionDenied(
            "no permission to read", where=where, found=str(error), fix="chmod, or another user"
        ) from error
    except (FileNotFoundError, IsADirectoryError) as error:
        raise MissingInput("a file of the volume is missing", where=where, found=str(error)) from error
    except Exception as error:  # every codec library has its own errors
        text = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        if "PERMISSION_DENIED" in text:
            raise PermissionDenied("no permission to read", where=where, found=text) from error
        if is_of_storage(error):
            raise StorageFailure("the storage failed while reading", where=where, found=text) from error
        if type(error).__name__ == "UnknownCodecError":  # of numcodecs and of zarr
            raise no_codec(text, where) from error
        what = "the metadata of the volume cannot be understood" if metadata else "the data cannot be read"
        fix = METADATA_FIX if metadata else "the file is truncated or damaged, re-copy it"
        raise BadData(what, where=where, found=text, fix=fix) from error
