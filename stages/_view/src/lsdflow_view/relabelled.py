"""Segmentations at all thresholds, computed on request: a chunk of the fragments is mapped through a lookup table.

    chunk (threshold, z, y, x)  ->  fragments of that chunk, from disk  ->  lookup table of that threshold  ->  zstd

A reader sees one zarr 3 array (threshold, z, y, x) of uint64 with the chunks of the fragments. Memory holds a few
lookup tables and the chunks that are requested at the moment. With an export, it sees an OME-NGFF image:

    zarr.json              axes threshold, z, y, x; z, y, x as in the export's image of the fragments
    <level>/zarr.json, <level>/c/<threshold>/<z>/<y>/<x>

A voxel of a coarser level is the most frequent fragment of its bin and shows the segment of that fragment, which is
not always the most frequent segment. Level 0 has the voxels of the experiment.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numcodecs import Zstd
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_contract.lut import KnownLut, Lut, read_lut
from lsdflow_runtime.formats.ngff import VERSION
from lsdflow_runtime.io.volumes import Volume
from lsdflow_view.export.ngff import multiscale_of, open_levels

UInt64s = NDArray[np.uint64]

AXIS = "threshold"
KEPT_BYTES = 1 << 30
FASTEST = 1


class LutCache:
    """A cache of the most recently used lookup tables, of at most `kept_bytes`; the newest table is always kept."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._tables: OrderedDict[Path, Lut] = OrderedDict()
        self._lock = Lock()

    def table(self, path: Path) -> Lut:
        """The table of a file, read once while it is cached. BadData if its fragment ids do not ascend."""
        with self._lock:
            if path not in self._tables:
                self._tables[path] = _ascending(path)
            self._tables.move_to_end(path)
            while len(self._tables) > 1 and self._held_bytes() > self._kept_bytes:
                self._tables.popitem(last=False)
            return self._tables[path]

    def _held_bytes(self) -> int:
        return sum(lut.fragments.nbytes + lut.segments.nbytes for lut in self._tables.values())


