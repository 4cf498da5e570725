"""What a pass will do, write and take, before or while it runs.

plan_task             blocks, voxels, bytes, and what the blocks that are done have taken
describe_outputs,     what a pass would leave, without voxels: metadata and a manifest in `Experiment.descriptions`, a
describe_manifest     folder of its own, for the stages that are planned next with the same functions as on real results
measure_block         the block in the middle of the volume, done into a folder that is thrown away

A measurement reads the inputs of the experiment. All that it writes (arrays, rows, done marks) goes to the folder, so
the experiment stays as it is; rows go to a files store there, also where the experiment's own store is MongoDB. The
block beside it goes first (where there is only one block: the same one), because it pays for compiling and for the
start of the device.
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
from lsdflow_contract.errors import InternalError, OutputConflict
from lsdflow_contract.experiment import StoreTable
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.engine.block_task import BlockTask, outputs_of
from lsdflow_runtime.engine.blockwise import block_runner

# Records that a mean is made of: spread over all that there are.
SAMPLED_RECORDS = 1000
DESCRIBED = "described"
# Ids shrink to a twentieth of their 8 bytes; grey values and affinities hardly.
ID_BYTES_PER_VOXEL = 8 / 20
PROCESS_IO = Path("/proc/self/io")


def plan_task(task: BlockTask) -> dict[str, Any]:
    """What a run would do: blocks, bytes of the outputs."""
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
    """What finished blocks have taken, of at most a thousand records; empty if none is finished."""
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
    """Bytes that the arrays of a pass will take on the disk, as those of other volumes did."""
    return sum(_bytes_per_voxel(output.spec) * output.box.size for output in task.outputs.values())


def _bytes_per_voxel(spec: ArraySpec) -> float:
    return ID_BYTES_PER_VOXEL if spec.dtype == "uint64" else max(1, spec.channels) * np.dtype(spec.dtype).itemsize


def describe_outputs(task: BlockTask) -> None:
    """Make the arrays of a pass without any chunk."""
    _require_descriptions(task)
    for output in task.outputs.values():
        output.create(task.provenance())
        output.write_groups()


def describe_manifest(passes: Sequence[BlockTask]) -> None:
    """Write the manifest that the passes would leave, as far as it is known before a run."""
    task = passes[-1]
    _require_descriptions(task)
    Manifest(
        writer=Writer.of(task.stage),
        key=task.key,
        config=dict(task.config),
        inputs=dict(task.inputs),
        outputs=outputs_of(passes),
        facts={"bytes_expected": expected_bytes(task)},
        identity=f"{DESCRIBED} {task.key}",
    ).write(task.experiment.layout)


def _require_descriptions(task: BlockTask) -> None:
    """InternalError (70) in the experiment's own folder, where descriptions would be taken for results."""
    if task.experiment.descriptions is None:
        raise InternalError("descriptions belong into a folder of their own", where=task.experiment.layout.root)


def measure_block(task: BlockTask, folder: Path) -> dict[str, Any]:
    """Seconds, bytes, files and memory of one block; `folder` is left with what was written.

    Raises OutputConflict (73) for a folder that holds something, and what the block itself raises.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise OutputConflict(
            "the folder of the measurement is not empty", where=folder, fix="name one that does not exist"
        )
    elsewhere = _written_to(task, folder)
    elsewhere.create_outputs()
    first, number = blocks_to_measure(task.plan)
    started = time.monotonic()
    with block_runner(elsewhere) as do_block:
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
    """A block that warms up, and the one to measure: in the middle. Where there is only one block they are the same."""
    (z, y, x), (_, ny, nx) = (tuple((n - 1) // 2 for n in plan.grid_shape), plan.grid_shape)
    number = (z * ny + y) * nx + x
    return min(number + 1, len(plan) - 1), number


def _written_to(task: BlockTask, folder: Path) -> BlockTask:
    """The same pass, which writes everything into the folder."""
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
    """What this process has read so far, from disk or from pages in memory; None if the kernel does not report it."""
    try:
        lines = PROCESS_IO.read_text(encoding="ascii").splitlines()
        return int(next(line for line in lines if line.startswith("rchar")).partition(":")[2])
    except (OSError, StopIteration, ValueError):
        return None


def _core_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
