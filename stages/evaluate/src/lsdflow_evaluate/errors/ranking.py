"""The worst splits and merges: the truth objects and segments that cost most bits of VOI, and their two largest parts.

    split: a truth object that is in several segments         merge: a segment that holds several truth objects
           | segment 7  | segment 9 |  one truth object               | truth 1  | truth 2 |  one segment

A part is what a segment and a truth object have in common, so a split and a merge are the same thing seen from two
sides: two parts with one id in common. Segment 0 is no segment: it merges nothing, and as a part it comes last.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.files import write_if_changed
from lsdflow_metrics.contingency import Contingency
from lsdflow_metrics.scores import ZeroPolicy
from lsdflow_metrics.shares import Shares, merge_shares, split_shares

Kind = Literal["split", "merge"]
COLUMNS = (
    *("region", "kind", "rank", "id", "voxels", "bits", "parts"),
    *("segment_1", "truth_1", "voxels_1", "segment_2", "truth_2", "voxels_2"),
    *("z_nm", "y_nm", "x_nm", "z_vox", "y_vox", "x_vox", "distance_nm"),
)


@dataclass(frozen=True)
class Part:
    """The voxels that a segment and a truth object have in common."""

    segment: int
    truth: int
    voxels: int


@dataclass(frozen=True)
class SplitOrMerge:
    """`id`: of the truth object that is split, or of the segment that merges; `bits`: its share in VOI split or merge.

    `voxels` of it count, `parts` is how many parts it has, `first` and `second` are the largest two.
    """

    kind: Kind
    id: int
    voxels: int
    bits: float
    parts: int
    first: Part
    second: Part


def worst_errors(table: Contingency, most: int, zeros: ZeroPolicy) -> tuple[SplitOrMerge, ...]:
    """The `most` worst splits, then the `most` worst merges of a table of segments x truth, the worst first."""
    splits = _worst("split", split_shares(table, zeros), table.truths, table, most)
    merges = _worst("merge", merge_shares(table, zeros), table.labels, table, most)
    return (*splits, *merges)


def _worst(
    kind: Kind, shares: Shares, owners: NDArray[np.uint64], table: Contingency, most: int
) -> Iterator[SplitOrMerge]:
    charged = (shares.bits > 0) & ((kind == "split") | (shares.ids != 0))
    order = np.lexsort((shares.ids[charged], -shares.bits[charged]))[:most]
    for place in np.flatnonzero(charged)[order].tolist():
        rows = np.flatnonzero(owners == shares.ids[place]).tolist()
        parts = [Part(int(table.labels[r]), int(table.truths[r]), int(table.voxels[r])) for r in rows]
        parts.sort(key=lambda part: (part.segment == 0, -part.voxels, part.segment, part.truth))
        if len(parts) > 1:
            found = int(shares.ids[place]), int(shares.voxels[place]), float(shares.bits[place])
            yield SplitOrMerge(kind, *found, len(parts), parts[0], parts[1])


def write_worst(path: Path, scores: Mapping[str, Any]) -> None:
    """The worst splits and merges of scores.json as a CSV; no file if there was nothing to compare.

    A position is opened by `lsdflow view DIR --at z,y,x`.
    """
    if "worst" not in scores:
        path.unlink(missing_ok=True)
        return
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    further = [(name, region["worst"]) for name, region in scores.get("regions", {}).items()]
    for region, worst in [("", scores["worst"]), *further]:
        table.writerows([region, *row] for row in _csv_rows(worst))
    write_if_changed(path, text.getvalue().encode())


def _csv_rows(worst: Sequence[Mapping[str, Any]]) -> Iterator[list[Any]]:
    ranks: dict[str, int] = {}
    for listed in worst:
        ranks[listed["kind"]] = rank = ranks.get(listed["kind"], 0) + 1
        parts = [listed[part][value] for part in ("first", "second") for value in ("segment", "truth", "voxels")]
        site = [*listed.get("position_nm", [""] * 3), *listed.get("position_vox", [""] * 3)]
        facts = [listed["id"], listed["voxels"], listed["bits"], listed["parts"]]
        yield [listed["kind"], rank, *facts, *parts, *site, listed.get("distance_nm", "")]
