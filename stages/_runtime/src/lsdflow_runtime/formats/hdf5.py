"""HDF5 datasets (CREMI): attributes `resolution` and `offset`, z,y,x in nm; or `element_size_um`, z,y,x in um."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import h5py
import numpy as np

from lsdflow_contract.errors import ConfigError
from lsdflow_runtime.formats.attributes import claims_of, named_axes, parse_axes, spatial
from lsdflow_runtime.formats.claims import GeometryClaim, to_nm3
from lsdflow_runtime.formats.folders import no_such_dataset
from lsdflow_runtime.formats.source import ChunkGrid, SourceVolume, reading

DEFAULT_AXES = "tczyx"


def is_hdf5(path: Path) -> bool:
    """True if a file has the HDF5 signature."""
    return path.is_file() and bool(h5py.is_hdf5(path))


def datasets_in(path: Path) -> list[str]:
    """Names of all datasets of a file."""
    names: list[str] = []
    with reading(str(path)), h5py.File(path, "r") as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names


def open_hdf5(path: Path, dataset: str) -> SourceVolume:
    """Open a dataset of an HDF5 file; the file stays open until `close`.

    Raises:
        MissingInput: no such dataset; those that exist are listed.
        BadData: a damaged file.
    """
    if ".." in dataset.split("/"):
        raise ConfigError("a dataset name may not contain ..", where=path, found=repr(dataset))
    where = f"{path}:{dataset}"
    with reading(where):
        file = h5py.File(path, "r")
    with reading(where):  # a link may point to itself
        node = file.get(dataset) if dataset.strip("/") else None
    if isinstance(node, h5py.Group) and isinstance(node.get("s0"), h5py.Dataset):
        node = node["s0"]
    if not isinstance(node, h5py.Dataset):
        file.close()
        raise no_such_dataset(path, dataset, datasets_in(path))
    attributes = {name: _plain(value) for name, value in node.attrs.items()}
    axes = parse_axes(_axis_names(node, attributes), node.shape, DEFAULT_AXES, where)
    return SourceVolume(
        where=where,
        form="hdf5",
        axes=axes,
        stored_shape=tuple(node.shape),
        dtype=np.dtype(node.dtype),
        fetch=lambda slices: np.asarray(node[slices]),
        files=(path, *_other_files(node, path)),
        claims=tuple(claims_of(attributes, axes, where) + _element_size(attributes, axes, where)),
        grid=_grid(node),
        closer=file.close,
    )


def _other_files(node: h5py.Dataset, path: Path) -> list[Path]:
    """The files that contain a dataset of external or virtual storage."""
    names = {name for name, *_ in node.external or ()}
    names |= {source.file_name for source in node.virtual_sources()} if node.is_virtual else set()
    return [path.parent / name for name in sorted(names - {"."})]


def _axis_names(node: h5py.Dataset, attributes: Mapping[str, Any]) -> list[list[object]]:
    """The names of the axes: attributes, dimension labels, dimension scales."""
    scales: list[object] = [
        axis.label or next((PurePosixPath(scale.name).name for scale in axis.values()), None) for axis in node.dims
    ]
    return [*named_axes(attributes).values(), scales]


def _element_size(attributes: Mapping[str, Any], axes: str, where: str) -> list[GeometryClaim]:
    if "element_size_um" not in attributes:
        return []
    size = to_nm3(spatial(attributes["element_size_um"], axes, where, "element_size_um"), where, "element_size_um")
    nm = to_nm3([value * 1e3 for value in size], where, "element_size_um")
    return [GeometryClaim(f"attribute 'element_size_um' of {where}", nm)]


def _plain(value: object) -> object:
    """An HDF5 attribute as plain Python values."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _grid(node: h5py.Dataset) -> ChunkGrid | None:
    """Chunks of the dataset; None for contiguous storage, which has no chunks."""
    chunks = node.chunks
    if chunks is None:
        return None

    def exists(index: tuple[int, ...]) -> bool:
        corner = tuple(i * size for i, size in zip(index, chunks, strict=True))
        return node.id.get_chunk_info_by_coord(corner).byte_offset is not None

    return ChunkGrid(tuple(chunks), exists)
