"""Pictures of the report: slices of volumes, labels with outlines over the raw image, maps of blocks, the timeline.

1. Every picture becomes a PNG inside a `data:` address, so that the page needs no other file and no network.
2. Labels get a colour that depends on nothing but their id: the same neuron has the same colour in every picture of
   every report. They are half transparent, so that the raw image is visible beneath; outlines are opaque.
3. The scale bar is a length in nm and its share of the width of the picture. The page draws it in that share, so it
   stays right at whatever size the picture has.
4. The timeline has a bar for every run on one time axis, in shares of its length; long pauses are cut short.
"""

from __future__ import annotations

import base64
import io
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lsdflow_evaluate.report.data import BlockMap, BlockState, Picture, StageRecord, StageRun
from lsdflow_evaluate.report.words import duration

LONGEST_SIDE_PX = 1024  # larger slices are reduced
OUTLINED_SIDE_PX = 800  # small slices of labels are enlarged to this, so that outlines are thin
FILL_ALPHA = 118
LARGEST_BAR_SHARE = 0.3
MOST_PALETTE_COLOURS = 256
MICROMETRE_NM = 1000.0
STATE_COLOURS = {
    BlockState.DONE: (47, 158, 110),
    BlockState.RETRIED: (224, 165, 38),
    BlockState.MISSING: (138, 145, 152),
    BlockState.FAILED: (212, 58, 47),
}
STATE_NAMES = {
    BlockState.DONE: "done",
    BlockState.RETRIED: "done, tried again",
    BlockState.MISSING: "missing",
    BlockState.FAILED: "failed",
}
FAST, SLOW = np.array([214.0, 229.0, 245.0]), np.array([14.0, 60.0, 128.0])
LARGEST_MAP_PX, LARGEST_CELL_PX = 720, 48
MOST_RUNS = 200
# In percent of the time axis: a shorter bar could not be seen; ticks nearer to each other would overlap.
LEAST_BAR, LEAST_TICK = 0.4, 12.0
# A pause longer than this share of all run times is a break of the axis, drawn with this width.
LONG_PAUSE_SHARE, BREAK_SHARE = 0.5, 0.06
STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800)

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class ScaleBar:
    """A bar of `length_nm`, `width_percent` of the picture wide, with its text."""

    length_nm: float
    width_percent: float
    text: str


@dataclass(frozen=True)
class Figure:
    """What the page needs of one picture: a `data:` address, width / height in nm, the scale bar."""

    kind: str
    index_vox: int
    uri: str
    aspect: float
    bar: ScaleBar


def figure_of(picture: Picture) -> Figure:
    """The figure of one picture. ValueError if its image has another form than its kind, or its pixels no size."""
    _check(picture)
    rows, columns = picture.image.shape[:2]
    row_nm, column_nm = picture.pixel_size_nm
    if picture.kind == "labels":
        pixels = _paint_labels(np.asarray(picture.image, np.uint64))
    else:
        pixels = _reduced(np.asarray(picture.image, np.uint8))
    return Figure(
        kind=picture.kind,
        index_vox=picture.index_vox,
        uri=png_uri(pixels),
        aspect=(columns * column_nm) / (rows * row_nm),
        bar=scale_bar(columns * column_nm),
    )


def example_figure(name: str) -> Figure:
    """The picture <name>.png of this package: one section of the affinities (colour) of a volume of 10 nm voxels."""
    image = np.asarray(Image.open(io.BytesIO((files(__package__) / f"{name}.png").read_bytes())).convert("RGB"))
    return figure_of(Picture("affinities", "colour", "z", 0, image, (10.0, 10.0)))


def _check(picture: Picture) -> None:
    wanted_axes = 3 if picture.kind == "colour" else 2
    image = picture.image
    if image.ndim != wanted_axes or min(image.shape) < 1 or (picture.kind == "colour" and image.shape[2] != 3):
        raise ValueError(f"picture of {picture.layer}: found an array {image.shape} for kind {picture.kind!r}")
    if not min(picture.pixel_size_nm) > 0:
        raise ValueError(f"picture of {picture.layer}: found pixel size {picture.pixel_size_nm} nm, wanted lengths > 0")


