"""What scores.json holds beside the numbers of the whole: scores of named regions, the worst faults, the advice.

report/worst.csv is the list of the worst faults as a table; a place is opened by `lsdflow view DIR --at z,y,x`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lsdflow_contract.files import write_if_changed
from lsdflow_contract.geometry import Geometry
from lsdflow_evaluate.artefacts import Segmented
from lsdflow_evaluate.faults.places import Place
from lsdflow_evaluate.faults.ranking import Fault
from lsdflow_evaluate.scores.comparing import Compared
from lsdflow_evaluate.scores.scored_regions import ROI, named

COLUMNS = (
    *("region", "kind", "rank", "id", "voxels", "bits", "parts"),
    *("segment_1", "truth_1", "voxels_1", "segment_2", "truth_2", "voxels_2"),
    *("z_nm", "y_nm", "x_nm", "z_vox", "y_vox", "x_vox", "distance_nm"),
)
Faults = Sequence[tuple[Fault, Place | None]]


def regions_and_worst(compared: Compared, grid: Geometry) -> dict[str, Any]:
    """`worst` of the region that the numbers on top are about (splits, then merges, the worst of each first), and
    `regions`: all of it for each named region."""
    found: dict[str, Any] = {"worst": _worst(compared.worst.get(ROI, ()), grid)}
    scores = compared.scores
    for name in named({key: region.region for key, region in scores.regions.items()}):
        region = scores.regions[f"region_{name}"]
        chosen = region.at(scores.chosen)
        found.setdefault("regions", {})[name] = {
            **(chosen.as_dict() if chosen else {}),
            "roi": region.region.as_dict(),
            "thresholds": [score.as_dict() for score in region.scores],
            "worst": _worst(compared.worst.get(f"region_{name}", ()), grid),
        }
    return found


def advice_of(segmented: Segmented) -> dict[str, Any]:
    """The threshold that segment advises (by truth, or without it), by which method and why; and the one it took.

    Segment worked it out in bounded memory, and says it of the merge function of the segmentation.
    """
    told = segmented.manifest.facts.get("advice")
    taken = {"merge_function": segmented.merge_function, "taken": segmented.threshold}
    return {**told, **taken} if isinstance(told, Mapping) else taken


def write_worst(path: Path, scores: Mapping[str, Any]) -> None:
    """The worst faults of scores.json as a CSV; no file if there was nothing to compare."""
    if "worst" not in scores:
        path.unlink(missing_ok=True)
        return
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    further = [(name, region["worst"]) for name, region in scores.get("regions", {}).items()]
    for region, worst in [("", scores["worst"]), *further]:
        for row in _rows(worst):
            table.writerow([region, *row])
    write_if_changed(path, text.getvalue().encode())


def _worst(faults: Faults, grid: Geometry) -> list[dict[str, Any]]:
    return [_told(fault, place, grid) for fault, place in faults]


def _told(fault: Fault, place: Place | None, grid: Geometry) -> dict[str, Any]:
    told = asdict(fault)
    if place is None:
        return told
    corner = grid.position_nm(place.voxel)
    middle = [c + s / 2 for c, s in zip(corner, grid.voxel_size_nm, strict=True)]
    return {**told, "position_nm": middle, "position_vox": list(place.voxel), "distance_nm": place.distance_nm}


def _rows(worst: Sequence[Mapping[str, Any]]) -> Iterator[list[Any]]:
    ranks: dict[str, int] = {}
    for told in worst:
        ranks[told["kind"]] = rank = ranks.get(told["kind"], 0) + 1
        parts = [told[part][value] for part in ("first", "second") for value in ("segment", "truth", "voxels")]
        place = [*told.get("position_nm", [""] * 3), *told.get("position_vox", [""] * 3)]
        facts = [told["id"], told["voxels"], told["bits"], told["parts"]]
        yield [told["kind"], rank, *facts, *parts, *place, told.get("distance_nm", "")]
