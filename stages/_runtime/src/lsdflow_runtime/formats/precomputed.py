"""neuroglancer precomputed volumes, read by tensorstore: x,y,z; `resolution` in nm, `voxel_offset` in voxels.

Chunk files may be packed, with names that end in .gz, .br, ..., as cloud-volume writes them. tensorstore knows them by
their plain names only, so they are unpacked into its store in memory. It reads zeros for a chunk that does not exist;
whether a shard contains a chunk is read from the index of the shard.
"""

from __future__ import annotations

import json
import lzma
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tensorstore
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_runtime.formats.claims import GeometryClaim, to_nm3, xyz_to_nm3
from lsdflow_runtime.formats.folders import json_object
from lsdflow_runtime.formats.source import ChunkGrid, SourceVolume, is_file, no_codec, reading, refuse_other_names

TYPE = "neuroglancer_multiscale_volume"
LOSSY = ("jpeg",)
ENCODINGS = ("raw", "jpeg", "png", "compressed_segmentation")
# Names of packed chunk files end so; None: not packed.
ENDINGS = {"": None, ".gz": "gzip", ".br": "brotli", ".zstd": "zstd", ".bz2": "bz2", ".xz": "xz"}
# A chunk of incompressible voxels can be a little larger than the voxels.
MOST_BYTES_OF_ONE, MOST_BYTES_ADDED = 2, 2**16
PACKED = tuple(filter(None, ENDINGS))
GZIP_MAGIC = b"\x1f\x8b"
INDEX_CACHE_BYTES = 2**26
Index = tuple[int, ...]


def is_precomputed(folder: Path) -> bool:
    """True if a folder holds the `info` file of a precomputed volume."""
    info = folder / "info"
    if not info.is_file():
        return False
    content = json_object(info)
    return content.get("@type") == TYPE or ("scales" in content and "data_type" in content)


def open_precomputed(container: Path, scale: str = "") -> SourceVolume:
    """Open one scale of a precomputed volume, by its key ("8_8_8"); "" is the first, the finest.

    Raises:
        MissingInput: no such scale; the keys that exist are listed.
        BadData: labels with a lossy encoding, metadata without resolution, an encoding that is not installed.
    """
    info = json_object(container / "info")
    number, entry = _scale(info, scale, container)
    where, folder = f"{container}:{entry.get('key')}", container / str(entry.get("key"))
    if entry.get("encoding") not in ENCODINGS:
        raise no_codec(entry.get("encoding"), where, ENCODINGS)
    if info.get("type") == "segmentation" and entry.get("encoding") in LOSSY:
        raise BadData("labels are stored with a lossy encoding", where=where, found=entry.get("encoding"))
    with reading(where, metadata=True):
        store = _opened({"driver": "file", "path": f"{container}/"}, number, tensorstore.Context())
    channels = int(info.get("num_channels", 1))
    sharding = entry.get("sharding")
    grid = _chunk_grid(entry, folder, channels) if sharding is None else _shard_grid(entry, folder, channels)
    example, is_chunk = _names(entry, folder, grid)
    refuse_other_names(folder, example, "the scale in the info file", is_chunk)

    def fetch(slices: tuple[slice, ...]) -> NDArray[np.generic]:
        """The voxels of a box. A chunk that is packed with gzip may have a plain name, as some downloads leave it."""
        try:
            return np.asarray(_unpacked(slices)[slices].read().result())
        except ValueError:
            if sharding is not None:
                raise
            return np.asarray(_unpacked(slices, by_content=True)[slices].read().result())

    def _unpacked(slices: tuple[slice, ...], *, by_content: bool = False) -> tensorstore.TensorStore:
        """A store with the chunks in `slices`: that of the files, or one in memory if some of them are packed."""
        files = [Path(str(grid.file and grid.file(index))) for index in grid.touched_by(slices)]
        if sharding is not None or not (by_content or any(file.suffix in PACKED for file in files)):
            return store
        context = tensorstore.Context()
        memory = tensorstore.KvStore.open("memory://", context=context).result()
        memory.write("info", json.dumps(info).encode()).result()
        most = MOST_BYTES_OF_ONE * math.prod(grid.chunk_shape) * store.dtype.numpy_dtype.itemsize + MOST_BYTES_ADDED
        for file in filter(Path.is_file, files):
            name = file.stem if file.suffix in PACKED else file.name
            memory.write(f"{entry['key']}/{name}", unpacked(file, most, by_content=by_content)).result()
        return _opened({"driver": "memory"}, number, context)

    return SourceVolume(
        where=where,
        form="precomputed",
        axes="xyzc",
        stored_shape=tuple(store.shape),
        dtype=np.dtype(store.dtype.numpy_dtype),
        fetch=fetch,
        files=(container / "info", folder),
        claims=(_claim(entry, where),),
        grid=grid,
    )


def _opened(kvstore: dict[str, str], scale: int, context: tensorstore.Context) -> tensorstore.TensorStore:
    """A scale of the volume in `kvstore`; its first voxel is 0, 0, 0."""
    spec = {"driver": "neuroglancer_precomputed", "kvstore": kvstore, "scale_index": scale}
    return tensorstore.open(spec, open=True, read=True, context=context).result()[tensorstore.d[:].translate_to[0]]


