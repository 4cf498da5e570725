"""daisy's sides of the comparisons of blocks: its own scheduler and workers, two of them, without lsdflow."""

from __future__ import annotations

import functools
import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from block_clock import span_s, tick
from serving import MEMORY, Timed, Work


def daisy_marked(folder: Path) -> Work:
    """Tiny blocks; the function of a block leaves a durable mark, as one does who needs to know what is done."""
    return _blocks_done(folder, folder / "daisy-blocks", _tick_and_mark, tracked=False)


def daisy_tracked_in_memory(folder: Path) -> Work:
    """Tiny blocks with daisy's own done marks: a byte in a mapped file for each, not flushed to the disk."""
    return _blocks_done(folder, MEMORY / f"daisy-bench-{os.getpid()}", _tick, tracked=True)


def daisy_resumed(folder: Path) -> Work:
    """A run of which daisy's own marks say that all blocks are done."""
    import numpy as np

    place, blocks = folder / "daisy-resume", _work(folder)["finished"]
    first_alone = np.ones(blocks, np.uint8)
    first_alone[0] = 0
    place.mkdir()
    _run(place, blocks, functools.partial(_tick, place), tracked=True, skip_mask=first_alone)
    marks = place / "marks" / "done" / "c" / "0"
    marks.write_bytes(marks.read_bytes()[:1] * blocks)
    return lambda: _run(place, blocks, functools.partial(_tick, place), tracked=True)


def _blocks_done(folder: Path, place: Path, act: Callable[..., None], *, tracked: bool) -> Work:
    blocks = _work(folder)["blocks"]

    def work() -> Any:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        made = Timed(_run(place, blocks, functools.partial(act, place), tracked=tracked), span_s(place))
        shutil.rmtree(place)
        return made

    return work


def _run(place: Path, blocks: int, process: Callable[[Any], None], *, tracked: bool, **more: Any) -> int:
    import daisy
    import daisy.logging

    daisy.logging.set_log_basedir(str(place / "logs"))
    unit = daisy.Roi((0,), (1,))
    task = daisy.Task(
        "blocks",
        total_roi=daisy.Roi((0,), (blocks,)),
        read_roi=unit,
        write_roi=unit,
        process_function=process,
        read_write_conflict=False,
        max_workers=2,
        **({"tracking_path": str(place / "marks")} if tracked else {}),
        **more,
    )
    states = daisy.run_blockwise(task, progress=False, summary=False, host="127.0.0.1", return_states=True)
    return int(states["blocks"].completed_count)


def _tick(place: Path, block: Any) -> None:
    del block
    tick(place)


def _tick_and_mark(place: Path, block: Any) -> None:
    """A file by rename, flushed, and its folder: what remains after a loss of power."""
    tick(place)
    number = int(block.write_roi.offset[0])
    partial = place / f"{uuid.uuid4().hex}.partial"
    with partial.open("w") as file:
        json.dump({"block": number, "square": number**2}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(place / f"{number}.json")
    descriptor = os.open(place, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _work(folder: Path) -> dict[str, int]:
    return dict(json.loads((folder / "work.json").read_text()))
