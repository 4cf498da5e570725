"""Repairs a prepared volume: damaged blocks are computed again, and must be what they were.

1. Done marks that cannot be read are removed, and blocks that differ from their marks no longer count as done.
2. The blocks that are not done are computed again. One whose checksum is known is written only if it has that again.
3. The checksums of all blocks are then those of the manifest; otherwise a source has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from lsdflow_contract.errors import BadData, OutputConflict
from lsdflow_contract.hashing import hash_of_array
from lsdflow_contract.manifest import Manifest, remove_manifest
from lsdflow_prepare.config import PrepareConfig, without_paths
from lsdflow_prepare.volume_passes import STAGE, VolumePass
from lsdflow_runtime.blocks import Block
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput
from lsdflow_runtime.engine.blockwise import run_blocks
from lsdflow_runtime.engine.verify import invalidate_damaged

SOURCE_CHANGED = "bring the source back as it was, or make another volume from what it is now: prepare run"


def require_same_settings(table: PrepareConfig, manifest: Manifest, label: str, passes: list[VolumePass]) -> None:
    """Raise OutputConflict (73) if the table has changed, BadData (65) if the sources of the volume have changed."""
    if without_paths(manifest.config) != without_paths(table.model_dump(mode="json")):
        raise OutputConflict(
            "the volumes were made with other parameters",
            where=passes[0].container,
            fix=f"restore the earlier [{STAGE}] settings, or make other volumes with these: prepare run",
        )
    made, now = manifest.inputs.get(label, ""), passes[0].volume_key
    if made != now:
        raise BadData(
            f"a source of {label} is not what it was when the volume was made",
            where=passes[0].container,
            wanted=f"sources of key {made[:12]}",
            found=f"key {now[:12]}",
            fix=SOURCE_CHANGED,
        )


def repair_pass(label: str, task: VolumePass, manifest: Manifest) -> int:
    """Recompute the damaged blocks of a pass over the volume `label` in this process; returns their number.

    Raises BadData (65) if a source has other values now. A block with a known checksum is then not written. Blocks
    whose checksum is lost are known to differ only afterwards; they, and the manifest, no longer count as finished.
    """
    task.marks.remove_damaged(len(task.plan))
    wanted = _readable_records(task)
    invalidate_damaged(task)
    lost = sorted(set(range(len(task.plan))) - task.marks.done())
    compute = task.compute.model_copy(update={"runner": "serial"})
    checked = replace(task, compute=compute, open=lambda: _checked(task, wanted))
    try:
        run_blocks(checked)
    except BadData:
        # The next repair must still know what the block was.
        for number in set(lost) & set(wanted) - task.marks.done():
            task.marks.mark_done(number, wanted[number])
        raise
    made = manifest.facts["volumes"][label]["identity"]
    if task.identity(task.marks.records()) != made.get(task.content):
        task.marks.remove(*lost)
        remove_manifest(task.layout, STAGE, [manifest.key])
        raise _source_changed(task.label)
    return len(lost)


def _readable_records(task: VolumePass) -> dict[int, dict[str, Any]]:
    """The records of all blocks whose done mark can be read."""
    with suppress(BadData):
        return task.marks.records()
    records = {}
    for number in task.marks.done():
        with suppress(BadData):
            records[number] = task.marks.record(number)
    return records


@contextmanager
def _checked(task: VolumePass, wanted: Mapping[int, Mapping[str, Any]]) -> Iterator[BlockFunction]:
    """The block function of a pass, which refuses a block that differs from its record."""
    with task.open() as function:

        def process(block: Block) -> BlockOutput:
            """Convert one block; raises an error if its checksums differ from the recorded ones."""
            output = function(block)
            made = {name: hash_of_array(values) for name, values in output.arrays.items()}
            if block.number in wanted and made != wanted[block.number]["checksums"]:
                raise _source_changed(f"{task.label} {block.write}")
            return output

        yield process


def _source_changed(where: str) -> BadData:
    return BadData(
        "the sources do not give what they gave when the volume was made",
        where=where,
        wanted="the recorded checksums",
        found="other values",
        fix=SOURCE_CHANGED,
    )
