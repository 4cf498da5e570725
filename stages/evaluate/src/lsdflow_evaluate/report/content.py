"""What the page says: tiles, planes of figures, charts, the table of stages and the methods text, ready to be laid out.

Pure functions from `ReportData` to plain values; the template decides how they look. What is missing is put in words
here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lsdflow_evaluate.report.data import ReportData, Score, SegmentCount, WorstPlace
from lsdflow_evaluate.report.figures import Figure, figure_of
from lsdflow_evaluate.report.records import Taken

LAYERS = {
    "raw": ("Raw", "the volume could not be read"),
    "lsds": ("LSDs", "predict keeps them in memory unless it is told to store them"),
    "affinities": ("Affinities", "predict has not finished here"),
    "fragments": ("Fragments", "watershed has not finished here"),
    "segmentation": ("Segmentation", "segment has not finished here"),
    "truth": ("Truth", "no truth was given for this volume"),
}
# Shown where they are, not missed where they are not.
FURTHER_LAYERS = {"lsd_error": "LSD error"}
OTHER_NAMES = {"affs": "affinities", "lsd": "lsds", "ground_truth": "truth", "labels": "truth"}
PLANES = {"z": ("y", "x"), "y": ("z", "x"), "x": ("z", "y")}  # rows, columns
NOTHING = "\u2013"  # where a value would stand
CROSS = "\u00d7"
WORST_SHOWN = 6
MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Tile:
    """One number of the summary; `state` is good, bad or empty."""

    name: str
    value: str
    note: str = ""
    state: str = ""


@dataclass(frozen=True)
class Panel:
    """One layer in one plane: a figure, or the reason why there is none."""

    title: str
    figure: Figure | None
    missing: str = ""


@dataclass(frozen=True)
class Plane:
    """Three words of a plane (axis, name, position), its panels, the raw picture beneath labels, width / height."""

    axis: str
    name: str
    position: str
    panels: tuple[Panel, ...]
    under_uri: str
    aspect: float


def tiles(data: ReportData) -> tuple[Tile, ...]:
    """The summary: quality first, then what was done."""
    chosen = chosen_score(data)
    return (
        _voi_tile(data, chosen),
        _verdict_tile(data),
        _segments_tile(data, chosen),
        _threshold_tile(data, chosen),
        _volume_tile(data),
        _time_tile(data),
    )


def chosen_score(data: ReportData) -> Score | None:
    """The score at the chosen threshold, None without one."""
    return next((score for score in data.scores if score.chosen), None)


def chosen_count(data: ReportData) -> SegmentCount | None:
    """The segment count of the threshold that made the segmentation; None if there is none."""
    return next((count for count in data.segment_counts if count.chosen), None)


def _voi_tile(data: ReportData, chosen: Score | None) -> Tile:
    if chosen is None:
        return Tile("VOI, split + merge", NOTHING, "no truth given" if not data.has_truth else "not measured")
    verdict = next((v for v in data.verdicts if "voi" in v.name.lower()), None)
    state = {True: "good", False: "bad"}.get(verdict.passed, "") if verdict and verdict.passed is not None else ""
    return Tile(
        "VOI, split + merge", f"{chosen.voi:.3f}", f"{chosen.voi_split:.3f} + {chosen.voi_merge:.3f} bits", state
    )


def _verdict_tile(data: ReportData) -> Tile:
    known = [v for v in data.verdicts if v.passed is not None]
    if not known:
        return Tile("Criteria", NOTHING, "nothing could be measured" if data.verdicts else "none set")
    failed = [v for v in known if not v.passed]
    text = f"{len(known) - len(failed)} of {len(known)} met"
    unmeasured = len(data.verdicts) - len(known)
    note = text + (f", {unmeasured} not measured" if unmeasured else "")
    return Tile("Criteria", "✗ failed" if failed else "✓ passed", note, "bad" if failed else "good")


def _segments_tile(data: ReportData, chosen: Score | None) -> Tile:
    count = chosen_count(data)
    if count is not None:
        note = f"largest {count.largest_segment_vox:,} vox" if count.largest_segment_vox else "at the chosen threshold"
        return Tile("Segments", f"{count.segments:,}", note)
    if chosen is not None:
        return Tile("Segments", f"{chosen.number_of_segments:,}", "at the chosen threshold")
    return Tile("Segments", NOTHING, "not counted")


def _threshold_tile(data: ReportData, chosen: Score | None) -> Tile:
    where = chosen or chosen_count(data)
    if where is None:
        return Tile("Threshold", NOTHING, "none chosen")
    return Tile("Threshold", f"{where.threshold:g}", where.merge_function)


def _volume_tile(data: ReportData) -> Tile:
    if data.shape_vox is None:
        return Tile("Volume", NOTHING, "not known")
    value = f"{CROSS}\u200b".join(str(n) for n in data.shape_vox)  # may break after each cross
    if data.voxel_size_nm is None:
        return Tile("Volume", value, "voxels z, y, x; voxel size not known")
    size = f" {CROSS} ".join(f"{v:g}" for v in data.voxel_size_nm)
    return Tile("Volume", value, f"voxels of {size} nm (z, y, x)")


def _time_tile(data: ReportData) -> Tile:
    walls = [v.wall_s for v in data.versions if v.wall_s is not None]
    if walls:
        return Tile("Run time", duration(sum(walls)), "all stages")
    if data.block_times:
        total = sum(float(np.nansum(times.seconds)) for times in data.block_times)
        return Tile("Run time", duration(total), "sum over the blocks")
    return Tile("Run time", NOTHING, "not recorded")


def duration(seconds: float) -> str:
    """Seconds as people say them: 0.4 s, 12 s, 3 min 20 s, 5 h 12 min, 3 d 4 h."""
    if not math.isfinite(seconds):
        return NOTHING
    if seconds < 10:
        return f"{seconds:.2g} s"
    for size, name, small, small_name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = int(seconds % size // small)
            return f"{int(seconds // size)} {name}" + (f" {rest} {small_name}" if rest else "")
    return f"{seconds:.0f} s"


def taken_words(taken: Taken) -> tuple[str, ...]:
    """Processor time, memory, read, written, GPU; a dash for what was not recorded."""
    gpu = ""
    if taken.gpu:
        gpu = taken.gpu + (f", {bytes_words(taken.gpu_bytes)}" if taken.gpu_bytes else "")
    return (
        duration(taken.cpu_s) if taken.cpu_s is not None else NOTHING,
        bytes_words(taken.peak_resident_bytes),
        bytes_words(taken.read_bytes),
        bytes_words(taken.written_bytes),
        gpu or NOTHING,
    )


def bytes_words(size: int | None) -> str:
    """312 MiB, 4.2 GiB; a dash for what is not known."""
    if size is None:
        return NOTHING
    if size >= GIB:
        return f"{size / GIB:,.1f} GiB"
    return f"{size / MIB:,.0f} MiB" if size >= 10 * MIB else f"{size / MIB:.2g} MiB"


def worst_first(worst: Sequence[WorstPlace]) -> tuple[list[WorstPlace], list[WorstPlace]]:
    """The worst few of each kind, and the others."""
    first = [p for kind in ("split", "merge") for p in [w for w in worst if w.kind == kind][:WORST_SHOWN]]
    return first, [place for place in worst if place not in first]


def planes(data: ReportData) -> tuple[Plane, ...]:
    """The three orthogonal planes with a panel for every layer; none at all if there is no picture."""
    return tuple(_plane(data, axis) for axis in PLANES) if data.pictures else ()


def _plane(data: ReportData, axis: str) -> Plane:
    figures: dict[str, Figure] = {}
    for picture in data.pictures:
        if picture.axis == axis:
            name = picture.layer.strip().lower()
            figures[OTHER_NAMES.get(name, name)] = figure_of(picture)
    panels = [
        Panel(title, figures.get(layer), "" if layer in figures else reason)
        for layer, (title, reason) in LAYERS.items()
    ]
    further = {layer: figure for layer, figure in figures.items() if layer not in LAYERS}
    panels += [Panel(FURTHER_LAYERS.get(layer, figure.layer), figure) for layer, figure in further.items()]
    index = next((f"{axis} = {f.index_vox}" for f in figures.values()), "no picture")
    under = figures["raw"].uri if "raw" in figures else ""
    aspect = next((f.aspect for f in figures.values()), 1.0)
    return Plane(axis, "".join(reversed(PLANES[axis])), index, tuple(panels), under, aspect)
