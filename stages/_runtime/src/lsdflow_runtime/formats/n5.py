"""N5 datasets, read by tensorstore. All values of N5 are in order x,y,z: dimensions, resolution and offset."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

from lsdflow_contract.errors import BadData
from lsdflow_runtime.formats.attributes import claims_of, named_axes, parse_axes
from lsdflow_runtime.formats.folders import arrays_below, folder_of, json_object, no_such_dataset, webknossos_axes
from lsdflow_runtime.formats.source import ChunkGrid, SourceVolume, reading

DEFAULT_AXES = "xyzct"


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
        BadData: unreadable metadata.
    """
    folder = folder_of(container, dataset)
    if not is_array(folder) and is_array(folder / "s0"):
        folder = folder / "s0"
    if not is_array(folder):
        raise no_such_dataset(container, dataset, arrays_below(container, is_array))
    where, attributes = str(folder), attributes_at(folder)
    with reading(where):
        store = tensorstore.open(
            {"driver": "n5", "kvstore": {"driver": "file", "path": f"{folder}/"}}, open=True, read=True
        ).result()
    axes = parse_axes(_axis_names(attributes, folder), store.shape, DEFAULT_AXES, where)
    if axes.index("z") < axes.index("x"):
        raise BadData("the axes of an N5 dataset are named x last", where=where, wanted="x, y, z", found=axes)
    claims = claims_of(attributes, axes, where)
    if folder.name == "s0":
        claims += claims_of(attributes_at(folder.parent), axes, str(folder.parent))
    return SourceVolume(
        where=where,
        form="n5",
        axes=axes,
        stored_shape=tuple(store.shape),
        dtype=np.dtype(store.dtype.numpy_dtype),
        fetch=lambda slices: np.asarray(store[slices].read().result()),
        files=(folder,),
        claims=tuple(claims),
        grid=_grid(attributes["blockSize"], where),
    )


def _axis_names(attributes: dict[str, Any], folder: Path) -> list[Sequence[object]]:
    """The names of the axes, x first; those of Python libraries have x last."""
    named = [names if key in ("axes", "axisOrder") else names[::-1] for key, names in named_axes(attributes).items()]
    return [*named, *webknossos_axes(folder)]


def _grid(block_size: list[int], root: str) -> ChunkGrid:
    def file(index: tuple[int, ...]) -> str:
        return "/".join((root, *map(str, index)))

    return ChunkGrid(tuple(block_size), lambda index: os.path.exists(file(index)), file)  # noqa: PTH110 (for speed)
