"""The contents of the pages of an experiment and of its stages: tiles, planes of figures, tables.

Pure functions from `ReportData` to plain values; the templates decide the layout. What is missing is put in words here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lsdflow_contract.experiment import STAGES
from lsdflow_contract.hashing import hash_of
from lsdflow_evaluate.report.data import (
    FAILED,
    FINISHED,
    NOT_STARTED,
    SHORT,
    STOPPED,
    UNENDED,
    ComparedResult,
    DatasetFacts,
    ReportData,
    Resources,
    StageBlocks,
    StageRecord,
    TrainingSnapshot,
)
from lsdflow_evaluate.report.figures import Figure, example_figure, figure_of
from lsdflow_evaluate.report.findings import affinities_in_pictures
from lsdflow_evaluate.report.words import CROSS, NOTHING, duration, resource_words

LAYERS = {
    "raw": ("Raw", "the volume could not be read"),
    "lsds": ("LSDs", ""),
    "affinities": ("Affinities", "predict has not finished here"),
    "fragments": ("Fragments", "watershed has not finished here"),
    "segmentation": ("Segmentation", "segment has not finished here"),
    "truth": ("Truth", ""),
}
# No placeholder for what need not exist: layers without a reason above, and these.
LSD_ERROR = "LSD error (white: 1)"
FURTHER_LAYERS = {"lsd_error": LSD_ERROR}
# Affinities of the demo's volume, as pictures in this package.
EXAMPLES = {
    "affinities_good": "good: white inside neurons, thin dark closed lines between them",
    "affinities_untrained": "hardly trained: grey everywhere, nothing is decided",
}
PLANES = {"z": "xy", "y": "xz", "x": "yz"}
# Titles of the pictures of a training that the page of the experiment shows.
SMALL_TITLES = ("Raw", "target", "prediction")
# Columns of the comparison of results: the scores of scores.json and their formats, then segments and age.
COMPARED_SCORES = {
    "threshold": ("threshold", "{:g}"),
    "VOI split": ("voi_split", "{:.4f}"),
    "VOI merge": ("voi_merge", "{:.4f}"),
    "VOI": ("voi", "{:.4f}"),
    "adapted Rand": ("adapted_rand_error", "{:.4f}"),
}
COMPARED_COLUMNS = (*COMPARED_SCORES, "segments", "age")
# The layers that a stage writes, or, for evaluate, compares.
WRITTEN = {
    "prepare": ("Raw", "Truth"),
    "predict": ("LSDs", "Affinities"),
    "watershed": ("Fragments",),
    "segment": ("Segmentation",),
    "evaluate": ("Segmentation", "Truth", LSD_ERROR),
}
STATES = {
    FINISHED: ("✓ finished", "good"),
    SHORT: ("ended early", "bad"),
    FAILED: ("✗ failed", "bad"),
    STOPPED: ("stopped", ""),
    UNENDED: ("no outcome", ""),
    NOT_STARTED: (NOTHING, ""),
}
NOTES = {STOPPED: "run it again to resume", UNENDED: "it runs, or was killed", NOT_STARTED: "not started"}


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


@dataclass(frozen=True)
class TrainingView:
    """`plane`: all pictures, None if no snapshot can be read; `small`: those for the page of the experiment; a row of
    texts for each dataset."""

    stage: str
    title: str
    plane: Plane | None
    small: tuple[Panel, ...]
    rows: tuple[tuple[str, ...], ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True)
class StageRow:
    """One line of the table of stages; texts, `done_percent` None where the stage has no blocks; `page`: it has one."""

    stage: str
    page: bool
    work: str
    run_time: str
    block_time: str
    used: tuple[str, ...]
    done_percent: float | None
    failed: int


def passed(voi: float | None, limit: float) -> bool | None:
    """Success: VOI split + merge (bits) below the limit; None if it was not measured."""
    return None if voi is None else voi < limit


def tiles(data: ReportData) -> tuple[Tile, ...]:
    """The summary: quality first, then what was done."""
    score, lut = data.chosen_score, data.chosen_lut
    has_truth = data.scores.get("has_truth")
    success = passed(data.scores.get("voi"), data.voi_limit)
    state = {True: "good", False: "bad", None: ""}[success]
    voi = Tile("VOI, split + merge", NOTHING, "not measured" if has_truth else "no truth given: see below")
    if score:
        note = f"{score['voi_split']:.3f} + {score['voi_merge']:.3f} bits"
        voi = Tile("VOI, split + merge", f"{score['voi']:.3f}", note, state)
    criteria = Tile("Criteria", NOTHING, "nothing could be measured")
    if not has_truth and (affs := affinities_in_pictures(data)):
        criteria = Tile("Affinities", affs.word, affs.measured, affs.state)
    if success is not None:
        criteria = Tile("Criteria", "✓ passed" if success else "✗ failed", f"{int(success)} of 1 met", state)
    segments = Tile("Segments", NOTHING, "not counted")
    if lut or score:
        number = lut["segments"] if lut else score["number_of_segments"] if score else 0
        largest = lut.get("largest_segment_vox") if lut else None
        segments = Tile("Segments", f"{number:,}", f"largest {largest:,} vox" if largest else "at the chosen threshold")
    threshold = Tile("Threshold", NOTHING, "none chosen")
    if chosen := score or lut:
        threshold = Tile("Threshold", f"{chosen['threshold']:g}", chosen["merge_function"])
    return voi, criteria, segments, threshold, _volume_tile(data), _time_tile(data)


def _volume_tile(data: ReportData) -> Tile:
    if data.shape_vox is None:
        return Tile("Volume", NOTHING, "not known")
    value = f"{CROSS}\u200b".join(str(n) for n in data.shape_vox)  # may break after each cross
    if data.voxel_size_nm is None:
        return Tile("Volume", value, "voxels z, y, x; voxel size not known")
    size = f" {CROSS} ".join(f"{v:g}" for v in data.voxel_size_nm)
    return Tile("Volume", value, f"voxels of {size} nm (z, y, x)")


def _time_tile(data: ReportData) -> Tile:
    walls = [found.facts["seconds"] for found in data.manifests.values() if "seconds" in found.facts]
    if walls:
        return Tile("Run time", duration(sum(walls)), "all stages")
    if data.blocks:
        total = sum(float(np.nansum(blocks.seconds)) for blocks in data.blocks.values())
        return Tile("Run time", duration(total), "sum over the blocks")
    return Tile("Run time", NOTHING, "not recorded")


def planes(data: ReportData) -> tuple[Plane, ...]:
    """The three orthogonal planes with a panel for every layer; none at all if there is no picture."""
    return tuple(_plane(data, axis) for axis in PLANES) if data.pictures else ()


def _plane(data: ReportData, axis: str) -> Plane:
    figures = {picture.layer: figure_of(picture) for picture in data.pictures if picture.axis == axis}
    panels = [
        Panel(title, figures.get(layer), "" if layer in figures else reason)
        for layer, (title, reason) in LAYERS.items()
        if reason or layer in figures
    ]
    further = {layer: figure for layer, figure in figures.items() if layer not in LAYERS}
    panels += [Panel(FURTHER_LAYERS.get(layer, layer), figure) for layer, figure in further.items()]
    position = next((f"{axis} = {f.index_vox}" for f in figures.values()), "no picture")
    under = figures["raw"].uri if "raw" in figures else ""
    aspect = next((f.aspect for f in figures.values()), 1.0)
    return Plane(axis, PLANES[axis], position, tuple(panels), under, aspect)


def affinities_compared(data: ReportData, planes: Sequence[Plane]) -> tuple[Panel, ...]:
    """The affinities of the first plane beside those of a good and of a hardly trained network; none where truth
    answers, or without affinities."""
    own = [p.figure for plane in planes[:1] for p in plane.panels if p.title == LAYERS["affinities"][0] and p.figure]
    if data.scores.get("has_truth") or not own:
        return ()
    examples = ((text, example_figure(name)) for name, text in EXAMPLES.items())
    return (Panel("these", own[0]), *(Panel(text, figure) for text, figure in examples))


def stage_rows(data: ReportData) -> tuple[StageRow, ...]:
    """Every stage of which something is known, in the order of the pipeline."""
    known = {*data.manifests, *data.blocks, *(curve.stage for curve in data.losses)}
    known |= {record.stage for record in data.stages if record.runs}
    ordered = [s for s in STAGES if s in known] + sorted(known - set(STAGES))
    return tuple(stage_row(data, stage) for stage in ordered)


def stage_row(data: ReportData, stage: str) -> StageRow:
    """The line of one stage."""
    blocks = data.blocks.get(stage)
    loss = next((c for c in data.losses if c.stage == stage), None)
    record = next((r for r in data.stages if r.stage == stage), None)
    work = NOTHING
    if blocks is not None:
        work = f"{blocks.done:,} of {blocks.total:,} blocks"
    elif loss is not None and loss.iterations.size:
        made = data.manifests.get(stage)
        wanted = made.facts.get("max_iteration") if made else None
        work = f"{int(loss.iterations.max()):,}{f' of {wanted:,}' if wanted else ''} iterations"
    return StageRow(
        stage=stage,
        page=record is not None,
        work=work,
        run_time=_run_time(data, record, stage),
        block_time=_block_time(blocks),
        used=resource_words(record.resources if record else Resources()),
        done_percent=100.0 * blocks.done / blocks.total if blocks and blocks.total else None,
        failed=blocks.failed if blocks else 0,
    )


def _run_time(data: ReportData, record: StageRecord | None, stage: str) -> str:
    """That of the manifest; else of all runs."""
    manifest = data.manifests.get(stage)
    if manifest is not None and "seconds" in manifest.facts:
        return duration(manifest.facts["seconds"])
    known = [run.seconds for run in record.runs if run.seconds is not None] if record else []
    return duration(sum(known)) if known else NOTHING


def _block_time(blocks: StageBlocks | None) -> str:
    if blocks is None or blocks.seconds.size == 0:
        return NOTHING
    middle, slow = (float(np.nanpercentile(blocks.seconds, q)) for q in (50, 95))
    return f"{duration(middle)} · 95 %: {duration(slow)}"


def version_rows(data: ReportData) -> list[dict[str, str]]:
    """Every stage that has finished: who wrote its result, with which settings, and what it is."""
    return [
        {
            "stage": stage,
            "version": found.writer.version or "unknown",
            "digest": found.writer.image_digest or "no image",
            "revision": found.writer.revision or "unknown",
            "contract": found.contract,
            "config_hash": hash_of(found.config),
            "identity": found.identity,
        }
        for stage, found in data.manifests.items()
    ]


def compared_rows(results: Sequence[ComparedResult]) -> list[dict[str, Any]]:
    """Key, what differs from the current chain, and a text for each of COMPARED_COLUMNS, of each result."""
    rows = []
    for result in results:
        scores = [
            text.format(result.scores[name]) if name in result.scores else NOTHING
            for name, text in COMPARED_SCORES.values()
        ]
        texts = (*scores, NOTHING if result.segments is None else f"{result.segments:,}", duration(result.age_s))
        rows.append({"key": result.key, "current": result.current, "settings": result.settings, "texts": texts})
    return rows


def compared_panels(results: Sequence[ComparedResult]) -> tuple[Panel, ...]:
    """The segmentations of the results that have a picture, with their threshold and VOI if they are known."""
    return tuple(Panel(_compared_title(result), figure_of(result.picture)) for result in results if result.picture)


def _compared_title(result: ComparedResult) -> str:
    title = f"{result.key}, current" if result.current else result.key
    if "voi" not in result.scores:
        return title
    return f"{title}: threshold {result.scores['threshold']:g}, VOI {result.scores['voi']:.3f}"


def training_view(snapshot: TrainingSnapshot) -> TrainingView:
    """A snapshot of a training. Its plane has the name of the stage for an axis: the raw beneath labels is its own."""
    panels = tuple(Panel(title, figure_of(picture)) for title, picture in snapshot.pictures)
    figure = panels[0].figure if panels else None
    plane = None
    if figure is not None:
        plane = Plane(snapshot.stage, "yx", f"z = {figure.index_vox}", panels, figure.uri, figure.aspect)
    title = "no snapshot can be read" if snapshot.iteration is None else f"iteration {snapshot.iteration:,}"
    small = tuple(panel for panel in panels if panel.title.rpartition(": ")[2] in SMALL_TITLES)
    rows = tuple(_dataset_words(facts) for facts in snapshot.datasets)
    return TrainingView(snapshot.stage, title, plane, small, rows, snapshot.left_out)


def _dataset_words(facts: DatasetFacts) -> tuple[str, ...]:
    shape = f" {CROSS} ".join(str(n) for n in facts.shape)
    error = NOTHING
    if facts.error is not None and facts.share is not None:
        value = f"{facts.error:.4g}" if math.isfinite(facts.error) else "not a number"
        error = f"{value}, of {100 * facts.share:.3g} % of the values"
        if facts.share == 0:
            error = "no weight > 0: nothing is trained here"
    return facts.name, shape, facts.dtype, f"{facts.low:.4g} to {facts.high:.4g}", error


def stage_tiles(data: ReportData, record: StageRecord) -> tuple[Tile, ...]:
    """State, work, time, and the resources used."""
    row, (value, state) = stage_row(data, record.stage), STATES[record.state]
    processor, memory, read, written, gpu = row.used
    code = f"exit code {record.last.exit_code}" if record.last and record.last.exit_code else ""
    return (
        Tile("State", value, code or NOTES.get(record.state, ""), state),
        Tile("Work", row.work, f"{row.failed} failed" if row.failed else ""),
        Tile("Run time", row.run_time, f"{len(record.runs)} runs" if len(record.runs) > 1 else ""),
        Tile("Processor time", processor, "all processes together"),
        Tile("Memory", memory, "the largest process" + ("" if gpu == NOTHING else f"; GPU {gpu}")),
        Tile("Read", read, "" if written == NOTHING else f"{written} written"),
    )


def stage_panels(planes: Sequence[Plane], stage: str) -> list[tuple[str, list[tuple[Panel, Plane]]]]:
    """For each layer that the stage writes its title, and its panels that have a figure, with their planes."""
    rows = []
    for title in WRITTEN.get(stage, ()):
        row = [(panel, plane) for plane in planes for panel in plane.panels if panel.title == title and panel.figure]
        if row:
            rows.append((title, row))
    return rows


def run_rows(record: StageRecord) -> list[dict[str, Any]]:
    """The runs in words, the newest first."""
    rows = []
    for run in reversed(record.runs):
        ended = {"done": "✓ done", "going": "no outcome yet", "stopped": "stopped"}.get(run.state, f"✗ {run.exit_code}")
        rows.append(
            {
                "begun": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(run.started)),
                "run_time": duration(run.seconds) if run.seconds is not None else NOTHING,
                "ended": f"{ended}: {run.what}" if run.what and run.state == "failed" else ended,
                "style": {"done": "good", "failed": "bad"}.get(run.state, "quiet"),
                "host": run.host or NOTHING,
                "job": run.job or NOTHING,
                "used": resource_words(run.resources),
            }
        )
    return rows


def result_rows(record: StageRecord) -> list[tuple[str, str]]:
    """The outputs, identities and counts in the manifest; none if the stage has not finished."""
    found = record.manifest
    if found is None:
        return []
    facts = {k: v for k, v in found.facts.items() if isinstance(v, str | int | float) and not isinstance(v, bool)}
    return [
        *((f"output {name}", path) for name, path in found.outputs.items()),
        ("identity", found.identity),
        ("key of the work", found.key),
        ("hash of the settings", hash_of(found.config)),
        *((f"input {name}", identity) for name, identity in found.inputs.items()),
        *((name, f"{value:,.6g}" if isinstance(value, float) else str(value)) for name, value in facts.items()),
        ("contract", found.contract),
    ]
