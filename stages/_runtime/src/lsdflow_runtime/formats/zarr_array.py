"""zarr 2 and 3 arrays, OME-NGFF images and scale pyramids in them.

A dataset may be an array, an OME image (group with multiscales; the finest level is used), or a scale pyramid (group
with s0, s1, ...; s0 is used). A coarser level is chosen by its name: "volumes/raw/s1", "image/2".

A few damaged or crafted bytes can unpack to more than the memory holds. So the unpacked size of a chunk is determined
before it is used: from its header, or else by unpacking it in steps until the limit is exceeded.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import zarr
from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore

from lsdflow_contract.errors import MissingInput
from lsdflow_runtime.formats import ngff
from lsdflow_runtime.formats.attributes import claims_of, named_axes, parse_axes
from lsdflow_runtime.formats.claims import GeometryClaim
from lsdflow_runtime.formats.folders import arrays_below, folder_of, json_object, no_such_dataset, webknossos_axes
from lsdflow_runtime.formats.source import ChunkGrid, SourceVolume, reading
from lsdflow_runtime.io.chunk_files import content_size

MARKERS = (".zarray", ".zgroup", "zarr.json")
METADATA = (*MARKERS, ".zattrs", ".zmetadata")
DEFAULT_AXES = "tczyx"
PIECE_BYTES = 2**20
# A filter may turn one byte into eight, and checksums and headers add some bytes.
MOST_BYTES_OF_ONE, MOST_BYTES_ADDED = 8, 2**16
# Bytes of the header that contain the unpacked size.
HEADERS = {"blosc": (4, 8), "lz4": (0, 4)}


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
        level = ngff.levels_of(attributes_at(folder), str(folder))[0]
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
    with reading(where):
        array = zarr.open_array(store=str(folder), mode="r")
        if codec := _codec_of(array):
            array = zarr.open_array(store=_BoundedStore(array, folder, codec), mode="r")
    attributes = attributes_at(folder)
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


class _BoundedStore(LocalStore):
    """A store that refuses compressed chunks that unpack to far more than a chunk can hold."""

    def __init__(self, array: zarr.Array[Any], folder: Path, codec: str) -> None:
        super().__init__(folder, read_only=True)
        self._codec, self._chunk_bytes, self._in_shards = codec, _chunk_bytes(array), array.shards is not None

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        """The stored bytes of a key. Raises ValueError for a chunk that unpacks to too many bytes."""
        value = await super().get(key, prototype, byte_range)
        if value is None or key.rpartition("/")[2] in METADATA:
            return value
        most = MOST_BYTES_OF_ONE * self._chunk_bytes + MOST_BYTES_ADDED
        # The bytes of a shard may be several chunks, of which only the first header can be read here.
        content = value.to_bytes()
        size = content_size(content) if self._in_shards else unpacked_size(self._codec, content, most)
        if size is not None and size > most:
            msg = f"{self.root / key}: a chunk of {self._chunk_bytes} bytes unpacks to {size} or more"
            raise ValueError(msg)
        return value


def unpacked_size(codec: str, content: bytes, most: int) -> int | None:
    """Unpacked bytes of a chunk of `codec`; counting may stop once there are more than `most`.

    None if unknown; the codec itself then reports the problem of the chunk.
    """
    if codec == "zstd" and (size := content_size(content)) is not None:
        return size
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


def _chunk_bytes(array: zarr.Array[Any]) -> int:
    return math.prod(array.chunks) * np.dtype(array.dtype).itemsize


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

    return ChunkGrid(shape, lambda index: os.path.exists(file(index)), file)  # noqa: PTH110 (for speed)
