"""The plan of a pass: blocks, bytes and time, before or during a run.

plan_task             blocks, voxels, bytes, and time and memory of the finished blocks
describe_outputs,     the outputs of a pass without voxels: metadata and a manifest in `Experiment.descriptions`, a
describe_manifest     separate folder, from which later stages are planned with the same functions as for real results
measure_block         the block in the middle of the volume, computed into a temporary folder

A measurement reads the inputs of the experiment. All its output (arrays, rows, done marks) is written to the folder, so
the experiment is not changed; rows are written to a files store there, even if the experiment's store is MongoDB. A
neighbouring block is computed first (with only one block, the same one), because it includes the time for compiling
and for starting the device.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lsdflow_contract.arrays import ArraySpec
from lsdflow_contract.errors import OutputConflict
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.engine.block_task import BlockTask, outputs_of
from lsdflow_runtime.engine.blockwise import block_runners
from lsdflow_runtime.store.stores import FilesStore

# Number of records for a mean, spread over all records.
SAMPLED_RECORDS = 1000
DESCRIBED = "described"
# Ids compress to a twentieth of their 8 bytes; grey values and affinities hardly compress.
ID_BYTES_PER_VOXEL = 8 / 20
PROCESS_IO = Path("/proc/self/io")


def plan_task(task: BlockTask) -> dict[str, Any]:
    """The plan of a pass: blocks, and bytes of the outputs."""
    bytes_out = sum(
        max(1, o.spec.channels) * o.box.size * (8 if o.spec.dtype == "uint64" else 1) for o in task.outputs.values()
    )
    read = sum(block.read.size for block in task.plan.blocks())
    return {
        "blocks": len(task.plan),
        "block_shape_vox": list(task.plan.write_shape_vox),
        "context_vox": list(task.plan.context_vox),
        "voxels": task.plan.total.size,
        "voxels_read_with_context": read,
        "bytes_out_uncompressed": bytes_out,
        "blocks_done": len(task.marks.done()),
        "taken": taken_by_blocks(task),
        "key": task.key,
    }


def taken_by_blocks(task: BlockTask) -> dict[str, Any]:
    """Time and memory of finished blocks, from at most a thousand records; empty if none is finished."""
    done = sorted(task.marks.done())
    sample = done[:: max(1, -(-len(done) // SAMPLED_RECORDS))]
    records = [task.marks.record(number) for number in sample]
    if not records:
        return {}
    return {
        "records": len(records),
        "seconds_per_block": float(np.mean([r["seconds"] for r in records])),
        "peak_rss_mib": max(r["peak_rss_mib"] for r in records),
        "hosts": sorted({str(r.get("host", "")) for r in records})[:10],
    }


def expected_bytes(task: BlockTask) -> float:
    """Expected bytes of the arrays of a pass on disk, from the compression of other volumes."""
    return sum(_bytes_per_voxel(output.spec) * output.box.size for output in task.outputs.values())


def _bytes_per_voxel(spec: ArraySpec) -> float:
    return ID_BYTES_PER_VOXEL if spec.dtype == "uint64" else max(1, spec.channels) * np.dtype(spec.dtype).itemsize


def describe_outputs(task: BlockTask) -> None:
    """Create the arrays of a pass without any chunk."""
    for output in task.outputs.values():
        output.create(task.provenance())
        output.write_groups()


def describe_manifest(passes: Sequence[BlockTask]) -> None:
    """Write the manifest of the passes, as far as it is known before a run."""
    task = passes[-1]
    Manifest(
        writer=Writer.of(task.stage),
        key=task.key,
        config=dict(task.config),
        inputs=dict(task.inputs),
        outputs=outputs_of(passes),
        facts={"bytes_expected": expected_bytes(task)},
        identity=f"{DESCRIBED} {task.key}",
    ).write(task.layout)


def measure_block(task: BlockTask, folder: Path) -> dict[str, Any]:
    """Seconds, bytes, files and memory of one block, whose output is written to `folder`.

    Raises OutputConflict (73) if the folder is not empty, and the errors of the block.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise OutputConflict(
            "the folder of the measurement is not empty", where=folder, fix="name one that does not exist"
        )
    elsewhere = _written_to(task, folder)
    elsewhere.create_outputs()
    first, number = blocks_to_measure(task.plan)
    started = time.monotonic()
    with block_runners(elsewhere) as (do_block,):
        facts: dict[str, Any] = {"seconds_to_open": time.monotonic() - started}
        files, size = _on_disk(folder)
        facts["seconds_of_first_block"] = _seconds_of(do_block, first)
        if first == number:
            elsewhere.marks.remove_all()
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
    """A block for warming up, and the one in the middle to measure; the same if there is only one block."""
    (z, y, x), (_, ny, nx) = (tuple((n - 1) // 2 for n in plan.grid_shape), plan.grid_shape)
    number = (z * ny + y) * nx + x
    return min(number + 1, len(plan) - 1), number


def _written_to(task: BlockTask, folder: Path) -> BlockTask:
    """The same pass with all output in `folder`."""
    layout = ExperimentLayout(folder)
    outputs = {name: replace(output, path=folder / output.path.name) for name, output in task.outputs.items()}
    return replace(task, store=FilesStore(layout.store), layout=layout, outputs=outputs)


def _seconds_of(do_block: Callable[[int], None], number: int) -> float:
    started = time.monotonic()
    do_block(number)
    return time.monotonic() - started


def _on_disk(folder: Path) -> tuple[int, int]:
    """Number of files, and their bytes, in the folder."""
    sizes = [path.stat().st_size for path in folder.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


def _bytes_read() -> int | None:
    """Bytes that this process has read so far, from disk or page cache; None if the kernel does not report it."""
    try:
        lines = PROCESS_IO.read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("rchar")).partition(":")[2])
    except (OSError, StopIteration, ValueError):
        return None


def _core_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