def colours_of_ids(ids: NDArray[np.uint64]) -> Bytes:
    """RGB u8 (..., 3) of label ids, by a hash of the id alone; id 0 is black. Hues spread over the whole circle."""
    mixed = _mix(ids.astype(np.uint64))
    hue = (mixed & np.uint64(0xFFFF)).astype(np.float64) / 65536.0
    saturation = 0.50 + 0.40 * ((mixed >> np.uint64(16)) & np.uint64(0xFF)).astype(np.float64) / 255.0
    value = 0.72 + 0.28 * ((mixed >> np.uint64(24)) & np.uint64(0xFF)).astype(np.float64) / 255.0
    # Hue to RGB: each channel is a trapezium wave over the circle, shifted by a third.
    shift = np.array([5.0, 3.0, 1.0])
    k = (shift + hue[..., None] * 6.0) % 6.0
    wave = np.clip(np.minimum(k, 4.0 - k), 0.0, 1.0)
    rgb = value[..., None] * (1.0 - saturation[..., None] * wave)
    rgb[ids == 0] = 0.0
    return np.asarray(np.rint(255.0 * rgb), np.uint8)


def _mix(ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: neighbouring ids get unrelated bits."""
    with np.errstate(over="ignore"):
        mixed = ids + np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def outlines(labels: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """True at pixels (rows, columns) that differ from a pixel beside, above or below: lines two pixels wide."""
    lines = np.zeros(labels.shape, bool)
    down, across = labels[:-1] != labels[1:], labels[:, :-1] != labels[:, 1:]
    lines[:-1] |= down
    lines[1:] |= down
    lines[:, :-1] |= across
    lines[:, 1:] |= across
    return lines


def _paint_labels(labels: NDArray[np.uint64]) -> Bytes:
    """RGBA: half transparent colour per label, opaque outlines, nothing at all where the label is 0."""
    step = -(-max(labels.shape) // LONGEST_SIDE_PX)
    labels = labels[::step, ::step]
    enlarge = max(1, OUTLINED_SIDE_PX // max(labels.shape))
    ids, place = np.unique(labels, return_inverse=True)
    place = place.reshape(labels.shape).repeat(enlarge, axis=0).repeat(enlarge, axis=1)
    labels = labels.repeat(enlarge, axis=0).repeat(enlarge, axis=1)
    rgb = colours_of_ids(ids)[place]
    alpha = np.where(labels == 0, 0, np.where(outlines(labels), 255, FILL_ALPHA)).astype(np.uint8)
    return np.dstack([rgb, alpha])


def _reduced(image: Bytes) -> Bytes:
    rows, columns = image.shape[:2]
    longest = max(rows, columns)
    if longest <= LONGEST_SIDE_PX:
        return image
    size = (max(1, columns * LONGEST_SIDE_PX // longest), max(1, rows * LONGEST_SIDE_PX // longest))
    return np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BOX))


def png_uri(pixels: Bytes) -> str:
    """A PNG of grey (r,c), RGB (r,c,3) or RGBA (r,c,4) pixels as a `data:` address."""
    buffer = io.BytesIO()
    _image(np.ascontiguousarray(pixels)).save(buffer, "PNG", compress_level=6)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _image(pixels: Bytes) -> Image.Image:
    """The picture; RGBA of few colours as indices into a palette, which is several times smaller and quicker."""
    if pixels.ndim != 3 or pixels.shape[2] != 4:
        return Image.fromarray(pixels)
    flat = pixels.view(np.uint32).ravel()
    # Only one pixel of each run of equal ones is sorted.
    begins = np.flatnonzero(np.diff(flat, prepend=~flat[:1]))
    colours, place = np.unique(flat[begins], return_inverse=True)
    if len(colours) > MOST_PALETTE_COLOURS:
        return Image.fromarray(pixels)
    indices = place.astype(np.uint8).repeat(np.diff(begins, append=flat.size))
    image = Image.fromarray(indices.reshape(pixels.shape[:2]), "P")
    parts = colours.view(np.uint8).reshape(-1, 4)
    image.putpalette(parts[:, :3].tobytes())
    image.info["transparency"] = parts[:, 3].tobytes()
    return image


def scale_bar(width_nm: float) -> ScaleBar:
    """The longest round length (1, 2 or 5 times a power of ten nm) of at most 30 % of `width_nm`."""
    room = LARGEST_BAR_SHARE * width_nm
    power = 10.0 ** np.floor(np.log10(room))
    length = float(max(f * power for f in (1.0, 2.0, 5.0) if f * power <= room * (1 + 1e-9)))
    text = f"{length / MICROMETRE_NM:g} µm" if length >= MICROMETRE_NM else f"{length:g} nm"
    return ScaleBar(length, 100.0 * length / width_nm, text)


def three_channels(values: NDArray[Any]) -> Bytes:
    """LSDs or affinities (channels, rows, columns) u8 as colour: the first three channels as red, green and blue.

    Of LSDs these are the mean offset, of affinities z, y and x (dark = boundary).
    """
    return np.ascontiguousarray(np.moveaxis(np.asarray(values[:3], np.uint8), 0, -1))


@dataclass(frozen=True)
class MapPicture:
    """A map of blocks along z: a `data:` address, width / height, words for those who do not see it, a legend."""

    title: str
    uri: str
    aspect: float
    alt: str
    legend: tuple[tuple[str, str], ...]


def map_pictures(blocks: BlockMap) -> tuple[MapPicture, ...]:
    """The states of the blocks, a cell for each column; and their seconds, if some are known."""
    _, rows, columns = blocks.states.shape
    _, height, width = blocks.block_shape_vox
    aspect = float(columns * width / (rows * height))
    counts = {state: int((blocks.states == state).sum()) for state in STATE_NAMES}
    legend = tuple((hex_colour(STATE_COLOURS[s]), f"{n:,} {STATE_NAMES[s]}") for s, n in counts.items() if n)
    alt = ", ".join(words for _, words in legend)
    states = column_states(blocks.states)
    palette = np.array([STATE_COLOURS[state] for state in sorted(STATE_COLOURS)], np.uint8)
    uri = png_uri(_cells(palette[states], states == BlockState.FAILED))
    made = [MapPicture("state of the blocks", uri, aspect, alt, legend)]
    seconds = column_means(blocks.seconds)
    known = np.isfinite(seconds)
    if known.any():
        low, high = float(seconds[known].min()), float(seconds[known].max())
        share = np.where(known, (seconds - low) / max(high - low, 1e-9), 0.0)[..., None]
        rgb = np.where(known[..., None], FAST + share * (SLOW - FAST), 150.0).round().astype(np.uint8)
        words = f"mean seconds per block along z, from {duration(low)} to {duration(high)}"
        scale = ((hex_colour(tuple(FAST)), duration(low)), (hex_colour(tuple(SLOW)), duration(high)))
        uri = png_uri(_cells(rgb, np.zeros(seconds.shape, bool)))
        made.append(MapPicture("seconds per block", uri, aspect, words, scale))
    return tuple(made)


def column_states(states: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(y, x): the worst state along z."""
    return np.asarray(states.max(axis=0), np.uint8)


def column_means(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """(y, x): the mean of the seconds that are known along z, NaN where none is."""
    known = np.isfinite(seconds)
    counts = known.sum(axis=0)
    sums = np.where(known, seconds, 0.0).sum(axis=0)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _cells(colours: Bytes, crossed: NDArray[np.bool_]) -> Bytes:
    """RGBA, each entry a square cell with a clear edge, if there is room for one; crossed cells bear a dark cross."""
    step = -(-max(crossed.shape) // LARGEST_MAP_PX)
    colours, crossed = colours[::step, ::step], crossed[::step, ::step]
    cell = min(LARGEST_CELL_PX, max(1, LARGEST_MAP_PX // max(crossed.shape)))
    pixels = np.dstack([colours, np.full(crossed.shape, 255, np.uint8)]).repeat(cell, axis=0).repeat(cell, axis=1)
    if cell >= 4:
        gap = max(1, cell // 16)
        pixels[np.arange(pixels.shape[0]) % cell >= cell - gap, :, 3] = 0
        pixels[:, np.arange(pixels.shape[1]) % cell >= cell - gap, 3] = 0
        cross = np.eye(cell, dtype=bool) | np.eye(cell, dtype=bool)[::-1]
        pixels[np.kron(crossed, cross) & (pixels[..., 3] > 0), :3] = 30
    return pixels


def hex_colour(colour: tuple[float, ...]) -> str:
    """The colour as the page writes it."""
    return "#" + "".join(f"{round(part):02x}" for part in colour)


class Bar(NamedTuple):
    """One run: where it begins and how long it is in percent of the axis; `state` as that of a StageRun."""

    left: float
    width: float
    state: str
    note: str


class Row(NamedTuple):
    """The runs of one stage, and their run time."""

    stage: str
    bars: tuple[Bar, ...]
    note: str


class Timeline(NamedTuple):
    """All rows, ticks of the axis (percent, text), and when it begins."""

    rows: tuple[Row, ...]
    ticks: tuple[tuple[float, str], ...]
    begin: str


@dataclass(frozen=True)
class _TimeAxis:
    """Periods in which something ran, one after another; between them a break of fixed width, however long it was."""

    periods: tuple[tuple[float, float], ...]

    @property
    def _break_s(self) -> float:
        return BREAK_SHARE * sum(end - begin for begin, end in self.periods)

    @property
    def length_s(self) -> float:
        """Length of the axis in s: all periods and the breaks between them."""
        busy = sum(end - begin for begin, end in self.periods)
        return busy + self._break_s * (len(self.periods) - 1)

    def percent(self, moment: float) -> float:
        """The position of a moment of a period on the axis."""
        before = 0.0
        for begin, end in self.periods:
            if moment <= end:
                return 100.0 * (before + max(moment - begin, 0.0)) / self.length_s
            before += end - begin + self._break_s
        return 100.0

    def ticks(self) -> tuple[tuple[float, str], ...]:
        """Round times since the start; after a break, the time at which the next period began."""
        begin, end = self.periods[0]
        step = next((s for s in STEPS_S if self.length_s / s <= 8), STEPS_S[-1])
        first = [(self.percent(begin + s), duration(s) if s else "0") for s in range(0, int(end - begin) + 1, step)]
        later = [(self.percent(b), f"‖ {duration(b - begin)}") for b, _ in self.periods[1:]]
        kept: list[tuple[float, str]] = []
        for tick in [*first, *later]:
            if kept and tick[0] - kept[-1][0] < LEAST_TICK:
                kept.pop()  # a later period is marked rather than a round time before it
            kept.append(tick)
        return tuple(kept)


def timeline(stages: Sequence[StageRecord], now: float) -> Timeline | None:
    """The timeline of all runs, the newest of each stage if there are many; None if nothing ran.

    A run without an outcome is in progress at `now`, or was killed: its bar is drawn to there.
    """
    started = [(record.stage, record.runs[-MOST_RUNS:]) for record in stages if record.runs]
    if not started:
        return None
    axis = _TimeAxis(busy_periods([(run.started, _end(run, now)) for _, runs in started for run in runs]))
    rows = tuple(Row(stage, tuple(_bar(run, axis, now) for run in runs), _run_time(runs)) for stage, runs in started)
    begun = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(axis.periods[0][0]))
    return Timeline(rows, axis.ticks(), begun)


def busy_periods(runs: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Periods (begin, end) in which runs follow each other without a long pause: one much longer than all runs last."""
    long_s = LONG_PAUSE_SHARE * sum(end - begin for begin, end in runs)
    periods: list[tuple[float, float]] = []
    for begin, end in sorted(runs):
        if periods and begin - periods[-1][1] <= max(long_s, 1.0):
            periods[-1] = (periods[-1][0], max(periods[-1][1], end))
        else:
            periods.append((begin, max(end, begin + 1e-3)))
    return tuple(periods)


def _end(run: StageRun, now: float) -> float:
    return run.started + run.seconds if run.seconds is not None else max(now, run.started)


def _bar(run: StageRun, axis: _TimeAxis, now: float) -> Bar:
    left = min(axis.percent(run.started), 100.0 - LEAST_BAR)
    width = max(axis.percent(_end(run, now)) - left, LEAST_BAR)
    lasted = duration(run.seconds) if run.seconds is not None else "no end recorded"
    ended = {"done": "done", "failed": f"exit code {run.exit_code}", "stopped": "stopped", "going": "no outcome yet"}
    return Bar(left, min(width, 100.0 - left), run.state, f"{run.stage}: {ended[run.state]}, {lasted}")


def _run_time(runs: Sequence[StageRun]) -> str:
    total = duration(sum(run.seconds for run in runs if run.seconds is not None))
    return total if len(runs) == 1 else f"{total} in {len(runs)} runs"
