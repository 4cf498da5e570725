"""N5 datasets, read by tensorstore. All values of N5 are in order x,y,z: dimensions, resolution and offset."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_runtime.formats.attributes import claims_of, named_axes, parse_axes
from lsdflow_runtime.formats.folders import arrays_below, folder_of, json_object, no_such_dataset, webknossos_axes
from lsdflow_runtime.formats.source import ChunkGrid, SourceVolume, is_file, no_codec, reading, refuse_other_names

DEFAULT_AXES = "xyzct"
CODECS = ("raw", "gzip", "bzip2", "xz", "blosc", "zstd")


def attributes_at(folder: Path) -> dict[str, Any]:
    """attributes.json of a dataset or group."""
    return json_object(folder / "attributes.json")


def is_array(folder: Path) -> bool:
    """True if a folder is an N5 dataset."""
    return "dimensions" in attributes_at(folder) and "blockSize" in attributes_at(folder)


def is_image(folder: Path) -> bool:
    """True if a folder is an N5 dataset or a scale pyramid with s0."""
    return is_array(folder) or is_array(folder / "s0")


def is_n5(folder: Path) -> bool:
    """True if a folder is an N5 root or dataset."""
    return is_image(folder) or "n5" in attributes_at(folder)


def open_n5(container: Path, dataset: str) -> SourceVolume:
    """Open an N5 dataset, or s0 of a group with s0.

    Raises:
        MissingInput: no such dataset; those that exist are listed.
        BadData: unreadable metadata, a codec that is not installed, label multisets.
    """
    folder = folder_of(container, dataset)
    if not is_array(folder) and is_array(folder / "s0"):
        folder = folder / "s0"
    if not is_array(folder):
        raise no_such_dataset(container, dataset, arrays_below(container, is_array))
    where, attributes = str(folder), attributes_at(folder)
    _refuse_other_forms(attributes, where)
    with reading(where, metadata=True):
        store = tensorstore.open(
            {"driver": "n5", "kvstore": {"driver": "file", "path": f"{folder}/"}}, open=True, read=True
        ).result()
    refuse_other_names(folder, "/".join(["0"] * store.rank), "the N5 format")
    with reading(where, metadata=True):
        axes = parse_axes(_axis_names(attributes, folder), store.shape, DEFAULT_AXES, where)
    if axes.index("z") < axes.index("x"):
        raise BadData("the axes of an N5 dataset are named x last", where=where, wanted="x, y, z", found=axes)
    claims = claims_of(attributes, axes, where)
    if folder.name == "s0":
        claims += claims_of(attributes_at(folder.parent), axes, str(folder.parent))
    grid = _grid(attributes["blockSize"], where)

    def fetch(slices: tuple[slice, ...]) -> NDArray[np.generic]:
        """The voxels of a box; BadData for a block that has fewer voxels than the metadata say."""
        _refuse_small_blocks(grid, grid.touched_by(slices), store.shape)
        return np.asarray(store[slices].read().result())

    return SourceVolume(
        where=where,
        form="n5",
        axes=axes,
        stored_shape=tuple(store.shape),
        dtype=np.dtype(store.dtype.numpy_dtype),
        fetch=fetch,
        files=(folder,),
        claims=tuple(claims),
        grid=grid,
    )


def _axis_names(attributes: dict[str, Any], folder: Path) -> list[Sequence[object]]:
    """The names of the axes, x first; those of Python libraries have x last."""
    named = [names if key in ("axes", "axisOrder") else names[::-1] for key, names in named_axes(attributes).items()]
    return [*named, *webknossos_axes(folder)]


def _refuse_other_forms(attributes: dict[str, Any], where: str) -> None:
    compression = attributes.get("compression", attributes.get("compressionType", "raw"))
    codec = compression.get("type") if isinstance(compression, dict) else compression
    if codec not in CODECS:
        raise no_codec(codec, where, CODECS)
    if attributes.get("isLabelMultiset"):
        raise BadData(
            "the dataset holds label multisets of Paintera, not one label for each voxel",
            where=where,
            wanted="integers",
            found="isLabelMultiset = true",
            fix="convert it with: paintera-convert to-scalar",
        )


def _refuse_small_blocks(grid: ChunkGrid, indices: Iterable[tuple[int, ...]], shape: tuple[int, ...]) -> None:
    """Compare the size in the header of each block with the metadata; tensorstore reads zeros for what is absent."""
    for index in indices:
        spans = zip(index, grid.chunk_shape, shape, strict=True)
        wanted = [min(size, length - i * size) for i, size, length in spans]
        name = str(grid.file and grid.file(index))
        with suppress(FileNotFoundError), open(name, "rb", buffering=0) as file:  # noqa: PTH123 (for speed)
            header = file.read(4 + 4 * len(index))
            found = struct.unpack(f">HH{len(header) // 4 - 1}I", header[: len(header) // 4 * 4]) if header[3:] else ()
            if found[:2] == (1, len(index)):
                raise no_codec("blocks of varying length (mode 1), as of label multisets", name, ("mode 0",))
            if found[:2] == (0, len(index)) and any(a < b for a, b in zip(found[2:], wanted, strict=False)):
                raise BadData(
                    "a block has fewer voxels than the metadata say",
                    where=name,
                    wanted=f"x,y,z {tuple(wanted)} of blockSize {grid.chunk_shape}",
                    found=found[2:],
                    fix="copy the block again, or write the dataset again",
                )


def _grid(block_size: list[int], root: str) -> ChunkGrid:
    def file(index: tuple[int, ...]) -> str:
        """Path of the file of the block at this index of the grid of blocks."""
        return "/".join((root, *map(str, index)))

    return ChunkGrid(tuple(block_size), lambda index: is_file(file(index)), file)
