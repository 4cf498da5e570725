"""Writing the volumes that `prepare` makes: zarr format 2 (gunpowder reads it), Blosc zstd 3, chunks of 64^3.

Arrays that belong together (labels and mask) are written brick by brick, a brick being whole chunks:

1. into hidden folders `.neuron_ids.partial` beside their final names;
2. each brick is read back, compared, and noted with its checksum in a journal (fsync);
3. when all bricks are noted, the folders take their final names in one rename each.

So an array under its final name is whole. An interrupted run goes on after the last noted brick, and the checksums in
the journal tell which noted bricks really reached the disk.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import zarr
from numpy.typing import NDArray

from lsdflow_contract.arrays import ArraySpec
from lsdflow_contract.errors import NotOurs, StorageFailure
from lsdflow_contract.files import fsync_folder, storage_errors, write_json
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.hashing import hash_of, hash_of_array
from lsdflow_contract.metadata import PROVENANCE, array_attributes
from lsdflow_runtime.formats.folders import json_object

CHUNK_VOX = 64
Values = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Note:
    """One brick in the journal: checksum of each array, and what the writer wants to remember of it."""

    checksums: dict[str, str]
    facts: dict[str, Any]


@dataclass
class PreparedArrays:
    """Arrays of one container that are written together; `provenance` holds the key of the work and its parameters."""

    container: Path
    job: str
    specs: Sequence[ArraySpec]
    geometry: Geometry
    provenance: Mapping[str, Any]
    _open: dict[str, zarr.Array[Any]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Names the work: parameters and inputs."""
        return str(self.provenance["key"])

    def is_done(self) -> bool:
        """All arrays stand under their final names, made with the same key."""
        return all(_key_of(self._final(spec)) == self.key for spec in self.specs)

    def refuse_others(self, replace: bool) -> None:
        """Refuse arrays of other work under our names.

        Raises:
            NotOurs: made with other parameters (and no `replace`), or not made by lsdflow at all.
        """
        for spec in self.specs:
            folder = self._final(spec)
            found = _provenance_of(folder)
            if not folder.exists() or (found and (replace or found.get("key") == self.key)):
                continue
            raise NotOurs(
                "the output was made with other parameters or inputs" if found else "the output exists and is not ours",
                where=folder,
                wanted=_differences(self.provenance, found, wanted=True) or f"key {self.key[:12]}",
                found=_differences(self.provenance, found, wanted=False) or f"key {str(found.get('key', 'none'))[:12]}",
                hint="run with --replace to make it anew, or use another experiment folder"
                if found
                else "move it away",
            )

    def start(self) -> dict[int, Note]:
        """Make the arrays, or take up those of an interrupted run; returns the bricks noted so far."""
        with storage_errors(self.container):
            for folder in (self.container, *(p for s in self.specs for p in self._groups(s))):
                folder.mkdir(parents=True, exist_ok=True)
                write_json(folder / ".zgroup", {"zarr_format": 2})
            notes = self._notes()
            if not all(self.key in (_key_of(self._partial(s)), _key_of(self._final(s))) for s in self.specs):
                notes = {}
            if not notes:
                self._start_anew()
            for spec in self.specs:
                self._open[spec.dataset] = _open(self._where(spec))
        return notes

    def write(self, number: int, box: Box, values: Values, facts: Mapping[str, Any]) -> None:
        """Write a brick (whole chunks, index 0 = first voxel of the arrays), read it back, note it."""
        with storage_errors(self.container):
            for dataset, block in values.items():
                self._open[dataset][box.slices()] = block
                if not np.array_equal(self._open[dataset][box.slices()], block):
                    raise StorageFailure("what was read back is not what was written", where=self.container / dataset)
            checksums = {dataset: hash_of_array(block) for dataset, block in values.items()}
            self._append({"brick": number, "key": self.key, "checksums": checksums, "facts": dict(facts)})

    def noted_brick(self, box: Box, note: Note) -> dict[str, NDArray[Any]] | None:
        """The values of a noted brick; None if they did not reach the disk whole."""
        values = {}
        for dataset, checksum in note.checksums.items():
            try:
                values[dataset] = np.asarray(self._open[dataset][box.slices()])
            except (RuntimeError, ValueError, OSError):
                return None
            if hash_of_array(values[dataset]) != checksum:
                return None
        return values

    def damaged(self, bricks: Sequence[Box]) -> list[int]:
        """Numbers of the bricks of finished arrays that are not as they were noted when they were written."""
        for spec in self.specs:
            self._open[spec.dataset] = _open(self._final(spec))
        notes = self._notes()
        return [
            number
            for number, box in enumerate(bricks)
            if number not in notes or self.noted_brick(box, notes[number]) is None
        ]

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
        """Hash of the checksums of all bricks: names the content."""
        return hash_of({str(number): note.checksums for number, note in sorted(self._notes().items())})

    def note_facts(self) -> list[dict[str, Any]]:
        """Facts of all noted bricks."""
        return [note.facts for _, note in sorted(self._notes().items())]

    def _final(self, spec: ArraySpec) -> Path:
        return self.container / spec.dataset

    def _partial(self, spec: ArraySpec) -> Path:
        final = self._final(spec)
        return final.with_name(f".{final.name}.partial")

    def _where(self, spec: ArraySpec) -> Path:
        return self._partial(spec) if self._partial(spec).exists() else self._final(spec)

    def _groups(self, spec: ArraySpec) -> list[Path]:
        return [self.container / parent for parent in Path(spec.dataset).parents]

    @property
    def _journal(self) -> Path:
        return self.container / ".lsdflow" / f"{self.job}.jsonl"

    def _start_anew(self) -> None:
        self._journal.unlink(missing_ok=True)
        self._journal.parent.mkdir(exist_ok=True)
        for spec in self.specs:
            shutil.rmtree(self._partial(spec), ignore_errors=True)
            zarr.create_array(
                store=self._partial(spec),
                shape=self.geometry.shape_vox,
                chunks=tuple(min(CHUNK_VOX, length) for length in self.geometry.shape_vox),
                dtype=spec.dtype,
                compressors=numcodecs.Blosc(cname="zstd", clevel=3, shuffle=numcodecs.Blosc.SHUFFLE),
                fill_value=0,
                zarr_format=2,
                attributes=array_attributes(spec, self.geometry, self.provenance),
            )

    def _append(self, line: Mapping[str, Any]) -> None:
        with self._journal.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _notes(self) -> dict[int, Note]:
        """Bricks noted for this key; a line cut off by a crash is left out."""
        notes = {}
        lines = self._journal.read_text(encoding="utf-8").splitlines() if self._journal.exists() else []
        for text in lines:
            try:
                line = json.loads(text)
            except json.JSONDecodeError:
                continue
            if line.get("key") == self.key:
                notes[int(line["brick"])] = Note(line["checksums"], line["facts"])
        return notes


def _open(folder: Path) -> zarr.Array[Any]:
    return zarr.open_array(store=folder, mode="r+", config={"write_empty_chunks": True})


def _provenance_of(folder: Path) -> dict[str, Any]:
    found = json_object(folder / ".zattrs").get(PROVENANCE, {})
    return found if isinstance(found, dict) else {}


def _key_of(folder: Path) -> str:
    return str(_provenance_of(folder).get("key", ""))


def _differences(mine: Mapping[str, Any], theirs: Mapping[str, Any], *, wanted: bool) -> str:
    """The parameters that differ, as "name = value", in one of the two."""
    ours, others = dict(mine.get("parameters", {})), dict(theirs.get("parameters", {}))
    chosen = ours if wanted else others
    names = [name for name in ours if name in others and ours[name] != others[name]]
    return ", ".join(f"{name} = {chosen[name]}" for name in names)
