"""repair: make again exactly what is broken.

0. metadata of the stage's arrays are written again where they are lost or damaged
1. packs of done marks that cannot be read are removed: the marks in them are lost
2. every done mark is compared with what it stands for: arrays and rows, of all blocks
3. the marks of blocks that differ are taken back, and so are marks that cannot be read
4. the stage's own run does these blocks again; block functions are pure, so the bits are those from before the damage.
   It tries blocks again that failed and were accepted

What later stages made of undamaged data stays valid: the identity of the result does not change.
"""

from __future__ import annotations

import logging
from typing import Any

from lsdflow_command.progress import Progress
from lsdflow_contract.errors import BadData, StageError
from lsdflow_runtime.block_task import BlockTask
from lsdflow_runtime.verify import damaged_parts

LOG = logging.getLogger("lsdflow.repair")
LISTED = 20


def take_back_broken(task: BlockTask) -> dict[str, Any]:
    """Take back the marks of finished blocks whose data is lost or damaged; facts of what was found.

    Raises NotOurs (73) for outputs of other work, before anything is changed.
    """
    _restore_metadata(task)
    task.create_outputs()
    lost = task.marks.take_back_damaged(len(task.plan))
    broken = {number: ["lost done mark: the pack that held it is damaged"] for number in sorted(lost)}
    different = _broken(task, sorted(task.marks.done()))
    task.marks.take_back(*different)
    broken |= different
    for number, parts in broken.items():
        LOG.warning("%s is made again: %s", task.plan.block(number), "; ".join(parts))
    listed = {str(number): "; ".join(parts) for number, parts in list(broken.items())[:LISTED]}
    return {"blocks": len(task.plan), "broken": len(broken), "parts": listed}


def _restore_metadata(task: BlockTask) -> None:
    """Write lost or damaged metadata of arrays again, if done marks say that the arrays are of this work.

    The voxels are compared with the marks afterwards.
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
