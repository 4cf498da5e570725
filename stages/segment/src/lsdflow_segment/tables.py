"""The tables that segment leaves for a graph: one lookup table per threshold, and a summary of all of them.

    luts/[run_type/]<graph>/    first 8 characters of the identity of agglomerate (contract 2.1)
        lut_<merge_function>_0.2800.npz (+ .json)   the name of record: four decimals, never two in one
        seg_edges_<merge_function>_28.npz           the field's name int(threshold * 100), for older readers
        thresholds_<merge_function>.json            counts, change between thresholds, VOI, advice

Side-cars and summaries are sealed, and name the sha256 of their npz.

Two thresholds may share the field's name (0.56 and 0.57 are both _56). Then only one of them gets it: the one that the
number means (0.56), or else the lowest; the others have no file of that name, and the summary says so.
"""

from __future__ import annotations

import filecmp
import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.files import write_atomically
from lsdflow_contract.lut import NPZ_SHA256, legacy_lut_name, lut_name, read_side_car
from lsdflow_contract.sealing import read_sealed, require_sha256, write_sealed
from lsdflow_segment.advice import Advice, PartitionFacts, changes_to_next
from lsdflow_segment.graph import SegmentGraph
from lsdflow_segment.lut_pieces import write_lut_pieces

_REPAIR = "write the tables again: segment repair"


@dataclass(frozen=True)
class ThresholdTable:
    """What is known of all thresholds of a merge function; `voi` (split, merge in bits) where there was truth."""

    merge_function: str
    facts: tuple[PartitionFacts, ...]
    voi: tuple[tuple[float, float], ...]
    advice: Advice
    chosen: float

    @property
    def thresholds(self) -> tuple[float, ...]:
        """All thresholds, ascending."""
        return tuple(f.threshold for f in self.facts)


def luts_folder(luts: Path, run_type: str) -> Path:
    """The folder of the tables; `run_type` names a sub-folder, empty means none."""
    return luts / run_type if run_type else luts


def graph_folder(luts: Path, run_type: str, graph: str) -> Path:
    """The folder of the tables of a graph, which is named by the identity of its scored edges.

    Tables that a contract before 2.1 left of the same graph stay where they are, and so do those that are damaged.
    """
    folder = luts_folder(luts, run_type)
    own = folder / graph[:8]
    for path in () if own.is_dir() else sorted(folder.glob("thresholds_*.json")):
        try:
            if read_sealed(path, _REPAIR).get("fingerprint") == graph:
                return folder
        except BadData:
            return folder
    return own


def parts_folder(folder: Path, fingerprint: str) -> Path:
    """Where a run keeps the parts of a graph (the identity of its edges), and tables that workers map."""
    return folder / ".parts" / fingerprint[:16]


def mapped_lut_path(folder: Path, fingerprint: str, merge_function: str, threshold: float) -> Path:
    """The table as an array (2, N) that workers map; there only while a run writes a graph found part by part."""
    return parts_folder(folder, fingerprint) / lut_name(merge_function, threshold).replace(".npz", ".npy")


def summary_path(folder: Path, merge_function: str) -> Path:
    """The summary of a merge function."""
    return folder / f"thresholds_{merge_function}.json"


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


def write_tables(folder: Path, graph: SegmentGraph, table: ThresholdTable, facts: Mapping[str, Any]) -> None:
    """Write every lookup table, then the summary. `facts` (key, fingerprint, ...) go into each side-car."""
    legacy = legacy_owners(table.merge_function, table.thresholds)
    changes = changes_to_next(table.facts)
    rows = []
    for number, pieces in enumerate(graph.tables()):
        known = table.facts[number]
        row: dict[str, Any] = {
            "threshold": known.threshold,
            "segments": known.segments,
            "largest_segment_vox": known.largest_vox,
            "entropy_bits": known.entropy_bits,
            "change_to_next_bits": changes[number],
            "lut": lut_name(table.merge_function, known.threshold),
            "legacy_lut": legacy.get(known.threshold),
        }
        if table.voi:
            row["voi_split"], row["voi_merge"] = table.voi[number]
        side_car = {**facts, **row, "merge_function": table.merge_function}
        row[NPZ_SHA256] = write_lut_pieces(folder / row["lut"], pieces, side_car)
        if row["legacy_lut"]:
            _copy(folder / row["lut"], folder / row["legacy_lut"])
        rows.append(row)
    summary = {
        "contract": CONTRACT_VERSION,
        **facts,
        "merge_function": table.merge_function,
        "merge_more": "a higher threshold merges more",
        "advice": asdict(table.advice),
        "chosen": table.chosen,
        "thresholds": rows,
    }
    write_sealed(summary_path(folder, table.merge_function), summary)


def read_summary(folder: Path, merge_function: str) -> dict[str, Any]:
    """The summary of a merge function. MissingInput if segment has not made it, BadData if it is damaged."""
    path = summary_path(folder, merge_function)
    if not path.exists():
        raise MissingInput("the thresholds are not computed", where=path, fix="run: segment run")
    summary = read_sealed(path, _REPAIR)
    if not {"key", "chosen", "thresholds"} <= summary.keys():
        raise BadData("damaged threshold summary", where=path, fix=_REPAIR)
    return summary


def is_complete(folder: Path, summary: Mapping[str, Any]) -> bool:
    """True if every lookup table that a summary names is there, with its side-car."""
    paths = [folder / row["lut"] for row in summary["thresholds"]]
    return all(path.exists() and path.with_suffix(".json").exists() for path in paths)


def require_undamaged(folder: Path, summary: Mapping[str, Any]) -> None:
    """BadData (65) naming the first lookup table that is not what segment wrote; MissingInput (66) if one is lost."""
    for row in summary["thresholds"]:
        for name in filter(None, (row["lut"], row["legacy_lut"])):
            path = folder / name
            if not path.exists():
                raise MissingInput("a lookup table is lost", where=path, fix=_REPAIR)
            require_sha256(path, row.get(NPZ_SHA256), _REPAIR)
        side_car = read_side_car(folder / row["lut"])
        if side_car.get("key") != summary["key"] or side_car.get(NPZ_SHA256) != row.get(NPZ_SHA256):
            raise BadData("the side-car of a lookup table is of another run", where=folder / row["lut"], fix=_REPAIR)


def _copy(source: Path, target: Path) -> None:
    if not (target.is_file() and filecmp.cmp(source, target, shallow=False)):
        with source.open("rb") as content:
            write_atomically(target, lambda file: shutil.copyfileobj(content, file))
