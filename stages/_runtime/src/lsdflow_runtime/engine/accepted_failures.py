"""`compute.failed_blocks = "accept"`: the failed blocks with which a pass may finish, and their list in its manifest.

store/blocks/<stage>/<key>/failed_blocks.json      the blocks missing when the pass last ended; no file if none is

A hole is accepted if the block itself failed or lost its workers, but not if the cause concerns every block.
Passes that read the result of a pass with holes have another key than those that read a complete result (`result_key`).
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lsdflow_command.attempts import KEY_LETTERS, AttemptReader
from lsdflow_contract.errors import MissingInput, StageError
from lsdflow_contract.failed_blocks import FAILED_BLOCKS, FailedBlock
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.sealing import read_sealed, write_sealed
from lsdflow_runtime.engine.block_task import BlockTask
from lsdflow_runtime.io.target import target_grid

LOG = logging.getLogger("lsdflow.blocks")
# Errors that concern every block: stop at once instead of failing every block.
FATAL_CODES = {65, 66, 69, 73, 74, 75, 76, 77, 78}
# The message for a block whose process ended without a report.
LOST = "no worker came back from it: it crashed, ran out of memory, or its machine was lost"


def accepted_failures(task: BlockTask) -> tuple[FailedBlock, ...]:
    """The missing blocks of a pass that has ended, if all of them are accepted; otherwise none."""
    compute = task.compute
    if compute.failed_blocks == "stop" or not task.may_have_holes:
        return ()
    missing = missing_blocks(task)
    if not 0 < len(missing) <= compute.max_failed or len(missing) == len(task.plan):
        return ()
    causes = {number: _failure(task, number) for number in missing}
    lost = _lost_blocks(task)
    if not all(cause["exit_code"] not in FATAL_CODES if cause else n in lost for n, cause in causes.items()):
        return ()
    return tuple(_failed_block(task, number, str(cause.get("what", LOST))) for number, cause in causes.items())


def record_failures(task: BlockTask, failed: tuple[FailedBlock, ...]) -> None:
    """Record and log the missing blocks of a pass that has ended."""
    path = _record_path(task.layout, task.stage, task.key)
    if not failed:
        path.unlink(missing_ok=True)
        return
    write_sealed(path, {FAILED_BLOCKS: [block.model_dump(mode="json") for block in failed]})
    LOG.warning(
        "%s finishes without %d of %d blocks; later stages leave them out. The same command tries them again: %s",
        task.stage,
        len(failed),
        len(task.plan),
        "; ".join(map(str, failed)),
    )


def recorded_failures(layout: ExperimentLayout, stage: str, key: str) -> tuple[FailedBlock, ...]:
    """The missing blocks of the pass with this key when it last ended; none if that file is damaged."""
    with suppress(StageError, ValidationError):
        found = read_sealed(_record_path(layout, stage, key), f"run: {stage} run")[FAILED_BLOCKS]
        return tuple(FailedBlock.model_validate(block) for block in found)
    return ()


def recorded_numbers(task: BlockTask) -> set[int]:
    """Numbers of the recorded blocks."""
    return {failed.block for failed in recorded_failures(task.layout, task.stage, task.key)}


def failures_of_run(task: BlockTask, keys: Iterable[str]) -> tuple[FailedBlock, ...]:
    """The holes of a stage, as recorded at the end of its passes; `task` is the last pass."""
    before = [recorded_failures(task.layout, task.stage, key) for key in sorted({*keys} - {task.key})]
    last = recorded_failures(task.layout, task.stage, task.key)
    return (*(failed.model_copy(update={"part": ""}) for failed in last), *itertools.chain(*before))


def result_key(task: BlockTask) -> str:
    """The key of the result of a pass, for passes that read it: the pass key, unless blocks are missing."""
    missing = sorted(recorded_numbers(task))
    return hash_of([task.key, missing]) if missing else task.key


def missing_blocks(task: BlockTask) -> list[int]:
    """Numbers of the blocks without a done mark, ascending."""
    done = task.marks.done()
    return [number for number in range(len(task.plan)) if number not in done]


def _failure(task: BlockTask, number: int) -> Mapping[str, Any]:
    """The record of a failed block; empty if there is none."""
    try:
        return {"exit_code": 70, **task.marks.failure(number)}
    except MissingInput:
        return {}


def _lost_blocks(task: BlockTask) -> set[int]:
    """Blocks that a worker began and never finished."""
    reader = AttemptReader(task.layout.stage_runs(task.stage))
    reader.ended()
    return {attempt.block for attempt in reader.without_end() if attempt.key == task.key[:KEY_LETTERS]}


def _failed_block(task: BlockTask, number: int, why: str) -> FailedBlock:
    box = task.plan.block(number).write
    begin_nm = target_grid(task.layout).position_nm(box.begin_vox)
    place = {"begin_vox": box.begin_vox, "shape_vox": box.shape_vox, "begin_nm": begin_nm}
    return FailedBlock(stage=task.stage, part=task.label, block=number, **place, why=why)


def _record_path(layout: ExperimentLayout, stage: str, key: str) -> Path:
    return layout.store / "blocks" / stage / key / "failed_blocks.json"
