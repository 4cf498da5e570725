"""Writes the volumes of `prepare`: zarr format 2 (for gunpowder), zstd with checksums, chunks of 64^3.

Arrays that belong together (labels and mask) are written brick by brick; a brick consists of whole chunks:

1. bricks are written to hidden folders `.neuron_ids.partial` next to the final ones;
2. each brick is read back, compared, and recorded with its checksum in a journal (fsync);
3. when all bricks are recorded, each folder is renamed to its final name.

So an array with its final name is complete. An interrupted run resumes after the last brick in the journal; checksums
show which of the recorded bricks really reached the disk.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numcodecs import Zstd
from numpy.typing import NDArray

from lsdflow_contract.arrays import ArraySpec
from lsdflow_contract.errors import BadData, MissingInput, OutputConflict, StorageFailure
from lsdflow_contract.files import fsync_folder, storage_errors, write_json
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.hashing import hash_of, hash_of_array
from lsdflow_contract.metadata import PROVENANCE, array_attributes, read_geometry
from lsdflow_contract.sealing import require_sealed_array, seal_array, sealed, unsealed
from lsdflow_runtime.formats.folders import json_object
from lsdflow_runtime.io.chunk_files import zstd_level

CHUNK_VOX = 64
Values = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Note:
    """One brick in the journal: checksum of each array, and facts that the writer recorded."""

    checksums: dict[str, str]
    facts: dict[str, Any]


@dataclass
class PreparedArrays:
    """Arrays of one container that are written together; `provenance` holds their key and parameters."""

    container: Path
    job: str
    specs: Sequence[ArraySpec]
    geometry: Geometry
    provenance: Mapping[str, Any]
    _open: dict[str, zarr.Array[Any]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Identifies parameters and inputs."""
        return str(self.provenance["key"])

    def is_done(self) -> bool:
        """True if all arrays have their final names and the same key."""
        return all(_key_of(self._final(spec)) == self.key for spec in self.specs)

    def found(self) -> dict[str, Any]:
        """The provenance of existing (perhaps unfinished) arrays on the same grid; empty if there are none."""
        for spec in self.specs:
            for folder in (self._final(spec), self._partial(spec)):
                if self._is_on_grid(folder):
                    return _provenance_of(folder)
        return {}

    def _is_on_grid(self, folder: Path) -> bool:
        try:
            shape = tuple(json_object(folder / ".zarray").get("shape", ()))
            attributes = json_object(folder / ".zattrs")
            return shape == self.geometry.shape_vox and read_geometry(attributes, shape, folder) == self.geometry
        except BadData:
            return False

    def refuse_others(self) -> None:
        """Raise OutputConflict (73) for arrays of another program with these names."""
        for folder in map(self._final, self.specs):
            if folder.exists() and _key_of(folder) != self.key:
                raise OutputConflict("the output exists and is not ours", where=folder, fix="move it away")

    def start(self) -> dict[int, Note]:
        """Create the arrays, or open those of an interrupted run; returns the bricks recorded so far."""
        with storage_errors(self.container):
            for folder in (self.container, *(p for s in self.specs for p in self._groups(s))):
                folder.mkdir(parents=True, exist_ok=True)
                write_json(folder / ".zgroup", {"zarr_format": 2})
            notes = self.notes()
            if not all(self.key in (_key_of(self._partial(s)), _key_of(self._final(s))) for s in self.specs):
                notes = {}
            if not notes:
                self._start_anew()
            for spec in self.specs:
                self._open[spec.dataset] = _open(self._where(spec))
        return notes

    def write(self, number: int, box: Box, values: Values, facts: Mapping[str, Any]) -> None:
        """Write a brick (whole chunks, index 0 = first voxel of the arrays), read it back, and record it."""
        with storage_errors(self.container):
            for dataset, block in values.items():
                self._open[dataset][box.slices()] = block
                if not np.array_equal(self._open[dataset][box.slices()], block):
                    raise StorageFailure("what was read back is not what was written", where=self.container / dataset)
            checksums = {dataset: hash_of_array(block) for dataset, block in values.items()}
            self._append({"brick": number, "key": self.key, "checksums": checksums, "facts": dict(facts)})

    def noted_brick(self, box: Box, note: Note) -> dict[str, NDArray[Any]] | None:
        """The values of a recorded brick; None if it is not complete on disk."""
        values = {}
        for dataset, checksum in note.checksums.items():
            try:
                values[dataset] = np.asarray(self._open[dataset][box.slices()])
            except (RuntimeError, ValueError, OSError):
                return None
            # A missing chunk of zeros would be read as zeros here, but later stages refuse it.
            whole = _has_all_chunks(self._where_of(dataset), self._open[dataset], box)
            if not whole or hash_of_array(values[dataset]) != checksum:
                return None
        return values

    def damaged(self, bricks: Sequence[Box]) -> list[int]:
        """Numbers of the bricks of finished arrays that differ from their record in the journal."""
        if not all(self._is_readable(spec) for spec in self.specs):
            return list(range(len(bricks)))
        for spec in self.specs:
            self._open[spec.dataset] = _open(self._final(spec))
        notes = self.notes()
        return [
            number
            for number, box in enumerate(bricks)
            if number not in notes or self.noted_brick(box, notes[number]) is None
        ]

    def restore_metadata(self) -> None:
        """Write missing or damaged metadata of finished arrays again; chunks are not changed."""
        with storage_errors(self.container):
            for folder in (p for s in self.specs for p in self._groups(s)):
                folder.mkdir(parents=True, exist_ok=True)
                write_json(folder / ".zgroup", {"zarr_format": 2})
            for spec in (s for s in self.specs if not self._is_readable(s)):
                self._create(spec)
                self._final(spec).mkdir(exist_ok=True)
                for name in (".zarray", ".zattrs"):
                    (self._partial(spec) / name).replace(self._final(spec) / name)
                shutil.rmtree(self._partial(spec))
            self._journal.parent.mkdir(exist_ok=True)

    def noted(self, number: int) -> Note | None:
        """The record of a brick; None if the journal has lost it."""
        return self.notes().get(number)

    def finish(self) -> None:
        """Give the arrays their final names."""
        with storage_errors(self.container):
            os.sync()
            for spec in self.specs:
                partial, final = self._partial(spec), self._final(spec)
                if not partial.exists():
                    continue
                if final.exists():
                    shutil.rmtree(final)
                partial.rename(final)
                fsync_folder(final.parent)

    def identity(self) -> str:
        """Hash of the checksums of all bricks, which identifies the content."""
        return hash_of({str(number): note.checksums for number, note in sorted(self.notes().items())})

    def _final(self, spec: ArraySpec) -> Path:
        return self.container / spec.dataset

    def _partial(self, spec: ArraySpec) -> Path:
        final = self._final(spec)
        return final.with_name(f".{final.name}.partial")

    def _where(self, spec: ArraySpec) -> Path:
        return self._partial(spec) if self._partial(spec).exists() else self._final(spec)

    def _where_of(self, dataset: str) -> Path:
        return next(self._where(spec) for spec in self.specs if spec.dataset == dataset)

    def _groups(self, spec: ArraySpec) -> list[Path]:
        return [self.container / parent for parent in Path(spec.dataset).parents]

    @property
    def _journal(self) -> Path:
        return self.container / ".lsdflow" / f"{self.job}.jsonl"

    def _start_anew(self) -> None:
        self._journal.unlink(missing_ok=True)
        self._journal.parent.mkdir(exist_ok=True)
        for spec in self.specs:
            self._create(spec)

    def _create(self, spec: ArraySpec) -> None:
        """Create an empty array with its hidden name."""
        shutil.rmtree(self._partial(spec), ignore_errors=True)
        zarr.create_array(
            store=self._partial(spec),
            shape=self.geometry.shape_vox,
            chunks=self._chunks,
            dtype=spec.dtype,
            compressors=Zstd(zstd_level(np.dtype(spec.dtype)), checksum=True),
            fill_value=0,
            zarr_format=2,
            attributes=array_attributes(spec, self.geometry, self.provenance),
        )
        seal_array(self._partial(spec))

    def _is_readable(self, spec: ArraySpec) -> bool:
        """True if the finished array can be opened and has the expected key, shape, chunks and dtype."""
        try:
            require_sealed_array(self._final(spec))
            array = _open(self._final(spec))
            attributes = read_geometry(dict(array.attrs), self.geometry.shape_vox, self._final(spec))
            form = (array.shape, array.chunks, np.dtype(array.dtype), array.order, _chunk_name(array, (0, 1, 2)))
        except (BadData, MissingInput, OSError, ValueError, KeyError, TypeError):
            return False
        wanted = (self.geometry.shape_vox, self._chunks, np.dtype(spec.dtype), "C", "0.1.2")
        return (form, attributes, _key_of(self._final(spec))) == (wanted, self.geometry, self.key)

    @property
    def _chunks(self) -> tuple[int, ...]:
        return tuple(min(CHUNK_VOX, length) for length in self.geometry.shape_vox)

    def _append(self, line: Mapping[str, Any]) -> None:
        with self._journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(sealed(line)) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def notes(self) -> dict[int, Note]:
        """Bricks recorded for this key; a damaged line, or one cut off by a crash, is left out."""
        notes = {}
        lines = self._journal.read_bytes().splitlines() if self._journal.exists() else []
        for text in lines:
            try:
                line = unsealed(json.loads(text), self._journal, "prepare repair")
                if line["key"] == self.key:
                    notes[int(line["brick"])] = Note(dict(line["checksums"]), dict(line["facts"]))
            except (ValueError, KeyError, TypeError, BadData):
                continue
        return notes


def _open(folder: Path) -> zarr.Array[Any]:
    # Not an argument of open_array: zarr 3.1 ignores it for format 2 and would not write chunks of zeros.
    return zarr.open_array(store=folder, mode="r+").with_config({"write_empty_chunks": True})


def _has_all_chunks(folder: Path, array: zarr.Array[Any], box: Box) -> bool:
    axes = zip(box.begin_vox, box.end_vox, array.chunks, strict=True)
    indices = itertools.product(*(range(begin // edge, -(-end // edge)) for begin, end, edge in axes))
    return all((folder / _chunk_name(array, index)).exists() for index in indices)


def _chunk_name(array: zarr.Array[Any], index: tuple[int, ...]) -> str:
    return array.metadata.encode_chunk_key(index)


def _provenance_of(folder: Path) -> dict[str, Any]:
    found = json_object(folder / ".zattrs").get(PROVENANCE, {})
    return found if isinstance(found, dict) else {}


def _key_of(folder: Path) -> str:
    return str(_provenance_of(folder).get("key", ""))
