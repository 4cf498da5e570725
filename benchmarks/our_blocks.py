"""lsdflow's side of the block benchmarks: what committing a block costs, and how soon a run resumes."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from block_clock import span_s
from serving import MEMORY, Timed, Work


def blocks_done(folder: Path) -> Work:
    """Tiny blocks with a durable mark each, two workers; on the disk where temporary files are."""
    return _blocks_done(folder, folder / "own-blocks")


def blocks_done_in_memory(folder: Path) -> Work:
    """The same in memory, where a durable write takes no time."""
    return _blocks_done(folder, MEMORY / f"lsdflow-bench-{os.getpid()}")


def _blocks_done(folder: Path, place: Path) -> Work:
    from lsdflow_ticks.stage import block_task, experiment_of, run

    blocks = _work(folder)["blocks"]

    def work() -> Any:
        shutil.rmtree(place, ignore_errors=True)
        experiment = experiment_of(place, blocks)
        run(experiment)
        made = Timed(block_task(experiment).marks.count_done(), span_s(place))
        shutil.rmtree(place)
        return made

    return work


def resumed(folder: Path) -> Work:
    """A run that resumes lists the blocks that are finished, and those that are not."""
    from lsdflow_runtime.store import packed_marks
    from lsdflow_runtime.store.done_marks import DoneMarks

    finished, size = _work(folder)["finished"], packed_marks.PACK_BLOCKS
    marks = DoneMarks(folder / "own-resume" / "stage" / "key")
    packs = packed_marks.MarkPacks(marks.folder / "packed")
    for begin in range(0, finished, size):
        numbers = range(begin, min(begin + size, finished))
        packs.add(begin // size, {n: _record(n) for n in numbers})

    def work() -> Any:
        packed_marks._numbers.cache_clear()
        done = marks.done()
        pending = [number for number in range(finished) if number not in done]
        return finished - len(pending)

    return work


def _record(number: int) -> dict[str, Any]:
    """What is kept of a block with one array."""
    checksum = f"{number * 0x9E3779B97F4A7C15 % 2**64:016x}" * 4
    known = {"seconds": 1.5, "finished": 1.8e9 + number, "host": "node", "job": "1234", "peak_rss_mib": 512.0}
    return {"block": number, "checksums": {"affs": checksum}, "facts": {"voxels": 2097152}, **known}


def _work(folder: Path) -> dict[str, int]:
    return dict(json.loads((folder / "work.json").read_text()))
