"""HDF5 datasets (CREMI): attributes `resolution` and `offset`, z,y,x in nm; or `element_size_um`, z,y,x in um."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5p, h5z

from lsdflow_contract.errors import BadData, ConfigError, MissingInput
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
    with reading(str(path)), _opened(path) as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    return names


def open_hdf5(path: Path, dataset: str) -> SourceVolume:
    """Open a dataset of an HDF5 file; the file stays open until `close`.

    Raises:
        MissingInput: no such dataset; those that exist are listed.
        BadData: a damaged or lost file, one that another program writes, a missing filter, voxels never written.
    """
    if ".." in dataset.split("/"):
        raise ConfigError("a dataset name may not contain ..", where=path, found=repr(dataset))
    where = f"{path}:{dataset}"
    with reading(where):
        file = _opened(path)
        try:
            node = _dataset(file, dataset, path)
            files = _files_of(node, where)
        except BaseException:
            file.close()
            raise
    attributes = {name: _plain(value) for name, value in node.attrs.items()}
    with reading(where, metadata=True):
        axes = parse_axes(_axis_names(node, attributes), node.shape, DEFAULT_AXES, where)
    shape, grid = _true_shape(node, axes, where), _grid(node)
    if node.external:
        owner, name = node.file, node.name
        del node  # because HDF5 keeps the access properties of an open dataset
        beside = h5p.create(h5p.DATASET_ACCESS)
        beside.set_efile_prefix(b"${ORIGIN}")
        node = h5py.Dataset(h5d.open(owner.id, name.encode(), beside))
    return SourceVolume(
        where=where,
        form="hdf5",
        axes=axes,
        stored_shape=shape,
        dtype=np.dtype(node.dtype),
        fetch=lambda slices: np.asarray(node[slices]),
        files=tuple(dict.fromkeys((path, *files))),
        claims=tuple(claims_of(attributes, axes, where) + _element_size(attributes, axes, where)),
        grid=grid,
        closer=file.close,
    )


def _opened(path: Path) -> h5py.File:
    """An HDF5 file, opened for reading; BadData if another program has it open for writing."""
    try:
        return h5py.File(path, "r")
    except OSError as error:
        if not isinstance(error, BlockingIOError) and "open for write" not in str(error):
            raise
        fix = (
            "close it there; if no program has it open, because the one that wrote it was killed: h5clear --status FILE"
        )
        found = str(error).splitlines()[0]
        raise BadData("another program is writing the HDF5 file", where=path, found=found, fix=fix) from error


@contextmanager
def _other_file(place: Path, path: Path) -> Iterator[h5py.File]:
    """An HDF5 file with a part of the voxels of the file `path`; BadData if it is lost or damaged."""
    if not place.exists():
        raise BadData("a file with voxels of the dataset is missing", where=path, wanted=place, fix="copy it there")
    with reading(str(place)), _opened(place) as file:
        yield file


def _dataset(file: h5py.File, name: str, path: Path) -> h5py.Dataset:
    """The dataset of this name, or s0 of a group; MissingInput if there is none."""
    parts = name.strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        link = file.get("/".join(parts[:depth]), getlink=True)
        if isinstance(link, h5py.ExternalLink):
            with _other_file(path.parent / link.filename, path) as other:
                if link.path not in other:
                    what = "the dataset to which a link leads is missing"
                    raise MissingInput(what, where=other.filename, wanted=link.path, found=f"a link in {path}")
    node = file.get(name) if parts[0] else None
    if isinstance(node, h5py.Group):
        node = node.get("s0")
    if not isinstance(node, h5py.Dataset):
        raise no_such_dataset(path, name, datasets_in(path))
    return node


def _files_of(node: h5py.Dataset, where: str) -> list[Path]:
    """The files with the voxels of a dataset. HDF5 reads zeros where some were lost or never written: refused here."""
    _refuse_filters(node, where)
    path = Path(node.file.filename)
    if node.is_virtual:
        return [path, *_virtual_files(node, path, where)]
    if node.external:
        return [path, *_external_files(node, path, where)]
    if node.chunks is None and node.size and not node.id.get_storage_size():
        raise BadData("no voxel of the dataset was ever written", where=where, wanted=f"{node.size} voxels", found="0")
    return [path]


def _refuse_filters(node: h5py.Dataset, where: str) -> None:
    """BadData naming a filter of the dataset that is not installed."""
    properties = node.id.get_create_plist()
    for code, _, _, name in map(properties.get_filter, range(properties.get_nfilters())):
        if not h5z.filter_avail(code):
            with suppress(ImportError):
                import_module("hdf5plugin")  # in the image of prepare: Blosc, bitshuffle, zstd, LZ4, ...
        if not h5z.filter_avail(code):
            raise BadData(
                "a filter of the HDF5 dataset is not installed",
                where=where,
                found=f"filter {code} {name.decode(errors='replace')}".strip(),
                fix="pip install hdf5plugin, or write it again where the filter exists: h5repack -f GZIP=4 OLD NEW",
            )


def _virtual_files(node: h5py.Dataset, path: Path, where: str) -> list[Path]:
    """The files of the sources of a virtual dataset; BadData for one that is lost or incomplete."""
    found: list[Path] = []
    mapped = 0
    for space, name, dataset, _ in node.virtual_sources():
        mapped += space.get_select_npoints()
        places = [path] if name == "." else [path.parent / name, path.parent / Path(name).name]
        place = next((place for place in places if place.exists()), places[0])
        wanted = f"{name}:{dataset}"
        with _other_file(place, path) as file:
            source = file.get(dataset)
            if not isinstance(source, h5py.Dataset):
                raise BadData("a source of the virtual dataset is missing", where=place, wanted=wanted)
            found += [place, *_files_of(source, str(place))]
            chunks = source.chunks and [-(-n // size) for n, size in zip(source.shape, source.chunks, strict=True)]
            lost = chunks and math.prod(chunks) - source.id.get_num_chunks()
            if lost or source.size < space.get_select_npoints():
                count = f"{lost} of its chunks were never written" if lost else f"shape {source.shape}"
                raise BadData(
                    "a source of the virtual dataset is not complete", where=place, wanted=wanted, found=count
                )
    if mapped < node.size:
        text = f"sources of {mapped} of {node.size} voxels"
        raise BadData("a part of the virtual dataset has no source", where=where, wanted="a source", found=text)
    return found


def _external_files(node: h5py.Dataset, path: Path, where: str) -> list[Path]:
    """The external files of a dataset; BadData for one that is lost or too short."""
    found: list[Path] = []
    remaining = node.size * node.dtype.itemsize
    for name, offset, size in node.external:
        file, wanted = path.parent / name, min(size, remaining)
        if not file.exists():
            raise BadData("a file with voxels of the dataset is missing", where=where, wanted=file, fix="copy it there")
        if file.stat().st_size < offset + wanted:
            text = f"{file.stat().st_size} bytes"
            raise BadData("an external file is truncated", where=file, wanted=f"{offset + wanted} bytes", found=text)
        remaining -= wanted
        found.append(file)
    return found


def _true_shape(node: h5py.Dataset, axes: str, where: str) -> tuple[int, ...]:
    """The shape without the zeros that Imaris adds to whole chunks."""
    sizes = [node.parent.attrs.get(f"ImageSize{letter.upper()}") for letter in axes]
    if any(size is None for size in sizes):
        return tuple(node.shape)
    shape = tuple(int("".join(np.asarray(size).astype(str).ravel())) for size in sizes)
    if any(size > stored for size, stored in zip(shape, node.shape, strict=True)):
        raise BadData("ImageSizeZ, Y, X exceed the dataset", where=where, wanted=str(node.shape), found=str(shape))
    return shape


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
        """True if the chunk at this index of the grid of chunks was written."""
        corner = tuple(i * size for i, size in zip(index, chunks, strict=True))
        return node.id.get_chunk_info_by_coord(corner).byte_offset is not None

    return ChunkGrid(tuple(chunks), exists, fill_value=node.fillvalue)
