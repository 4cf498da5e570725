"""zarr 2 and 3 arrays, OME-NGFF images and scale pyramids in them.

A dataset may be an array, an OME image (group with multiscales; the finest level is used), or a scale pyramid (group
with s0, s1, ...; s0 is used). A coarser level is chosen by its name: "volumes/raw/s1", "image/2".

zarr and its codecs do not notice every damage: a chunk that is cut may be filled with other bytes of the memory, and an
empty shard with zeros. So the stored bytes are checked first. A few damaged or crafted bytes can unpack to more than
the memory holds. So the unpacked size of a chunk is determined before it is used: from its headers, or else by
unpacking it in steps until the limit is exceeded.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zarr
from zarr.abc.store import ByteRequest, RangeByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore

from lsdflow_contract.errors import MissingInput
from lsdflow_runtime.formats import ngff
from lsdflow_runtime.formats.attributes import claims_of, named_axes, parse_axes
from lsdflow_runtime.formats.claims import GeometryClaim
from lsdflow_runtime.formats.folders import arrays_below, folder_of, json_object, no_such_dataset, webknossos_axes
from lsdflow_runtime.formats.source import ChunkGrid, SourceVolume, is_file, reading, refuse_other_names
from lsdflow_runtime.io.chunk_files import content_size

MARKERS = (".zarray", ".zgroup", "zarr.json")
METADATA = (*MARKERS, ".zattrs", ".zmetadata")
DEFAULT_AXES = "tczyx"
PIECE_BYTES = 2**20
# A filter may turn one byte into eight, and checksums and headers add some bytes.
MOST_BYTES_OF_ONE, MOST_BYTES_ADDED = 8, 2**16
ENCODING_SETTING = 'chunk_key_encoding ("default" or "v2", separator "." or "/") in zarr.json'
# Bytes of the header that contain the unpacked size.
HEADERS = {"blosc": (4, 8), "lz4": (0, 4)}
BLOSC_HEADER = 16


def is_zarr(folder: Path) -> bool:
    """True if a folder is a zarr array or group."""
    return any((folder / name).is_file() for name in MARKERS)


def is_array(folder: Path) -> bool:
    """True if a folder is a zarr array of either format."""
    return (folder / ".zarray").is_file() or json_object(folder / "zarr.json").get("node_type") == "array"


def is_image(folder: Path) -> bool:
    """True if a folder can be opened as a volume: an array, an OME image, a scale pyramid."""
    return is_array(folder) or bool(ngff.multiscales_of(attributes_at(folder))) or is_array(folder / "s0")


def attributes_at(folder: Path) -> dict[str, Any]:
    """Attributes of the array or group in `folder`, either format."""
    stored = json_object(folder / "zarr.json").get("attributes", {})
    return {**json_object(folder / ".zattrs"), **(stored if isinstance(stored, dict) else {})}


def open_zarr(container: Path, dataset: str) -> SourceVolume:
    """Open a dataset of a zarr 2 or 3 container ("" = the container itself is the array or image).

    Raises:
        MissingInput: no such dataset; the arrays that exist are listed.
        BadData: contradictory metadata, axes that are not z, y, x.
    """
    folder = folder_of(container, dataset)
    if is_array(folder):
        return _open_array(folder, _inherited_level(folder))
    if ngff.multiscales_of(attributes_at(folder)):
        levels = ngff.levels_of(attributes_at(folder), str(folder))
        level = min(levels, key=lambda level: math.prod(level.voxel_size_nm or ()))  # the finest, also of another order
        return _open_array(folder_of(folder, level.path), level)
    if is_array(folder / "s0"):
        return _open_array(folder / "s0", None)
    raise no_such_dataset(container, dataset, arrays_below(container, is_array))


def _inherited_level(folder: Path) -> ngff.Level | None:
    """The level of an array in the OME group above it."""
    for depth, group in enumerate(list(folder.parents)[:2], start=1):
        if is_zarr(group) and ngff.multiscales_of(attributes_at(group)):
            path = "/".join(folder.parts[-depth:])
            levels = ngff.levels_of(attributes_at(group), str(group))
            return next((level for level in levels if level.path.strip("/") == path), None)
    return None


def _open_array(folder: Path, level: ngff.Level | None) -> SourceVolume:
    where = str(folder)
    if not is_array(folder):
        raise MissingInput("the scale level named in the metadata does not exist", where=where)
    with reading(where, metadata=True):
        array = zarr.open_array(store=str(folder), mode="r")
        array = zarr.open_array(store=_CheckedStore(array, folder), mode="r")
    key = array.metadata.encode_chunk_key((0,) * array.ndim)
    setting = 'dimension_separator ("." or "/") in .zarray' if array.metadata.zarr_format == 2 else ENCODING_SETTING
    refuse_other_names(folder, key, setting)
    attributes = attributes_at(folder)
    with reading(where, metadata=True):
        axes = parse_axes(_axis_names(array, attributes, level, folder), array.shape, DEFAULT_AXES, where)
    return SourceVolume(
        where=where,
        form=f"zarr {array.metadata.zarr_format}" + (" OME-NGFF" if level else ""),
        axes=axes,
        stored_shape=tuple(array.shape),
        dtype=np.dtype(array.dtype),
        fetch=lambda slices: np.asarray(array[slices]),
        files=(folder,),
        claims=tuple(_claims(folder, attributes, axes, level)),
        grid=_grid(array, folder),
    )


class _CheckedStore(LocalStore):
    """A store that refuses chunks that are cut, or that unpack to far more than a chunk can hold."""

    def __init__(self, array: zarr.Array[Any], folder: Path) -> None:
        super().__init__(folder, read_only=True)
        self._codec, self._in_shards = _codec_of(array), array.shards is not None
        self._chunk_bytes = math.prod(array.chunks) * np.dtype(array.dtype).itemsize
        self._most = MOST_BYTES_OF_ONE * self._chunk_bytes + MOST_BYTES_ADDED
        self._chunks = math.prod(s // c for s, c in zip(array.shards or array.chunks, array.chunks, strict=True))

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """The stored bytes of a key. Raises ValueError for a chunk that is cut or unpacks to too many bytes."""
        value = await super().get(key, prototype, byte_range)
        if value is None or key.rpartition("/")[2] in METADATA:
            return value
        wanted = byte_range.end - byte_range.start if isinstance(byte_range, RangeByteRequest) else 1
        # The bytes of a shard may be its index or several chunks, so only zstd can be recognised there.
        content = value.to_bytes()
        if self._codec == "blosc" and not self._in_shards and len(content) >= BLOSC_HEADER:
            wanted = max(BLOSC_HEADER, int.from_bytes(content[12:16], "little"))
        if len(content) < wanted:
            msg = f"{self.root / key}: truncated, {len(content)} instead of {wanted} bytes"
            raise ValueError(msg)
        most = self._most * (self._chunks if byte_range is None else 1)
        size = unpacked_size(self._codec, content, most, headers_only=self._in_shards)
        if size is not None and size > most:
            msg = f"{self.root / key}: a chunk of {self._chunk_bytes} bytes unpacks to {size} or more"
            raise ValueError(msg)
        return value


def unpacked_size(codec: str | None, content: bytes, most: int, *, headers_only: bool = False) -> int | None:
    """Unpacked bytes of a chunk of `codec`; counting may stop once there are more than `most`.

    None if unknown; the codec itself then reports the problem of the chunk.
    """
    if codec == "zstd" and (size := content_size(content)) is not None:
        return size
    if codec is None or headers_only:
        return None
    if codec in HEADERS:
        begin, end = HEADERS[codec]
        return int.from_bytes(content[begin:end], "little") if len(content) >= end else None
    size = 0
    with suppress(OSError, EOFError, ValueError, lzma.LZMAError, zlib.error, pa.ArrowException):
        for piece in PIECES[codec](content):
            size += len(piece)
            if size > most:
                break
        return size
    return None


def _pieces_of(stream: Any) -> Iterator[bytes]:
    return iter(lambda: stream.read(PIECE_BYTES), b"")


def _zlib_pieces(content: bytes) -> Iterator[bytes]:
    unpacker = zlib.decompressobj()
    while piece := unpacker.decompress(content, PIECE_BYTES):
        yield piece
        content = unpacker.unconsumed_tail


# Functions that unpack a chunk without such a header in steps.
PIECES: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "zstd": lambda content: _pieces_of(pa.CompressedInputStream(pa.BufferReader(content), "zstd")),
    "gzip": lambda content: _pieces_of(gzip.GzipFile(fileobj=io.BytesIO(content))),
    "zlib": _zlib_pieces,
    "bz2": lambda content: _pieces_of(bz2.BZ2File(io.BytesIO(content))),
    "lzma": lambda content: _pieces_of(lzma.LZMAFile(io.BytesIO(content))),  # noqa: SIM115 (of bytes in memory)
}


def _codec_of(array: zarr.Array[Any]) -> str | None:
    """The codec from which the unpacked size of a chunk can be determined; in shards only zstd."""
    names = [type(codec).__name__.lower().removesuffix("codec") for codec in array.compressors]
    known = [name for name in names if name in HEADERS or name in PIECES]
    return None if not known or (array.shards and known[-1] != "zstd") else known[-1]


def _axis_names(
    array: zarr.Array[Any], attributes: Mapping[str, Any], level: ngff.Level | None, folder: Path
) -> list[Sequence[object]]:
    """The names of the axes in each piece of metadata that has them."""
    stored = getattr(array.metadata, "dimension_names", None)
    named = [*named_axes(attributes).values(), *webknossos_axes(folder)]
    return named + ([stored] if stored else []) + ([level.axes] if level else [])


def _claims(folder: Path, attributes: Mapping[str, Any], axes: str, level: ngff.Level | None) -> list[GeometryClaim]:
    """Claims of the array, of the OME group, and for s0 those of the pyramid's group."""
    claims = claims_of(attributes, axes, str(folder))
    if level is not None:
        claims += ngff.claim_of(level, str(folder.parent))
    if folder.name == "s0":
        claims += claims_of(attributes_at(folder.parent), axes, str(folder.parent))
    return claims


def _grid(array: zarr.Array[Any], folder: Path) -> ChunkGrid:
    """Chunk files, or shard files of a sharded array."""
    shape = tuple(array.shards or array.chunks)
    root = str(folder)
    encode = array.metadata.encode_chunk_key

    def file(index: tuple[int, ...]) -> str:
        """Path of the file of the chunk or shard with this index."""
        return f"{root}/{encode(index)}"

    return ChunkGrid(shape, lambda index: is_file(file(index)), file, array.fill_value)
