"""Pictures of block maps: blocks seen along z, a cell for each column; what became of them, and how long they took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_evaluate.report.content import duration
from lsdflow_evaluate.report.figures import png_uri
from lsdflow_evaluate.report.records import BlockMap, BlockState

COLOURS = {
    BlockState.DONE: (47, 158, 110),
    BlockState.RETRIED: (224, 165, 38),
    BlockState.MISSING: (138, 145, 152),
    BlockState.FAILED: (212, 58, 47),
}
NAMES = {
    BlockState.DONE: "done",
    BlockState.RETRIED: "done, tried again",
    BlockState.MISSING: "missing",
    BlockState.FAILED: "failed",
}
FAST, SLOW = np.array([214.0, 229.0, 245.0]), np.array([14.0, 60.0, 128.0])
LARGEST_PX = 720
LARGEST_CELL_PX = 48

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class MapPicture:
    """A map as a `data:` address with its width / height, its words for those who do not see it, and its legend."""

    title: str
    uri: str
    aspect: float
    alt: str
    legend: tuple[tuple[str, str], ...]


def map_pictures(blocks: BlockMap) -> tuple[MapPicture, ...]:
    """What became of the blocks; and their seconds, if some are known."""
    states = column_states(blocks.states)
    counts = {state: blocks.count(state) for state in NAMES}
    told = ", ".join(f"{count:,} {NAMES[state]}" for state, count in counts.items() if count)
    legend = tuple((_hex(COLOURS[s]), f"{n:,} {NAMES[s]}") for s, n in counts.items() if n)
    made = [MapPicture("what became of them", _states_uri(states), _aspect(blocks), told, legend)]
    seconds = column_means(blocks.seconds)
    known = seconds[np.isfinite(seconds)]
    if known.size:
        low, high = float(known.min()), float(known.max())
        words = f"mean seconds per block along z, from {duration(low)} to {duration(high)}"
        scale = ((_hex(tuple(FAST)), duration(low)), (_hex(tuple(SLOW)), duration(high)))
        made.append(MapPicture("seconds per block", _seconds_uri(seconds), _aspect(blocks), words, scale))
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


def _states_uri(states: NDArray[np.uint8]) -> str:
    palette = np.array([COLOURS[state] for state in sorted(COLOURS)], np.uint8)
    return png_uri(_cells(palette[states], states == BlockState.FAILED))


def _seconds_uri(seconds: NDArray[np.float64]) -> str:
    known = np.isfinite(seconds)
    low, high = float(seconds[known].min()), float(seconds[known].max())
    share = np.where(known, (seconds - low) / max(high - low, 1e-9), 0.0)[..., None]
    rgb = np.where(known[..., None], FAST + share * (SLOW - FAST), 150.0)
    return png_uri(_cells(rgb.round().astype(np.uint8), np.zeros(seconds.shape, bool)))


def _cells(colours: Bytes, crossed: NDArray[np.bool_]) -> Bytes:
    """RGBA, each entry a square cell with a clear edge, if there is room for one; crossed cells bear a dark cross."""
    step = -(-max(crossed.shape) // LARGEST_PX)
    colours, crossed = colours[::step, ::step], crossed[::step, ::step]
    cell = min(LARGEST_CELL_PX, max(1, LARGEST_PX // max(crossed.shape)))
    pixels = np.dstack([colours, np.full(crossed.shape, 255, np.uint8)]).repeat(cell, axis=0).repeat(cell, axis=1)
    if cell >= 4:
        gap = max(1, cell // 16)
        pixels[np.arange(pixels.shape[0]) % cell >= cell - gap, :, 3] = 0
        pixels[:, np.arange(pixels.shape[1]) % cell >= cell - gap, 3] = 0
        cross = np.eye(cell, dtype=bool) | np.eye(cell, dtype=bool)[::-1]
        pixels[np.kron(crossed, cross) & (pixels[..., 3] > 0), :3] = 30
    return pixels


def _aspect(blocks: BlockMap) -> float:
    _, rows, columns = blocks.states.shape
    _, height, width = blocks.block_shape_vox
    return float(columns * width / (rows * height))


def _hex(colour: tuple[float, ...]) -> str:
    return "#" + "".join(f"{round(part):02x}" for part in colour)
