"""A measured block: the one in the middle of the volume is done into a throw-away folder, and what it took is told.

Inputs are those of the experiment; all that is written (arrays, rows, done marks) goes to the folder, so that the
experiment stays as it is. Rows go to a files store there, also where the experiment's own store is mongo.
The block beside it goes first (where there is only one block: itself): it pays for compiling and the device's start.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import NotOurs
from lsdflow_contract.experiment import StoreTable
from lsdflow_runtime.block_task import BlockTask
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.blockwise import block_runner

PROCESS_IO = Path("/proc/self/io")


def measure_block(task: BlockTask, folder: Path) -> dict[str, Any]:
    """Seconds, bytes, files and memory of one block; `folder` is left with what was written.

    Raises NotOurs (73) for a folder that holds something, and what the block itself raises.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise NotOurs("the folder of the measurement is not empty", where=folder, hint="name one that does not exist")
    elsewhere = _written_to(task, folder)
    elsewhere.create_outputs()
    first, number = blocks_to_measure(task.plan)
    started = time.monotonic()
    with block_runner(elsewhere) as do_block:
        facts: dict[str, Any] = {"seconds_to_open": time.monotonic() - started}
        files, size = _on_disk(folder)
        facts["seconds_of_first_block"] = _seconds_of(do_block, first)
        if first == number:
            elsewhere.marks.forget()
        else:
            files, size = _on_disk(folder)
        read, cores = _bytes_read(), _core_seconds()
        facts["seconds"] = _seconds_of(do_block, number)
        more_files, more = _on_disk(folder)
        now = _bytes_read()
    return {
        **facts,
        "block": number,
        "voxels": task.plan.block(number).write.size,
        "core_seconds": _core_seconds() - cores,
        "bytes_read": None if now is None or read is None else now - read,
        "bytes_written": more - size,
        "files": more_files - files,
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "host": socket.gethostname(),
    }


def blocks_to_measure(plan: BlockPlan) -> tuple[int, int]:
    """A block that warms up, and the one to measure: in the middle. Where there is only one block they are the same."""
    (z, y, x), (_, ny, nx) = (tuple((n - 1) // 2 for n in plan.grid_shape), plan.grid_shape)
    number = (z * ny + y) * nx + x
    return min(number + 1, len(plan) - 1), number


def _written_to(task: BlockTask, folder: Path) -> BlockTask:
    """The same work, of which everything that is written lies in the folder."""
    experiment = replace(task.experiment, path=folder / "experiment.toml", store=StoreTable(engine="files"))
    outputs = {name: replace(output, path=folder / output.path.name) for name, output in task.outputs.items()}
    return replace(task, experiment=experiment, outputs=outputs)


def _seconds_of(do_block: Callable[[int], None], number: int) -> float:
    started = time.monotonic()
    do_block(number)
    return time.monotonic() - started


def _on_disk(folder: Path) -> tuple[int, int]:
    """(files, bytes) below the folder."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


def _bytes_read() -> int | None:
    """What this process has read so far, from disk or from pages in memory; None if the kernel does not tell."""
    try:
        lines = PROCESS_IO.read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("rchar")).partition(":")[2])
    except (OSError, StopIteration, ValueError):
        return None


def _core_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
