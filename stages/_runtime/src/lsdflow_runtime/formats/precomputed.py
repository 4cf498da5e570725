"""neuroglancer precomputed volumes, read by tensorstore: x,y,z; `resolution` in nm, `voxel_offset` in voxels."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_runtime.formats.claims import GeometryClaim, to_nm3, xyz_to_nm3
from lsdflow_runtime.formats.folders import json_object
from lsdflow_runtime.formats.source import ChunkGrid, SourceVolume, reading

TYPE = "neuroglancer_multiscale_volume"
LOSSY = ("jpeg",)


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
        BadData: labels with a lossy encoding, metadata without resolution.
    """
    info = json_object(container / "info")
    index, entry = _scale(info, scale, container)
    where = f"{container}:{entry.get('key')}"
    if info.get("type") == "segmentation" and entry.get("encoding") in LOSSY:
        raise BadData("labels are stored with a lossy encoding", where=where, found=entry.get("encoding"))
    with reading(where):
        spec = {
            "driver": "neuroglancer_precomputed",
            "kvstore": {"driver": "file", "path": f"{container}/"},
            "scale_index": index,
        }
        opened = tensorstore.open(spec, open=True, read=True).result()
        store = opened[tensorstore.d[:].translate_to[0]]
    return SourceVolume(
        where=where,
        form="precomputed",
        axes="xyzc",
        stored_shape=tuple(store.shape),
        dtype=np.dtype(store.dtype.numpy_dtype),
        fetch=lambda slices: np.asarray(store[slices].read().result()),
        files=(container / "info", container / str(entry.get("key"))),
        claims=(_claim(entry, where),),
        grid=_grid(entry, container, int(info.get("num_channels", 1))),
    )


def _scale(info: Mapping[str, Any], key: str, container: Path) -> tuple[int, Mapping[str, Any]]:
    scales = list(info.get("scales", []))
    for index, entry in enumerate(scales):
        if key.strip("/") in ("", str(entry.get("key"))):
            return index, entry
    keys = ", ".join(str(entry.get("key")) for entry in scales)
    raise MissingInput(
        "no such scale in the precomputed volume", where=container, wanted=key, found=keys or "no scales"
    )


def _claim(entry: Mapping[str, Any], where: str) -> GeometryClaim:
    size = xyz_to_nm3(entry.get("resolution"), where, "resolution")
    corner = xyz_to_nm3(entry.get("voxel_offset", (0, 0, 0)), where, "voxel_offset")
    offset = to_nm3([a * b for a, b in zip(size, corner, strict=True)], where, "voxel_offset")
    return GeometryClaim(f"scale {entry.get('key')!r} of the info file", size, offset)


def _grid(entry: Mapping[str, Any], container: Path, channels: int) -> ChunkGrid | None:
    """Chunk files; None for sharded scales, whose index is not read here."""
    if entry.get("sharding") is not None:
        return None
    chunk = [int(n) for n in entry["chunk_sizes"][0]]
    offset = [int(n) for n in entry.get("voxel_offset", (0, 0, 0))]
    size = [int(n) for n in entry["size"]]
    folder = container / str(entry["key"])

    def exists(index: tuple[int, ...]) -> bool:
        """True if the file of the chunk at this index of the grid of chunks exists."""
        spans = zip(index, chunk, offset, size, strict=False)
        name = "_".join(f"{o + i * c}-{o + min((i + 1) * c, n)}" for i, c, o, n in spans)
        return any(os.path.exists(folder / f"{name}{end}") for end in ("", ".gz"))  # noqa: PTH110

    return ChunkGrid((*chunk, channels), exists)
