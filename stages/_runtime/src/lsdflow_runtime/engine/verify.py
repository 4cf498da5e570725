"""verify checks that every block of a finished stage is complete, bit for bit; repair recomputes the others.

verify
    1. the manifest names this pass (key) and the checksums in the done marks (identity)
    2. every block has a done mark, or is a hole listed in the manifest (an accepted failed block)
    3. the arrays of every block are read back and hashed against its mark (compute.verify_fraction of the blocks)
    4. the rows (graph, overlaps) of these blocks are read back and hashed as well

repair
    0. missing or damaged metadata of the stage's arrays are written again
    1. unreadable packs of done marks are removed, together with the marks in them
    2. arrays and rows of all blocks are compared with their done marks
    3. the marks of blocks that differ are removed, and so are unreadable marks
    4. a run of the stage processes these blocks again; block functions are pure, so the bits are the same as before the
       damage. It also retries accepted failed blocks

Results of later stages from undamaged data remain valid, because the identity of the result does not change.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from lsdflow_command.progress import Progress
from lsdflow_contract.errors import BadData, OutputConflict, StageError
from lsdflow_contract.failed_blocks import FAILED_BLOCKS, missing_in_result, own_failed_blocks
from lsdflow_contract.graph import NODES_COLLECTION, edges_collection, overlaps_collection
from lsdflow_contract.hashing import hash_of_array
from lsdflow_contract.manifest import Manifest, read_manifest
from lsdflow_runtime.blocks import Block
from lsdflow_runtime.engine.accepted_failures import recorded_numbers
from lsdflow_runtime.engine.block_task import BlockTask
from lsdflow_runtime.engine.blockwise import require_all_done
from lsdflow_runtime.io.volumes import Volume
from lsdflow_runtime.store.rag_store import checksum_of_edges, checksum_of_nodes, checksum_of_overlaps

LOG = logging.getLogger("lsdflow.repair")
LISTED = 10


def verify_task(task: BlockTask) -> dict[str, Any]:
    """Check a finished stage; returns facts of what was checked.

    Raises MissingInput (66) if the stage has not finished, OutputConflict (73) for the results of other settings or
    inputs, BlocksFailed (79) for blocks without a done mark that the manifest does not list as failed, BadData (65)
    naming every block whose data is missing or damaged.
    """
    manifest = read_manifest(task.layout, task.stage)
    require_made(task, manifest.key)
    failed = own_failed_blocks(manifest)
    records = _records(task, [block.block for block in missing_in_result(manifest)])
    _require_identity(task, manifest, records)
    checked = _read_back(task, records)
    holes = {FAILED_BLOCKS: list(map(str, failed))} if failed else {}
    return {
        "blocks": len(task.plan),
        "blocks_read_back": checked,
        "identity": manifest.identity,
        "verified": True,
        **holes,
    }


def require_made(task: BlockTask, current: str) -> None:
    """Raise OutputConflict (73) if the current result, of key `current`, has other settings."""
    if current not in ("", task.key):
        raise OutputConflict(
            "the results were made with other parameters or inputs",
            where=task.layout.manifest(task.stage),
            wanted=f"key {task.key[:12]}",
            found=f"key {current[:12]}",
            fix=f"run: {task.stage} run, or restore the earlier settings",
        )


def verify_blocks(task: BlockTask) -> int:
    """Check the blocks of a pass without its own manifest; returns how many were read. Raises as verify_task."""
    return _read_back(task, _records(task, recorded_numbers(task)))


def damaged_parts(task: BlockTask, record: Mapping[str, Any], block: Block, opened: Mapping[str, Volume]) -> list[str]:
    """The parts of one block that differ from its done mark; empty if none does."""
    return [what for what, found in _checksums(task, block, opened, record) if found != record["checksums"].get(what)]


def _records(task: BlockTask, accepted: Collection[int] = ()) -> dict[int, dict[str, Any]]:
    require_all_done(task, accepted=accepted)
    return task.marks.records()


def _require_identity(task: BlockTask, manifest: Manifest, records: Mapping[int, Mapping[str, Any]]) -> None:
    identity = task.identity(records)
    if identity != manifest.identity:
        raise BadData(
            "the manifest and the done marks do not belong together",
            where=task.layout.manifest(task.stage),
            wanted=manifest.identity[:12],
            found=identity[:12],
            fix=f"run {task.stage} again: what is done is not done again",
        )


def _read_back(task: BlockTask, records: Mapping[int, Mapping[str, Any]]) -> int:
    opened = {name: output.open() for name, output in task.outputs.items()}
    step = max(1, round(1 / task.compute.verify_fraction))
    numbers = sorted(records)[::step]
    problems: list[str] = []
    with Progress(f"verify {task.stage}", total=len(numbers), unit="block") as progress:
        for number in numbers:
            block = task.plan.block(number)
            problems += [f"{block}: {what}" for what in damaged_parts(task, records[number], block, opened)]
            progress.advance()
    if problems:
        raise BadData(
            f"parts of blocks of {task.stage} are lost or damaged: {len(problems)}",
            where=", ".join(str(output.folder) for output in task.outputs.values()) or task.layout.store,
            found="; ".join(problems[:LISTED]) + ("; ..." if len(problems) > LISTED else ""),
            fix="recompute them: lsdflow repair EXPERIMENT",
        )
    return len(numbers)


def _checksums(
    task: BlockTask, block: Block, opened: Mapping[str, Volume], record: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    for name, volume in sorted(opened.items()):
        yield name, _array_checksum(volume, block)
    for name in sorted(set(record["checksums"]) - set(opened)):
        yield name, _rows_checksum(task, name, block)


def _array_checksum(volume: Volume, block: Block) -> str:
    try:
        return hash_of_array(volume.read(block.write))
    except StageError as error:
        return error.what


def _rows_checksum(task: BlockTask, name: str, block: Block) -> str:
    try:
        store, of_overlaps, of_edges = task.rag_store, overlaps_collection(""), edges_collection("")
        if name == NODES_COLLECTION:
            return checksum_of_nodes(store.read_nodes(task.key, block.number))
        if name.startswith(of_overlaps):
            overlaps = store.read_overlaps(task.key, name.removeprefix(of_overlaps), block.number)
            return checksum_of_overlaps(overlaps)
        return checksum_of_edges(store.read_edges(task.key, name.removeprefix(of_edges), block.number))
    except StageError as error:
        return error.what


def invalidate_damaged(task: BlockTask) -> dict[str, Any]:
    """Remove the marks of finished blocks whose data is missing or damaged; returns facts of what was found.

    Raises OutputConflict (73) for outputs of another program, before anything is changed.
    """
    _restore_metadata(task)
    task.create_outputs()
    lost = task.marks.remove_damaged(len(task.plan))
    broken = {number: ["lost done mark: the pack that held it is damaged"] for number in sorted(lost)}
    different = _broken(task, sorted(task.marks.done()))
    task.marks.remove(*different)
    broken |= different
    for number, parts in broken.items():
        LOG.warning("%s is computed again: %s", task.plan.block(number), "; ".join(parts))
    listed = {str(number): "; ".join(parts) for number, parts in list(broken.items())[:LISTED]}
    return {"blocks": len(task.plan), "broken": len(broken), "parts": listed}


def _restore_metadata(task: BlockTask) -> None:
    """Write missing or damaged metadata of arrays again, if done marks show that the arrays are of this pass.

    Afterwards the voxels are compared with the marks.
    """
    try:
        begun = bool(task.marks.done())
    except BadData:
        begun = True
    if begun:
        for output in task.outputs.values():
            output.restore_metadata(task.provenance())


def _broken(task: BlockTask, done: list[int]) -> dict[int, list[str]]:
    opened = {name: output.open() for name, output in task.outputs.items()}
    found: dict[int, list[str]] = {}
    with Progress(f"repair {task.stage}", total=len(done), unit="block") as progress:
        for number in done:
            try:
                record = task.marks.record(number)
                parts = damaged_parts(task, record, task.plan.block(number), opened)
            except (StageError, KeyError, TypeError) as error:
                parts = [f"damaged done mark: {error}"]
            if parts:
                found[number] = parts
            progress.advance()
    return found
