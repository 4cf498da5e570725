"""The tables that segment writes for a graph: one lookup table per threshold, and a summary of all of them.

    luts/[run_type/]<graph>/    first 8 characters of the identity of agglomerate
        lut_<merge_function>_0.2800.npz (+ .json)   the name of record: four decimals, one for each threshold
        seg_edges_<merge_function>_28.npz           the field's name int(threshold * 100)
        thresholds_<merge_function>.json            counts, change between thresholds, VOI, advice
    luts/[run_type/]<graph>-min-<n>/                the same, if segments of fewer than n voxels are background
    luts/[run_type/].parts/<graph>/                 what is only needed until the run has finished

Side-cars and summaries are sealed, and name the sha256 of their npz. Tables are written in slices: the same bytes as
the contract's `write_lut`, in the memory of a slice.

Two thresholds may share the field's name (0.56 and 0.57 are both _56). Then only one of them gets it: the one that the
number means (0.56), or else the lowest. The others have no file of that name, and the summary says so.

Results with other settings of the same graph share its tables: a table depends on its threshold alone. The summary is
that of the last run; the manifest of each result records its own choice.
"""

from __future__ import annotations

import filecmp
import itertools
import shutil
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.lib.format as npy

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.files import fsync_folder, storage_errors, write_atomically
from lsdflow_contract.lut import LUT_KEY, NPZ_SHA256, legacy_lut_name, lut_name, read_side_car, write_side_car
from lsdflow_contract.sealing import read_sealed, require_sha256, write_sealed
from lsdflow_segment.graph import LutSlice, SegmentGraph
from lsdflow_segment.mapped_files import write_array
from lsdflow_segment.sizes import UInt64s
from lsdflow_segment.threshold_selection import ThresholdChoice, changes_to_next

_REPAIR = "write the tables again: lsdflow repair EXPERIMENT"
# The number of ids that numpy compresses at once.
_COMPRESSED_IDS = 1 << 21


@dataclass(frozen=True)
class TableFolders:
    """The folder of the tables of all graphs, the identity of a graph's scored edges, and what its tables leave out."""

    luts: Path
    graph: str
    min_segment_vox: int = 0

    @property
    def tables(self) -> Path:
        """The folder of the tables of the graph."""
        return self.luts / f"{self.graph[:8]}{self._smallest}"

    @property
    def scratch(self) -> Path:
        """The folder of what is only needed until the run has finished."""
        return self.luts / ".parts" / f"{self.graph[:16]}{self._smallest}"

    @property
    def _smallest(self) -> str:
        return f"-min-{self.min_segment_vox}" if self.min_segment_vox else ""

    def summary(self, merge_function: str) -> Path:
        """The summary of a merge function."""
        return self.tables / f"thresholds_{merge_function}.json"

    def lut(self, merge_function: str, threshold: float) -> Path:
        """The lookup table of a threshold (.npz)."""
        return self.tables / lut_name(merge_function, threshold)

    def mapped_lut(self, merge_function: str, threshold: float) -> Path:
        """The same table as an array (2, N) that workers map; exists only while a graph found in parts is written."""
        return self.scratch / lut_name(merge_function, threshold).replace(".npz", ".npy")

    def remove_scratch(self) -> None:
        """Remove the scratch files of this graph, and those that killed runs of other graphs left."""
        with storage_errors(self.scratch):
            if self.scratch.parent.exists():
                shutil.rmtree(self.scratch.parent)


def write_tables(folders: TableFolders, graph: SegmentGraph, choice: ThresholdChoice, facts: Mapping[str, Any]) -> None:
    """Write every lookup table, then the summary. `facts` (key, fingerprint, ...) go into each side-car."""
    legacy = legacy_owners(choice.merge_function, choice.thresholds)
    changes = changes_to_next(choice.facts)
    rows = []
    for number, (known, lut) in enumerate(zip(choice.facts, graph.luts(), strict=True)):
        path = folders.lut(choice.merge_function, known.threshold)
        row: dict[str, Any] = {
            "threshold": known.threshold,
            "segments": known.segments - known.small_segments,
            "largest_segment_vox": known.largest_vox if known.largest_vox >= folders.min_segment_vox else 0,
            "entropy_bits": known.entropy_bits,
            "change_to_next_bits": changes[number],
            "lut": path.name,
            "legacy_lut": legacy.get(known.threshold),
        }
        if folders.min_segment_vox:
            row |= {"small_segments": known.small_segments, "small_vox": known.small_vox}
        if choice.voi:
            row["voi_split"], row["voi_merge"] = choice.voi[number]
        side_car = {**facts, **row, "merge_function": choice.merge_function}
        row[NPZ_SHA256] = write_lut_slices(path, lut, side_car)
        if row["legacy_lut"]:
            _copy(path, path.with_name(row["legacy_lut"]))
        rows.append(row)
    summary = {
        "contract": CONTRACT_VERSION,
        **facts,
        "merge_function": choice.merge_function,
        "merge_more": "a higher threshold merges more",
        "advice": asdict(choice.advice),
        "chosen": choice.chosen,
        "thresholds": rows,
    }
    write_sealed(folders.summary(choice.merge_function), summary)


