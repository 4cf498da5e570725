"""The chunk files of the arrays of lsdflow: zstd with checksums, one file per shard or chunk.

zarr-python creates and opens the arrays. Only voxels are read and written here, because its pipeline costs more than
the compression. Chunks are compressed and decompressed on all cores by threads that end with the call, so none
remains that a fork would break (as with tensorstore). Files are replaced atomically: a killed writer leaves the old or
the new file, and no locks. A shard consists of its chunks, then for each of them its offset and length (64 bits each,
all ones for a chunk beyond the end of the array), then the CRC32C of this index.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar

import google_crc32c
import numpy as np
import numpy.typing as npt
import zarr
from numcodecs import Zstd

from lsdflow_command.machine import available_cores
from lsdflow_contract.files import TEMPORARY_SUFFIX, fsync_folder

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
SKIPPABLE = b"\x2a\x4d\x18"
ABSENT = 2**64 - 1
INNER_CHUNK_VOX = 64
# One for each call in progress. More threads than cores would mostly wait for Python's lock.
_CALLS: list[int] = []
# Folders whose entries in the folder above are on disk: they need no second fsync for each block.
_DURABLE: set[Path] = set()
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class ChunkFiles:
    """Reads and writes the voxels of the array in `folder`."""

    folder: Path
    array: zarr.Array[Any]
    level: int

    @classmethod
    def of(cls, folder: Path, array: zarr.Array[Any]) -> ChunkFiles | None:
        """The chunk files of an array; None if the array does not have the form that lsdflow writes."""
        level = _zstd_level_v2(array) if array.metadata.zarr_format == 2 else _zstd_level_v3(array)
        native = array.dtype.isnative and sys.byteorder == "little"
        return None if level is None or not native else cls(folder, array, level)

    # Asked for at every chunk, and slow in zarr-python.
    @cached_property
    def _chunks(self) -> tuple[int, ...]:
        return self.array.chunks

    @cached_property
    def _shards(self) -> tuple[int, ...]:
        return self.array.shards or ()

    @property
    def _edges(self) -> tuple[int, ...]:
        """Shape of what one file holds: a shard or a chunk."""
        return self._shards or self._chunks

    def write(self, box: tuple[slice, ...], values: npt.NDArray[Any]) -> None:
        """Write `box`, which covers whole chunks or shards. Raises OSError."""
        shape = tuple(s.stop - s.start for s in box)
        values = np.broadcast_to(np.asarray(values, self.array.dtype), shape)
        for part in _parts((slice(0, n) for n in shape), self._edges):
            index = tuple((b.start + p.start) // e for b, p, e in zip(box, part, self._edges, strict=True))
            pieces = self._shard(values[part]) if self._shards else [self._chunk(values[part])]
            path = self.folder / self.array.metadata.encode_chunk_key(index)
            _put(path, pieces)

    def read(self, box: tuple[slice, ...]) -> npt.NDArray[Any]:
        """The voxels of `box`. Raises OSError, ValueError, RuntimeError for a missing or damaged chunk.

        Each file is opened once, unless there are fewer files than cores: then once for each row of its chunks.
        """
        values = np.empty(tuple(s.stop - s.start for s in box), self.array.dtype)
        edges, chunks = self._edges, self._chunks
        parts = list(_parts(box, edges))
        if not _CALLS and len(parts) < available_cores():
            parts = [row for part in parts for row in _parts(part, (*edges[:-3], *chunks[-3:-1], edges[-1]))]

        def take(part: tuple[slice, ...]) -> None:
            """Copy the chunks of one file that contain `part` to `values`."""
            path = self.folder / self.array.metadata.encode_chunk_key(_index(part, edges))
            with path.open("rb", buffering=0) as file:
                table = self._places(file)
                for own in _parts(part, chunks):
                    content = _content(file, table, _index(own, chunks))
                    first = [s.start // e * e for s, e in zip(own, chunks, strict=True)]
                    values[_from(own, [b.start for b in box])] = self._decoded(content, path)[_from(own, first)]

        _on_all_cores(take, parts)
        return values

    def _places(self, file: FileIO) -> npt.NDArray[np.uint64]:
        """Offset and length of each chunk of a file, (*grid, 2)."""
        size = os.fstat(file.fileno()).st_size
        if not self._shards:
            return np.array([0, size], np.uint64).reshape(*(1 for _ in self._chunks), 2)
        return _shard_index(file, size, tuple(s // c for s, c in zip(self._shards, self._chunks, strict=True)))

    def _decoded(self, content: bytes, path: Path) -> npt.NDArray[Any]:
        decoded = np.empty(self._chunks, self.array.dtype)
        claimed = content_size(content)
        if claimed != decoded.nbytes:
            msg = f"{path}: a chunk of {decoded.nbytes} bytes claims to hold {claimed}"
            raise ValueError(msg)
        Zstd().decode(content, out=decoded)
        return decoded

    def _shard(self, values: npt.NDArray[Any]) -> list[bytes]:
        """The content of a shard: its chunks, and the index."""
        parts = [values[part] for part in _parts((slice(0, n) for n in self._edges), self._chunks)]
        pieces = _on_all_cores(lambda part: self._chunk(part) if part.size else b"", parts)
        sizes = np.array([len(piece) for piece in pieces], np.uint64)
        index = np.stack([np.cumsum(sizes) - sizes, sizes], axis=1).astype("<u8")
        index[sizes == 0] = ABSENT
        table = index.tobytes()
        return [*pieces, table, google_crc32c.value(table).to_bytes(4, "little")]

    def _chunk(self, values: npt.NDArray[Any]) -> bytes:
        """One compressed chunk; voxels beyond the end of the array have the fill value."""
        if values.shape != self._chunks:
            padded = np.full(self._chunks, self.array.fill_value or 0, self.array.dtype)
            padded[tuple(map(slice, values.shape))] = values
            values = padded
        return bytes(Zstd(self.level, checksum=True).encode(np.ascontiguousarray(values)))


def make_durable(root: Path, files: Iterable[Path]) -> None:
    """Flush files below `root`, and their folders, to disk (fsync). Raises OSError."""
    files = list(files)
    added = {folder for file in files for folder in file.parents if root in folder.parents} - _DURABLE
    for path in (*files, *sorted({file.parent for file in files} | {folder.parent for folder in added}, reverse=True)):
        fsync_folder(path)  # fsync is the same for a file
    _DURABLE.update(added)


def _parts(box: Iterable[slice], edges: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """The boxes of a grid of `edges` that overlap `box`, cropped to it; row-major."""
    axes = [
        [slice(max(e * i, s.start), min(e * (i + 1), s.stop)) for i in range(s.start // e, -(-s.stop // e))]
        for s, e in zip(box, edges, strict=True)
    ]
    return itertools.product(*axes)


def _on_all_cores(function: Callable[[T], R], of: list[T]) -> list[R]:
    """Results in order. If several blocks are read or written at a time, each uses only the thread that calls this."""
    _CALLS.append(1)
    try:
        if len(of) < 2 or len(_CALLS) > 1:
            return [function(one) for one in of]
        with ThreadPoolExecutor(min(available_cores(), len(of))) as pool:
            return list(pool.map(function, of))
    finally:
        _CALLS.pop()


def _index(part: tuple[slice, ...], edges: tuple[int, ...]) -> tuple[int, ...]:
    """Index of the cell that holds `part`, in a grid of cells of the shape `edges`."""
    return tuple(s.start // e for s, e in zip(part, edges, strict=True))


def _from(part: tuple[slice, ...], begin: Iterable[int]) -> tuple[slice, ...]:
    """The slices of `part` in an array that begins at `begin`."""
    return tuple(slice(s.start - b, s.stop - b) for s, b in zip(part, begin, strict=True))


def _content(file: FileIO, table: npt.NDArray[np.uint64], chunk: tuple[int, ...]) -> bytes:
    """The bytes of a chunk (its index in the array) of a file with this table. Raises ValueError if it has none."""
    place = tuple(c % g for c, g in zip(chunk, table.shape, strict=False))
    begin, size = (int(n) for n in table[place])
    if begin == ABSENT:
        msg = f"{file.name}: the shard has no chunk {place}"
        raise ValueError(msg)
    return os.pread(file.fileno(), size, begin)


def _shard_index(file: FileIO, file_size: int, grid: tuple[int, ...]) -> npt.NDArray[np.uint64]:
    """Offset and length of each chunk of a shard, (*grid, 2)."""
    size = 16 * math.prod(grid)
    content = os.pread(file.fileno(), size + 4, max(0, file_size - size - 4))
    table, checksum = content[:size], content[size:]
    if google_crc32c.value(table).to_bytes(4, "little") != checksum:
        msg = f"{file.name}: the index of the shard is damaged"
        raise ValueError(msg)
    return np.frombuffer(table, "<u8").reshape(*grid, 2)


def _put(path: Path, pieces: list[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with partial.open("wb") as file:
            file.writelines(pieces)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def content_size(content: bytes) -> int | None:
    """Unpacked size of all zstd frames at the beginning of `content`, from their headers (RFC 8878, section 3.1.1).

    None if `content` does not begin with a frame, or a frame does not contain its size. The size is checked before
    unpacking, because a few damaged or crafted bytes could otherwise fill the memory.
    """
    total, begin = None, 0
    while len(content) > begin + 8:
        if content[begin + 1 : begin + 4] == SKIPPABLE and content[begin] >> 4 == 5:
            begin += 8 + int.from_bytes(content[begin + 4 : begin + 8], "little")
            continue
        if content[begin : begin + 4] != ZSTD_MAGIC:
            break
        descriptor = content[begin + 4]
        single_segment, flag = bool(descriptor & 0x20), descriptor >> 6
        place = begin + 5 + (0 if single_segment else 1) + (0, 1, 2, 4)[descriptor & 3]
        length = (int(single_segment), 2, 4, 8)[flag]
        if not length or len(content) < place + length:
            return None
        size = int.from_bytes(content[place : place + length], "little") + (256 if length == 2 else 0)
        total = size + (total or 0)
        begin = _end_of_blocks(content, place + length) + 4 * bool(descriptor & 4)
    return total


def _end_of_blocks(content: bytes, begin: int) -> int:
    """Position after the blocks of a zstd frame; of an incomplete frame, a position after its end."""
    last = False
    while not last and begin < len(content):
        header = int.from_bytes(content[begin : begin + 3], "little")
        last, run = bool(header & 1), (header >> 1) & 3 == 1
        begin += 3 + (1 if run else header >> 3)
    return begin


def _zstd_level_v2(array: zarr.Array[Any]) -> int | None:
    codec: Any = array.compressors[0] if array.compressors else None
    plain = not array.filters and array.order == "C"
    return int(codec.level) if plain and isinstance(codec, Zstd) and codec.checksum else None


def _zstd_level_v3(array: zarr.Array[Any]) -> int | None:
    """Level of the compressor, if it is only zstd with checksums, unsharded or in a shard with its index at the end."""
    metadata: Any = array.metadata
    codecs: list[dict[str, Any]] = [codec.to_dict() for codec in metadata.codecs]
    if array.shards:
        shard = codecs[0]["configuration"]
        if [codec["name"] for codec in shard["index_codecs"]] != ["bytes", "crc32c"] or shard[
            "index_location"
        ] != "end":
            return None
        codecs = list(shard["codecs"])
    if [codec["name"] for codec in codecs] != ["bytes", "zstd"] or not codecs[1]["configuration"]["checksum"]:
        return None
    if codecs[0].get("configuration", {}).get("endian", "little") != "little":
        return None
    return int(codecs[1]["configuration"]["level"])


def zstd_level(dtype: np.dtype[Any]) -> int:
    """Compression level, as measured: a higher one does not shrink 8-bit noise, but ids six times, and faster."""
    return 1 if dtype.itemsize == 1 else 3


def inner_chunk(length_vox: int) -> int:
    """The divisor of the shard's edge whose ratio to INNER_CHUNK_VOX is nearest to 1."""
    divisors = (d for d in range(1, length_vox + 1) if length_vox % d == 0)
    return min(divisors, key=lambda d: abs(math.log(d / INNER_CHUNK_VOX)))
