"""daisy 2 behind three functions: a coordinator with workers of its own, one that others join, and the worker's loop.

daisy sees a row of unit blocks, one per pending block: no context and no conflicts reach it, because a block writes
only its own whole chunks. Our own done marks are the truth; daisy's are not used.
"""

from __future__ import annotations

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsdflow_command.console import start_logging
from lsdflow_command.interruption import leave_terminal_to_coordinator
from lsdflow_command.stage import load_stage
from lsdflow_contract.errors import Interrupted, StageError, rebuilt
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.files import read_json, write_json
from lsdflow_runtime.gate import LOOPBACK, keep_gate, make_key, read_key, remove_key
from lsdflow_runtime.lease import Fence
from lsdflow_runtime.quiet import daisy_warnings_logged
from lsdflow_runtime.rendezvous import (
    Notice,
    NoticeBoard,
    has_fatal,
    leave_fatal,
    leave_token,
    leave_work,
    own_address,
    read_pending,
    read_token,
    read_work,
)
from lsdflow_runtime.stopping import stopped_by_signals
from lsdflow_runtime.transient_errors import LOST_WORKER

if TYPE_CHECKING:
    from lsdflow_runtime.block_task import BlockTask

LOG = logging.getLogger("lsdflow.daisy")
ROUND_VARIABLE = "LSDFLOW_ROUND"
CONTEXT_VARIABLE = "DAISY_CONTEXT"
# Numbers of workers that daisy did not start itself begin here: outside its own range.
FIRST_JOINED_WORKER = 100_000


def run_with_daisy(task: BlockTask, pending: list[int]) -> None:
    """Run the pending blocks in worker processes of this machine. Blocks that fail are left without a done mark.

    Raises the StageError that a worker found to concern every block.
    """
    with tempfile.TemporaryDirectory(prefix="lsdflow-") as scratch:
        folder = Path(scratch)
        write_json(folder / "pending.json", pending)
        leave_token(folder, task.fence)
        leave_work(folder, task.key)
        os.environ[ROUND_VARIABLE] = scratch
        starter = _worker_starter(task.stage, task.experiment.path, task.experiment.overrides)
        workers = min(task.experiment.compute.workers, len(pending))
        try:
            _serve(task, len(pending), starter, workers=workers)
        finally:
            del os.environ[ROUND_VARIABLE]
        _raise_fatal(folder)


def lead_with_daisy(task: BlockTask, pending: list[int]) -> None:
    """Hand out the pending blocks to workers of other jobs, which find this coordinator by its notice.

    daisy starts one process of ours; it does no block, but puts up the notice and keeps the gate while daisy listens.
    Raises the StageError that a worker found to concern every block.
    """
    board = NoticeBoard.of(task.stage, task.experiment)
    folder = board.open_round(pending)
    leave_token(folder, task.fence)
    leave_work(folder, task.key)
    make_key(folder)
    before, host = board.read() or Notice("starting"), own_address()
    notice = replace(before, state="open", round=folder.name, overrides=task.experiment.overrides, host=host)
    LOG.info("%s: %d blocks; waiting for workers at %s", task.stage, len(pending), host)
    try:
        _serve(task, len(pending), _announcer(board, notice), workers=1)
    finally:
        remove_key(folder)
    _raise_fatal(folder)


def take_blocks(do_block: Callable[[int], bool]) -> None:
    """Take block numbers from the coordinator until it has none left; failed ones go back to it for another attempt."""
    import daisy

    folder = Path(os.environ[ROUND_VARIABLE])
    pending = read_pending(folder)
    client = daisy.Client()
    while True:
        with client.acquire_block() as block:
            if block is None:
                return
            # After a fatal error the rest is handed back undone: a worker that left would be replaced, again and again.
            if has_fatal(folder) or not _do_or_note(do_block, pending[block.write_roi.offset[0]], folder):
                block.status = daisy.BlockStatus.FAILED


def current_round() -> str:
    """Name of the round that this worker process takes part in."""
    return Path(os.environ[ROUND_VARIABLE]).name


def current_work() -> str:
    """Key of the work that this worker process takes blocks of."""
    return read_work(Path(os.environ[ROUND_VARIABLE]))


def current_fence(task: BlockTask) -> Fence:
    """Lets commits pass while the coordinator of this process's round holds the lease."""
    return Fence(task.fence.folder, read_token(Path(os.environ[ROUND_VARIABLE])))


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


def _serve(task: BlockTask, blocks: int, process: Callable[..., None], *, workers: int) -> None:
    import daisy
    import daisy.logging

    row = daisy.Task(
        task.stage,
        total_roi=daisy.Roi((0,), (blocks,)),
        read_roi=daisy.Roi((0,), (1,)),
        write_roi=daisy.Roi((0,), (1,)),
        process_function=process,
        read_write_conflict=False,
        max_workers=workers,
        max_retries=LOST_WORKER.attempts - 1,
        timeout=task.experiment.compute.block_timeout_s,
        max_worker_restarts=LOST_WORKER.attempts * (blocks + 1),
    )
    with tempfile.TemporaryDirectory(prefix="lsdflow-daisy-") as logs:
        daisy.logging.set_log_basedir(logs)
        try:
            with daisy_warnings_logged(), stopped_by_signals():
                daisy.run_blockwise(row, progress=False, summary=False, host=LOOPBACK, return_states=True)
        except RuntimeError as error:
            LOG.warning("daisy gave up: %s", error)


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