def read_summary(folders: TableFolders, merge_function: str) -> dict[str, Any]:
    """The summary of a merge function. Raises MissingInput if segment has not made it, BadData if it is damaged."""
    path = folders.summary(merge_function)
    if not path.exists():
        raise MissingInput("the thresholds are not computed", where=path, fix="run: segment run")
    summary = read_sealed(path, _REPAIR)
    if not {"key", "chosen", "thresholds"} <= summary.keys():
        raise BadData("damaged threshold summary", where=path, fix=_REPAIR)
    return summary


def is_complete(folders: TableFolders, merge_function: str, thresholds: Sequence[float]) -> bool:
    """True if the lookup tables of all thresholds exist, with their side-cars."""
    paths = [folders.lut(merge_function, threshold) for threshold in thresholds]
    return all(path.exists() and path.with_suffix(".json").exists() for path in paths)


def require_tables(folders: TableFolders, merge_function: str, thresholds: Sequence[float]) -> None:
    """Check the tables of settings that the summary is not of: each against its side-car.

    Raises BadData (65) for a damaged table or side-car, MissingInput (66) for a lost one.
    """
    for path in (folders.lut(merge_function, threshold) for threshold in thresholds):
        if not path.exists():
            raise MissingInput("a lookup table is lost", where=path, fix=_REPAIR)
        require_sha256(path, read_side_car(path).get(NPZ_SHA256), _REPAIR)


def require_undamaged(folder: Path, summary: Mapping[str, Any]) -> None:
    """Raise BadData (65) naming the first lookup table that is damaged, MissingInput (66) if one is lost."""
    for row in summary["thresholds"]:
        for name in filter(None, (row["lut"], row["legacy_lut"])):
            path = folder / name
            if not path.exists():
                raise MissingInput("a lookup table is lost", where=path, fix=_REPAIR)
            require_sha256(path, row.get(NPZ_SHA256), _REPAIR)
        side_car = read_side_car(folder / row["lut"])
        if side_car.get("key") != summary["key"] or side_car.get(NPZ_SHA256) != row.get(NPZ_SHA256):
            raise BadData("the side-car of a lookup table is of another run", where=folder / row["lut"], fix=_REPAIR)


def legacy_owners(merge_function: str, thresholds: Sequence[float]) -> dict[float, str]:
    """Which thresholds also get a file with the field's name, and which name."""
    groups: dict[str, list[float]] = defaultdict(list)
    for threshold in sorted(thresholds):
        groups[legacy_lut_name(merge_function, threshold)].append(threshold)
    owners: dict[float, str] = {}
    for name, group in groups.items():
        number = int(group[0] * 100)
        meant = [t for t in group if round(t * 10_000) == number * 100]
        owners[(meant or group)[0]] = name
    return owners


def write_lut_slices(path: Path, lut: Sequence[LutSlice], facts: Mapping[str, Any]) -> str:
    """Write the npz and its side-car, each atomically; returns the sha256 of the npz.

    An npz that already has this content is left untouched.
    """
    fragments = sum(len(lut_slice.fragments) for lut_slice in lut)
    written = path.with_name(f".{path.name}.new")
    write_atomically(written, lambda file: _write_npz(file, fragments, lut))
    with storage_errors(path):
        if path.is_file() and filecmp.cmp(written, path, shallow=False):
            written.unlink()
        else:
            written.replace(path)
            fsync_folder(path.parent)
    return write_side_car(path, fragments, facts)


def write_mapped_lut(path: Path, lut: Sequence[LutSlice]) -> None:
    """Write the table as an array (2, N), in which a worker looks up ids without reading all of it."""
    write_array(path, (2, sum(len(lut_slice.fragments) for lut_slice in lut)), np.uint64, _rows(lut))


def _rows(lut: Sequence[LutSlice]) -> Iterator[UInt64s]:
    return itertools.chain((lut_slice.fragments for lut_slice in lut), (lut_slice.segments for lut_slice in lut))


def _write_npz(file: BinaryIO, fragments: int, lut: Sequence[LutSlice]) -> None:
    header = {"descr": "<u8", "fortran_order": False, "shape": (2, fragments)}
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(f"{LUT_KEY}.npy", "w", force_zip64=True) as member,
    ):
        npy.write_array_header_1_0(member, header)
        for values in _of_equal_length(_rows(lut), _COMPRESSED_IDS):
            member.write(values.astype("<u8", copy=False).tobytes())


def _of_equal_length(rows: Iterable[UInt64s], length: int) -> Iterator[UInt64s]:
    """The values of all rows in arrays of `length`; the last may be shorter."""
    held: list[UInt64s] = []
    missing = length
    for row in rows:
        begin = 0
        while len(row) - begin >= missing:
            yield np.concatenate([*held, row[begin : begin + missing]])
            begin, missing, held = begin + missing, length, []
        held.append(row[begin:])
        missing -= len(row) - begin
    if missing < length:
        yield np.concatenate(held)


def _copy(source: Path, target: Path) -> None:
    if not (target.is_file() and filecmp.cmp(source, target, shallow=False)):
        with source.open("rb") as content:
            write_atomically(target, lambda file: shutil.copyfileobj(content, file))