def unpacked(file: Path, most: int, *, by_content: bool = False) -> bytes:
    """The content of a chunk file, unpacked up to one byte more than `most`, by the ending of its name.

    by_content: gzip is recognised in the content, whether the name says so or not.
    """
    packing, content = ENDINGS.get(file.suffix), file.read_bytes()
    if by_content and packing in (None, "gzip"):
        packing = "gzip" if content.startswith(GZIP_MAGIC) else None
    if packing is None:
        return content
    try:
        packed = pa.BufferReader(content)
        stream: Any = lzma.open(packed) if packing == "xz" else pa.CompressedInputStream(packed, packing)  # noqa: SIM115
        with stream:
            content = bytes(stream.read(most + 1))
    except (OSError, EOFError, lzma.LZMAError, pa.ArrowException) as error:
        msg = f"{file}: {error}"
        raise ValueError(msg) from error
    return content


def _scale(info: Mapping[str, Any], key: str, container: Path) -> tuple[int, Mapping[str, Any]]:
    """The number and the entry of the scale of this key; "": the finest, which need not be the first."""
    scales = list(info.get("scales", []))
    named = [pair for pair in enumerate(scales) if key.strip("/") in ("", str(pair[1].get("key")))]
    if named:
        sizes = [math.prod(xyz_to_nm3(entry.get("resolution"), str(container), "resolution")) for _, entry in named]
        return named[sizes.index(min(sizes))]
    keys = ", ".join(str(entry.get("key")) for entry in scales)
    raise MissingInput(
        "no such scale in the precomputed volume", where=container, wanted=key, found=keys or "no scales"
    )


def _claim(entry: Mapping[str, Any], where: str) -> GeometryClaim:
    size = xyz_to_nm3(entry.get("resolution"), where, "resolution")
    corner = xyz_to_nm3(entry.get("voxel_offset", (0, 0, 0)), where, "voxel_offset")
    offset = to_nm3([a * b for a, b in zip(size, corner, strict=True)], where, "voxel_offset")
    return GeometryClaim(f"scale {entry.get('key')!r} of the info file", size, offset)


def _names(entry: Mapping[str, Any], folder: Path, grid: ChunkGrid) -> tuple[str, Callable[[str], object]]:
    """A name of a chunk or shard file as an example, and whether a name is that of a chunk or shard of the scale."""
    if entry.get("sharding") is not None:
        digits = max(1, math.ceil(int(entry["sharding"].get("shard_bits", 0)) / 4))
        return "0" * digits + ".shard", re.compile(f"[0-9a-f]{{{digits}}}[.]shard").fullmatch
    corner = list(zip(entry.get("voxel_offset", (0, 0, 0)), grid.chunk_shape[:3], strict=True))

    def is_chunk(name: str) -> bool:
        """True if the chunk that begins at the numbers in the name has this file."""
        begins = [int(begin) for begin, _ in re.findall(r"(-?\d+)-(-?\d+)", name)]
        index = tuple((begin - int(offset)) // size for begin, (offset, size) in zip(begins, corner, strict=False))
        return len(begins) == len(corner) and str(grid.file and grid.file(index)) == f"{folder}/{name}"

    return "0-64_0-64_0-64", is_chunk


def _chunk_grid(entry: Mapping[str, Any], folder: Path, channels: int) -> ChunkGrid:
    """A file for each chunk, plain or packed."""
    chunk = [int(n) for n in entry["chunk_sizes"][0]]
    offset = [int(n) for n in entry.get("voxel_offset", (0, 0, 0))]
    size = [int(n) for n in entry["size"]]

    def candidates(index: Index) -> list[str]:
        """The possible files of the chunk at this index of the grid of chunks."""
        spans = zip(index, chunk, offset, size, strict=False)
        name = "_".join(f"{o + i * c}-{o + min((i + 1) * c, n)}" for i, c, o, n in spans)
        return [f"{folder}/{name}{ending}" for ending in ENDINGS]

    def file(index: Index) -> str:
        """The file that exists, or the plain one."""
        return next(filter(is_file, candidates(index)), candidates(index)[0])

    return ChunkGrid((*chunk, channels), lambda index: any(map(is_file, candidates(index))), file)


def _shard_grid(entry: Mapping[str, Any], folder: Path, channels: int) -> ChunkGrid:
    """Chunks in shards, which are files with an index."""
    chunk = [int(n) for n in entry["chunk_sizes"][0]]
    grid = [-(-int(n) // c) for n, c in zip(entry["size"], chunk, strict=True)]
    spec = {"driver": "neuroglancer_uint64_sharded", "metadata": dict(entry["sharding"])}
    cache = tensorstore.Context({"cache_pool": {"total_bytes_limit": INDEX_CACHE_BYTES}})
    shards = tensorstore.KvStore.open(
        {**spec, "base": {"driver": "file", "path": f"{folder}/"}}, context=cache
    ).result()

    def exists(index: Index) -> bool:
        """True if the index of a shard contains the chunk. Raises ValueError for a damaged index."""
        key = chunk_id(index[:3], grid).to_bytes(8, "big")
        return shards.read(key, byte_range=slice(0, 0)).result().state != "missing"

    def file(index: Index) -> str:
        """The shard of a chunk: tensorstore does not say it, but writes there."""
        context = tensorstore.Context()
        written = tensorstore.KvStore.open({**spec, "base": "memory://"}, context=context).result()
        written.write(chunk_id(index[:3], grid).to_bytes(8, "big"), b"").result()
        (name,) = tensorstore.KvStore.open("memory://", context=context).result().list().result()
        return f"{folder}/{name.decode()}"

    return ChunkGrid((*chunk, channels), exists, file)


def chunk_id(index: Index, grid: list[int]) -> int:
    """The compressed Morton code of a chunk: the bits of x, y, z in turn, as many of each as its axis needs."""
    code, place = 0, 0
    for bit in range(64):
        for i, n in zip(index, grid, strict=True):
            if n - 1 >> bit:
                code |= (i >> bit & 1) << place
                place += 1
    return code