@dataclass(frozen=True)
class RelabelledVolume:
    """The fragments under each of `luts`, as one array (threshold, z, y, x)."""

    fragments: Volume
    luts: tuple[KnownLut, ...]
    cache: LutCache = field(default_factory=LutCache)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Thresholds, z, y, x."""
        return (len(self.luts), *self.fragments.box.shape_vox)

    def metadata(self) -> bytes:
        """The zarr.json of the array."""
        codecs = [
            {"name": "bytes", "configuration": {"endian": "little"}},
            {"name": "zstd", "configuration": {"level": FASTEST, "checksum": False}},
        ]
        chunk = {"chunk_shape": [1, *self.fragments.read_shape_vox]}
        described = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": "uint64",
            "chunk_grid": {"name": "regular", "configuration": chunk},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": 0,
            "codecs": codecs,
            "attributes": {AXIS: [lut.threshold for lut in self.luts]},
            "dimension_names": [AXIS, "z", "y", "x"],
        }
        return json.dumps(described).encode()

    def file(self, parts: Sequence[str]) -> bytes | None:
        """The content of a file of the array, `zarr.json` or `c/<threshold>/<z>/<y>/<x>`; None if it does not exist."""
        if list(parts) == ["zarr.json"]:
            return self.metadata()
        if len(parts) != 5 or parts[0] != "c" or not all(p.isascii() and p.isdecimal() for p in parts[1:]):
            return None
        threshold, *place = (int(p) for p in parts[1:])
        chunk = self._chunk(threshold, place)
        return None if chunk is None else bytes(Zstd(FASTEST).encode(chunk))

    def read(self, threshold: int, box: Box) -> UInt64s:
        """Segment ids of `box` (z, y, x) with the lookup table of this number."""
        lut = self.cache.table(self.luts[threshold].path)
        return relabel(self.fragments.read(box), lut, str(box))

    def _chunk(self, threshold: int, place: Sequence[int]) -> UInt64s | None:
        """A whole chunk, 0 beyond the end of the volume; None outside of it and where there are no fragments."""
        edges, whole = self.fragments.read_shape_vox, self.fragments.box
        box = Box(_times(place, edges), edges).intersect(whole)
        if box.is_empty or threshold >= len(self.luts) or not self.fragments.holds(box):
            return None
        chunk = np.zeros(edges, np.uint64)
        chunk[tuple(map(slice, box.shape_vox))] = self.read(threshold, box)
        return chunk


def relabel(fragments: UInt64s, lut: Lut, where: str) -> UInt64s:
    """The segment of each voxel; 0 stays 0. BadData, naming `where`, if the table lacks a fragment.

    Ids repeat along x: each run of equal voxels is looked up once.
    """
    flat = fragments.reshape(-1)
    is_start = np.concatenate([flat[:1] == flat[:1], flat[1:] != flat[:-1]])
    starts = np.flatnonzero(is_start)
    runs, lengths = flat[starts], np.diff(starts, append=flat.size)
    place = np.minimum(np.searchsorted(lut.fragments, runs), max(0, len(lut) - 1))
    known = (lut.fragments[place] == runs) if len(lut) else np.zeros(len(runs), bool)
    unknown = runs[~known & (runs != 0)]
    if unknown.size:
        raise BadData(
            f"fragment {int(unknown[0])} is not in the lookup table",
            where=where,
            fix="the fragments changed after segment read the graph: run segment again",
        )
    segments = np.zeros(len(runs), np.uint64)
    segments[known] = lut.segments[place[known]]
    segments[runs == 0] = 0
    relabelled: UInt64s = np.repeat(segments, lengths).reshape(fragments.shape)
    return relabelled


def _ascending(path: Path) -> Lut:
    lut = read_lut(path)
    if not bool((lut.fragments[1:] > lut.fragments[:-1]).all()):
        raise BadData("the lookup table is not ascending", where=path, fix="run segment again")
    return lut


def _times(place: Sequence[int], edges: Vox3) -> Vox3:
    z, y, x = (p * e for p, e in zip(place, edges, strict=True))
    return z, y, x


@dataclass(frozen=True)
class RelabelledImage:
    """The array of each level, finest first, and the attributes with the position of each level."""

    levels: tuple[RelabelledVolume, ...]
    attributes: dict[str, Any]

    def file(self, parts: Sequence[str]) -> bytes | None:
        """The content of a file of the image; None if it does not exist."""
        match tuple(parts):
            case ("zarr.json",):
                group = {"zarr_format": 3, "node_type": "group", "attributes": self.attributes}
                return json.dumps(group).encode()
            case (level, *rest) if level in {str(number) for number in range(len(self.levels))}:
                return self.levels[int(level)].file(rest)
        return None


def relabelled_image(folder: Path, luts: tuple[KnownLut, ...], cache: LutCache) -> RelabelledImage:
    """The exported image of the fragments in `folder`, mapped through each of `luts`."""
    multiscale = multiscale_of(folder)
    datasets = [_with_thresholds(dataset) for dataset in multiscale["datasets"]]
    axes = [{"name": AXIS}, *multiscale["axes"]]
    stepped = {"name": "thresholds", "axes": axes, "datasets": datasets}
    levels = tuple(RelabelledVolume(level, luts, cache) for level in open_levels(folder))
    return RelabelledImage(levels, {"ome": {"version": VERSION, "multiscales": [stepped]}})


def _with_thresholds(dataset: dict[str, Any]) -> dict[str, Any]:
    """A level's path, scale and translation, extended by the threshold axis (scale 1, by index)."""
    leading = {"scale": 1.0, "translation": 0.0}
    moved = [
        {"type": one["type"], one["type"]: [leading[one["type"]], *one[one["type"]]]}
        for one in dataset["coordinateTransformations"]
    ]
    return {"path": dataset["path"], "coordinateTransformations": moved}
