"""daisy 2 behind three functions: a coordinator with workers of its own, one that others join, and the worker's loop.

Each pass is a daisy.Task on the grid of voxels: the total ROI, the read and the write ROI of a block, and a mask of the
blocks that are done. Blocks do not conflict, because each writes only whole chunks of its own. Our own done marks say
what is done; those of daisy are not used.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lsdflow_command.console import start_logging
from lsdflow_command.interruption import leave_terminal_to_coordinator
from lsdflow_command.stage import load_stage
from lsdflow_contract.errors import Interrupted, StageError, rebuilt
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.files import read_json
from lsdflow_contract.geometry import Box
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.gate import LOOPBACK, keep_gate, make_key, read_key, remove_key
from lsdflow_runtime.quiet import daisy_warnings_logged
from lsdflow_runtime.rendezvous import (
    Notice,
    NoticeBoard,
    has_fatal,
    leave_fatal,
    leave_work,
    own_address,
    read_work,
)
from lsdflow_runtime.stopping import stopped_by_signals
from lsdflow_runtime.transient_errors import LOST_WORKER

if TYPE_CHECKING:
    import daisy

    from lsdflow_runtime.block_task import BlockTask

LOG = logging.getLogger("lsdflow.daisy")
ROUND_VARIABLE = "LSDFLOW_ROUND"
CONTEXT_VARIABLE = "DAISY_CONTEXT"
# Numbers of workers that daisy did not start itself begin here: outside its own range.
FIRST_JOINED_WORKER = 100_000


def run_with_daisy(task: BlockTask, done: Collection[int]) -> None:
    """Run the blocks that are not done in worker processes of this machine. Blocks that fail get no done mark.

    Raises the StageError that a worker found to concern every block.
    """
    with tempfile.TemporaryDirectory(prefix="lsdflow-") as scratch:
        folder = Path(scratch)
        leave_work(folder, task.key)
        os.environ[ROUND_VARIABLE] = scratch
        starter = _worker_starter(task.stage, task.experiment.path, task.experiment.overrides)
        workers = min(task.experiment.compute.workers, len(task.plan) - len(done))
        try:
            _serve(task, done, starter, workers=workers)
        finally:
            del os.environ[ROUND_VARIABLE]
        _raise_fatal(folder)


def lead_with_daisy(task: BlockTask, done: Collection[int]) -> None:
    """Hand out the blocks that are not done to workers of other jobs, which find this coordinator by its notice.

    daisy starts one process of ours; it does no block, but puts up the notice and keeps the gate while daisy listens.
    Raises the StageError that a worker found to concern every block.
    """
    board = NoticeBoard.of(task.stage, task.experiment)
    folder = board.open_round()
    leave_work(folder, task.key)
    make_key(folder)
    before, host = board.read() or Notice("starting"), own_address()
    notice = replace(before, state="open", round=folder.name, overrides=task.experiment.overrides, host=host)
    LOG.info("%s: %d blocks; waiting for workers at %s", task.stage, len(task.plan) - len(done), host)
    try:
        _serve(task, done, _announcer(board, notice), workers=1)
    finally:
        remove_key(folder)
    _raise_fatal(folder)


def take_blocks(plan: BlockPlan, do_block: Callable[[int], bool], slow: Iterable[int]) -> None:
    """Take block numbers from the coordinator until it has none left, then from `slow`.

    Blocks that fail go back to the coordinator for another attempt.
    """
    import daisy

    folder = Path(os.environ[ROUND_VARIABLE])
    client = daisy.Client()
    while True:
        with client.acquire_block() as block:
            if block is None:
                break
            # After a fatal error the rest is handed back undone: a worker that left would be replaced, again and again.
            if has_fatal(folder) or not _do_or_note(do_block, plan.number_at(block.write_roi.begin), folder):
                block.status = daisy.BlockStatus.FAILED
    for number in slow:
        if has_fatal(folder):
            return
        _do_or_note(do_block, number, folder)


def current_round() -> str:
    """Name of the round that this worker process takes part in."""
    return Path(os.environ[ROUND_VARIABLE]).name


def current_work() -> str:
    """Key of the work that this worker process takes blocks of."""
    return read_work(Path(os.environ[ROUND_VARIABLE]))


def joined_context(context: str, worker: int, port: int) -> str:
    """The coordinator's context for a worker that it did not start.

    `port` on loopback is its way in; it has a number of its own, and no log folder of another machine.
    """
    import daisy

    os.environ[CONTEXT_VARIABLE] = context
    ours = daisy.Context.from_env()
    ours["worker_id"] = FIRST_JOINED_WORKER + worker
    ours["hostname"], ours["port"] = LOOPBACK, port
    ours["logdir"] = ""
    return str(ours.to_env())


def worker_number() -> int:
    """Number of this worker process among those of its coordinator; 0 outside a worker."""
    import daisy

    if CONTEXT_VARIABLE not in os.environ:
        return 0
    return int(daisy.Context.from_env().get("worker_id", 0))


def daisy_task(
    plan: BlockPlan, done: Collection[int], process: Callable[..., None], *, name: str, workers: int, timeout_s: float
) -> daisy.Task:
    """A pass as daisy knows it: ROIs in voxels of the target grid (z, y, x), without the blocks that are done."""
    import daisy

    write = Box((0, 0, 0), plan.write_shape_vox)
    return daisy.Task(
        name,
        total_roi=_roi(plan.total.grow(plan.context_vox)),
        read_roi=_roi(write.grow(plan.context_vox)),
        write_roi=_roi(write),
        process_function=process,
        read_write_conflict=False,
        fit="shrink",
        skip_mask=_mask(plan, done),
        max_workers=workers,
        max_retries=LOST_WORKER.attempts - 1,
        timeout=timeout_s,
        max_worker_restarts=LOST_WORKER.attempts * (len(plan) + 1),
    )


def _serve(task: BlockTask, done: Collection[int], process: Callable[..., None], *, workers: int) -> None:
    import daisy
    import daisy.logging

    limit_s = task.experiment.compute.block_timeout_s
    pass_ = daisy_task(task.plan, done, process, name=task.stage, workers=workers, timeout_s=limit_s)
    with tempfile.TemporaryDirectory(prefix="lsdflow-daisy-") as logs:
        daisy.logging.set_log_basedir(logs)
        try:
            with daisy_warnings_logged(), stopped_by_signals():
                daisy.run_blockwise(pass_, progress=False, summary=False, host=LOOPBACK, return_states=True)
        except RuntimeError as error:
            LOG.warning("daisy gave up: %s", error)


def _roi(box: Box) -> daisy.Roi:
    import daisy

    return daisy.Roi(box.begin_vox, box.shape_vox)


def _mask(plan: BlockPlan, done: Collection[int]) -> npt.NDArray[np.bool_]:
    """True for each block that is done, on the grid of blocks."""
    mask = np.zeros(len(plan), bool)
    mask[list(done)] = True
    return mask.reshape(plan.grid_shape)


def _worker_starter(stage: str, experiment: Path, overrides: tuple[str, ...]) -> Callable[[], None]:
    def start_worker() -> None:
        leave_terminal_to_coordinator()
        try:
            load_stage(stage).worker(load_experiment(experiment, overrides))
        except RuntimeError as error:
            # daisy's word for a connection that is gone. The coordinator has ended or been stopped, and tells of it.
            if "os error" not in str(error):
                raise

    return start_worker


def _announcer(board: NoticeBoard, notice: Notice) -> Callable[..., None]:
    def announce(*, context: Any) -> None:
        def post(port: int) -> None:
            board.post(replace(notice, context=context.to_env(), port=port))

        leave_terminal_to_coordinator()
        start_logging()
        key = read_key(board.round_folder(notice.round))
        asyncio.run(keep_gate(notice.host, int(context["port"]), key, post))

    return announce


def _do_or_note(do_block: Callable[[int], bool], number: int, folder: Path) -> bool:
    try:
        return do_block(number)
    except Interrupted:
        raise
    except StageError as error:
        leave_fatal(folder, error)
        return False


def _raise_fatal(folder: Path) -> None:
    if not has_fatal(folder):
        return
    raise rebuilt(read_json(folder / "fatal.json"))
