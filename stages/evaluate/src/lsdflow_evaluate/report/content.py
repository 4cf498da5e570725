"""The contents of the page of an experiment: tiles, planes of figures, tables.

Pure functions from `ReportData` to plain values; the templates decide the layout. What is missing is put in words here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lsdflow_contract.manifest import Manifest
from lsdflow_evaluate.report.data import (
    FAILED,
    FINISHED,
    NOT_STARTED,
    SHORT,
    STOPPED,
    UNENDED,
    BlockState,
    ComparedResult,
    Neurites,
    ReportData,
    StageBlocks,
    StageRecord,
    StageRun,
    TrainingSnapshot,
)
from lsdflow_evaluate.report.figures import Figure, block_map, colours_of_ids, example_figure, figure_of, hex_colour
from lsdflow_evaluate.report.words import CROSS, NOTHING, duration, resource_words

LAYERS = {
    "raw": ("Raw", "the volume could not be read"),
    "lsds": ("LSDs", ""),
    "affinities": ("Affinities", "predict has not finished here"),
    "fragments": ("Fragments", "watershed has not finished here"),
    "segmentation": ("Segmentation", "segment has not finished here"),
    "truth": ("Truth", ""),
    "lsd_error": ("LSD error (white: 1)", ""),
}
# Affinities of the demo's volume, as pictures in this package.
EXAMPLES = {
    "affinities_good": "good: white inside neurons, thin dark closed lines between them",
    "affinities_untrained": "hardly trained: grey everywhere, nothing is decided",
}
PLANES = {"z": "xy", "y": "xz", "x": "yz"}
# Columns of the scores of thresholds: the names in scores.json, their format and what they are divided by.
SCORES = {
    "VOI split": ("voi_split", "{:.4f}", 1),
    "VOI merge": ("voi_merge", "{:.4f}", 1),
    "VOI": ("voi", "{:.4f}", 1),
    "adapted Rand": ("adapted_rand_error", "{:.4f}", 1),
    "Rand split": ("rand_split", "{:.4f}", 1),
    "Rand merge": ("rand_merge", "{:.4f}", 1),
    "ERL µm": ("expected_run_length_nm", "{:.2f}", 1000),
    "norm. ERL": ("normalized_erl", "{:.4f}", 1),
    "segments": ("number_of_segments", "{:,}", 1),
}
COMPARED_SCORES = ("VOI split", "VOI merge", "VOI", "adapted Rand")
# State of a stage: its words and their style.
STATES = {
    FINISHED: ("✓ finished", "good"),
    SHORT: ("! ended early", "bad"),
    FAILED: ("✗ failed", "bad"),
    STOPPED: ("stopped, can be resumed", ""),
    UNENDED: ("runs, or was killed", ""),
    NOT_STARTED: ("not started", "quiet"),
}
CUBIC_MICROMETRE_NM3 = 1e9


@dataclass(frozen=True)
class Tile:
    """One number of the summary; `state` is good, bad or empty."""

    name: str
    value: str
    note: str = ""
    state: str = ""


@dataclass(frozen=True)
class Panel:
    """A figure, or the reason why there is none; `place`: its plane in words; `under`: what the raw beneath its labels
    is called; `aspect`: width / height."""

    title: str
    figure: Figure | None
    missing: str = ""
    place: str = ""
    under: str = ""
    aspect: float = 1.0


@dataclass(frozen=True)
class Plane:
    """Three words of a plane (axis, name, position), its panels, and the raw picture beneath labels."""

    axis: str
    name: str
    position: str
    panels: tuple[Panel, ...]
    under_uri: str


def tiles(data: ReportData) -> tuple[Tile, ...]:
    """The summary: quality first, then what was done."""
    score, lut = data.chosen_score, data.chosen_lut
    voi = Tile("VOI, split + merge", NOTHING, "not measured" if data.scores.get("has_truth") else "no truth given")
    if score:
        success = score["voi"] < data.voi_limit
        verdict = f"✓ passed, < {data.voi_limit:g}" if success else f"✗ failed, not < {data.voi_limit:g}"
        note = f"{score['voi_split']:.3f} + {score['voi_merge']:.3f} bits: {verdict}"
        voi = Tile("VOI, split + merge", f"{score['voi']:.3f}", note, "good" if success else "bad")
    chosen = score or lut or {}
    facts = lut or {}
    number, largest = chosen.get("number_of_segments", facts.get("segments")), facts.get("largest_segment_vox")
    threshold = f"{chosen['threshold']:g}" if chosen else NOTHING
    shape = f"{CROSS}\u200b".join(map(str, data.shape_vox or ())) or NOTHING  # may break after each cross
    size = f" {CROSS} ".join(f"{v:g}" for v in data.voxel_size_nm or ())
    walls = [found.facts["seconds"] for found in data.manifests.values() if "seconds" in found.facts]
    return (
        voi,
        Tile("Segments", NOTHING if number is None else f"{number:,}", f"largest {largest:,} vox" if largest else ""),
        Tile("Threshold", threshold, chosen.get("merge_function", "none chosen")),
        Tile("Volume", shape, f"voxels of {size} nm (z, y, x)" if size else "voxel size not known"),
        Tile("Run time", duration(sum(walls)) if walls else NOTHING, "all stages" if walls else "not recorded"),
    )


def planes(data: ReportData) -> tuple[Plane, ...]:
    """The three orthogonal planes with a panel for every layer; none at all if there is no picture."""
    return tuple(_plane(data, axis) for axis in PLANES) if data.pictures else ()


def _plane(data: ReportData, axis: str) -> Plane:
    figures = {picture.layer: figure_of(picture) for picture in data.pictures if picture.axis == axis}
    position = next((f"{axis} = {f.index_vox}" for f in figures.values()), "no picture")
    place, under = f"{PLANES[axis]} plane, {position}", axis if "raw" in figures else ""
    aspect = next((f.aspect for f in figures.values()), 1.0)
    panels = [
        Panel(title, figures.get(layer), "" if layer in figures else reason, place, under, aspect)
        for layer, (title, reason) in LAYERS.items()
        if reason or layer in figures
    ]
    return Plane(axis, PLANES[axis], position, tuple(panels), figures["raw"].uri if under else "")


def affinities_compared(data: ReportData, planes: Sequence[Plane]) -> tuple[Panel, ...]:
    """The affinities of the first plane beside those of a good and of a hardly trained network; none where truth
    answers, or without affinities."""
    own = [p.figure for plane in planes[:1] for p in plane.panels if p.title == LAYERS["affinities"][0] and p.figure]
    if data.scores.get("has_truth") or not own:
        return ()
    examples = ((text, example_figure(name)) for name, text in EXAMPLES.items())
    return tuple(Panel(f"Affinities, {text}", figure) for text, figure in (("these", own[0]), *examples))


def neurites_panel(neurites: Neurites) -> tuple[Panel, list[tuple[str, str]]]:
    """The picture of the largest segments; colour and words of each."""
    where = f"the box in its middle, {neurites.part}" if neurites.part else "the whole segmentation"
    title = f"The {len(neurites.ids)} largest segments of {where}, seen along {neurites.picture.axis}"
    volumes = (f"{volume / CUBIC_MICROMETRE_NM3:.3g} µm³" for volume in neurites.volumes_nm3)
    colours = colours_of_ids(np.array(neurites.ids, np.uint64)).tolist()
    words = (f"{label}: {volume}" for label, volume in zip(neurites.ids, volumes, strict=True))
    return Panel(title, figure_of(neurites.picture)), [(hex_colour(c), w) for c, w in zip(colours, words, strict=True)]


def block_panels(data: ReportData) -> tuple[Panel, ...]:
    """A map of the blocks of each stage of which not all are simply done, with how many are in which state."""
    made = []
    for stage, blocks in data.blocks.items():
        if blocks.states is not None and blocks.states.any():
            counts = {state.name.lower(): int((blocks.states == state).sum()) for state in BlockState}
            title = f"{stage}: {', '.join(f'{n:,} {name}' for name, n in counts.items() if n)}"
            depth, row, column = np.multiply(blocks.block_shape_vox, data.voxel_size_nm or 1.0).tolist()
            made.append(Panel(title, block_map(blocks.states, (depth, row, column))))
    return tuple(made)


def stage_rows(data: ReportData) -> list[dict[str, Any]]:
    """Every stage of the chain in words, with its runs, the newest first."""
    return [
        {
            "record": record,
            "state": STATES[record.state][0],
            "style": STATES[record.state][1],
            "work": _work(data, record.stage),
            "failed": blocks.failed if (blocks := data.blocks.get(record.stage)) else 0,
            "begun": _moment(record.runs[0].started) if record.runs else NOTHING,
            "run_time": _run_time(record),
            "block_time": _block_time(data.blocks.get(record.stage)),
            "used": resource_words(record.resources),
            "runs": [_run_row(run) for run in reversed(record.runs)],
            "result": _result_rows(record.manifest) if record.manifest else [],
        }
        for record in data.stages
    ]


def _work(data: ReportData, stage: str) -> str:
    blocks = data.blocks.get(stage)
    loss = next((c for c in data.losses if c.stage == stage), None)
    if blocks is not None:
        return f"{blocks.done:,} of {blocks.total:,} blocks"
    if loss is None or not loss.iterations.size:
        return NOTHING
    wanted = data.manifests[stage].facts.get("max_iteration") if stage in data.manifests else None
    return f"{int(loss.iterations.max()):,}{f' of {wanted:,}' if wanted else ''} iterations"


def _run_time(record: StageRecord) -> str:
    """That of the manifest; else of all runs."""
    if record.manifest is not None and "seconds" in record.manifest.facts:
        return duration(record.manifest.facts["seconds"])
    known = [run.seconds for run in record.runs if run.seconds is not None]
    return duration(sum(known)) if known else NOTHING


def _block_time(blocks: StageBlocks | None) -> str:
    if blocks is None or blocks.seconds.size == 0:
        return NOTHING
    middle, slow = (float(np.nanpercentile(blocks.seconds, q)) for q in (50, 95))
    return f"{duration(middle)} · 95 %: {duration(slow)}"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _run_row(run: StageRun) -> dict[str, Any]:
    """A run in words."""
    ended = {"done": "✓ done", "going": "no outcome yet", "stopped": "stopped"}.get(run.state, f"✗ {run.exit_code}")
    return {
        "begun": _moment(run.started),
        "run_time": duration(run.seconds) if run.seconds is not None else NOTHING,
        "ended": f"{ended}: {run.what}" if run.what and run.state == "failed" else ended,
        "style": {"done": "good", "failed": "bad"}.get(run.state, "quiet"),
        "machine": " ".join(filter(None, (run.host, run.job and f"job {run.job}"))) or NOTHING,
        "used": resource_words(run.resources),
    }


def _result_rows(manifest: Manifest) -> list[tuple[str, str]]:
    """The outputs, inputs and counts in the manifest."""
    facts = {k: v for k, v in manifest.facts.items() if isinstance(v, str | int | float) and not isinstance(v, bool)}
    return [
        *((f"output {name}", path) for name, path in manifest.outputs.items()),
        *((f"input {name}", identity) for name, identity in manifest.inputs.items()),
        *((name, f"{value:,.6g}" if isinstance(value, float) else str(value)) for name, value in facts.items()),
    ]


def score_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns of SCORES that some row has a value for."""
    return [name for name, (value, _, _) in SCORES.items() if any(row.get(value) is not None for row in rows)]


