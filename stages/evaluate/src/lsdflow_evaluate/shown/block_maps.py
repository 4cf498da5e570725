"""The blocks of a stage on their grid: which are done, were tried again, failed or are missing, and their seconds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from lsdflow_command.attempts import DONE, KEY_LETTERS, Attempt
from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import Manifest
from lsdflow_evaluate.report.records import BlockMap, BlockState, Taken
from lsdflow_runtime.blocks import BlockGrid, grid_of_manifest, read_grid
from lsdflow_runtime.store.done_marks import BlockStore
from lsdflow_runtime.store.stores import open_store

# Of more blocks than these, the times are those of an even sample.
MOST_RECORDS = 2000
MOST_BLOCKS = 4_000_000


def block_map(
    experiment: Experiment, stage: str, manifest: Manifest | None, attempts: Sequence[Attempt]
) -> BlockMap | None:
    """The map of the finished work, or else of the newest; None without blocks, or if their grid is not known."""
    try:
        store = open_store(experiment)
        keys = store.keys(stage)
        if not keys:
            return None
        key = shown_work(experiment, stage, manifest, keys)
        grid = read_grid(experiment, stage, key) or (grid_of_manifest(manifest) if manifest else None)
        if grid is None or math.prod(grid.shape) > MOST_BLOCKS:
            return None
        marks = store.blocks(stage, key)
        done, failed = marks.done(), marks.failed()
        seconds = _seconds(marks, done)
    except (StageError, OSError):
        return None
    again = {a.block for a in attempts if a.key == key[:KEY_LETTERS] and a.outcome != DONE}
    return map_of(grid, done, failed, again, seconds)


def shown_work(experiment: Experiment, stage: str, manifest: Manifest | None, keys: Sequence[str]) -> str:
    """Which of the stage's works is told of: the one its manifest names, or that has the manifest's number of blocks
    (evaluate has several, and names none); else the newest."""
    if manifest is None or manifest.key in keys:
        return manifest.key if manifest is not None else keys[-1]
    grids = {key: read_grid(experiment, stage, key) for key in keys}
    wanted = manifest.facts.get("blocks")
    fitting = [key for key, grid in grids.items() if grid is not None and math.prod(grid.shape) == wanted]
    return fitting[-1] if fitting else keys[-1]


def taken_by(attempts: Sequence[Attempt]) -> Taken:
    """What all attempts took, of every process on every machine; nothing if none is noted."""
    if not attempts:
        return Taken()
    return Taken(
        cpu_s=sum(a.cpu_s for a in attempts),
        peak_resident_bytes=max(a.peak_resident_bytes for a in attempts),
        read_bytes=sum(a.read_bytes for a in attempts),
        written_bytes=sum(a.written_bytes for a in attempts),
        gpu=next((a.gpu for a in reversed(attempts) if a.gpu), ""),
        gpu_bytes=max(a.gpu_bytes for a in attempts) or None,
    )


def map_of(
    grid: BlockGrid, done: Iterable[int], failed: Iterable[int], again: Iterable[int], seconds: Mapping[int, float]
) -> BlockMap:
    """The map from block numbers (row-major); `again`: an attempt at it did not end well."""
    blocks = math.prod(grid.shape)
    states = np.full(blocks, BlockState.MISSING, np.uint8)
    finished = _inside(done, blocks)
    states[finished] = BlockState.DONE
    tried = _inside(again, blocks)
    states[tried] = np.where(states[tried] == BlockState.DONE, BlockState.RETRIED, states[tried])
    states[_inside(failed, blocks)] = BlockState.FAILED
    times = np.full(blocks, np.nan)
    for number, taken in seconds.items():
        if number < blocks:
            times[number] = taken
    return BlockMap(states.reshape(grid.shape), times.reshape(grid.shape), grid.block_shape_vox)


def _inside(numbers: Iterable[int], blocks: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    found = np.fromiter(numbers, np.int64)
    return found[found < blocks]


def _seconds(marks: BlockStore, done: set[int]) -> dict[int, float]:
    numbers = sorted(done)
    sample = numbers[:: max(1, len(numbers) // MOST_RECORDS)]
    return {number: float(marks.record(number).get("seconds", math.nan)) for number in sample}