def score_texts(row: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    """The values of one row of scores.json as texts."""
    values = ((row.get(SCORES[name][0]), *SCORES[name][1:]) for name in columns)
    return [NOTHING if v is None else text.format(v / unit if unit > 1 else v) for v, text, unit in values]


def compared_rows(results: Sequence[ComparedResult]) -> list[tuple[ComparedResult, tuple[str, ...]]]:
    """Each result with its threshold, the COMPARED_SCORES, segments and age as texts."""
    return [
        (
            result,
            (
                f"{result.scores['threshold']:g}" if "threshold" in result.scores else NOTHING,
                *score_texts(result.scores, COMPARED_SCORES),
                NOTHING if result.segments is None else f"{result.segments:,}",
                duration(result.age_s),
            ),
        )
        for result in results
    ]


def compared_panels(results: Sequence[ComparedResult], plane: Plane | None) -> list[Panel]:
    """The segmentations of the results that have a picture, with their threshold and VOI if they are known."""
    place = f"{plane.name} plane, {plane.position}" if plane else ""
    under = plane.axis if plane and plane.under_uri else ""
    made = []
    for result in results:
        title = f"{result.key}, current" if result.current else result.key
        if "voi" in result.scores:
            title += f": threshold {result.scores['threshold']:g}, VOI {result.scores['voi']:.3f}"
        if result.picture:
            made.append(Panel(title, figure_of(result.picture), place=place, under=under))
    return made


def training_panels(snapshot: TrainingSnapshot) -> list[Panel]:
    """The pictures of a snapshot; the raw beneath its labels has the name of the stage."""
    return [
        Panel(title, figure_of(picture), place=f"yx plane, z = {picture.index_vox}", under=snapshot.stage)
        for title, picture in snapshot.pictures
    ]
