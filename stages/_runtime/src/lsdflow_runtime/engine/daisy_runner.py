"""A pass on daisy 2: the coordinator with its own workers, and the loop of every worker process.

A pass is a daisy.Task on the grid of voxels: the total ROI, the read and the write ROI of a block, and a mask of the
finished blocks. Blocks do not conflict, because each writes its own whole chunks. Finished blocks are known from our
done marks; those of daisy are not used. Workers of other jobs are in `cluster`.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lsdflow_command.interruption import leave_terminal_to_coordinator
from lsdflow_contract.errors import Interrupted, StageError, rebuilt
from lsdflow_contract.files import read_json, write_json
from lsdflow_contract.geometry import Box
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.engine.authenticated_proxy import LOOPBACK
from lsdflow_runtime.engine.daisy_server import daisy_warnings_logged, stopped_by_signals
from lsdflow_runtime.transient_errors import LOST_WORKER

if TYPE_CHECKING:
    import daisy

    from lsdflow_runtime.engine.block_task import BlockTask

LOG = logging.getLogger("lsdflow.daisy")
SESSION_VARIABLE = "LSDFLOW_SESSION"
CONTEXT_VARIABLE = "DAISY_CONTEXT"
# First number for workers that daisy did not start, above daisy's own numbers.
FIRST_JOINED_WORKER = 100_000


@dataclass(frozen=True)
class Session:
    """One pass, served by one coordinator; all its workers can read `folder`.

    pass_key      the key of the pass: a worker processes blocks only if its own settings give the same key
    fatal.json    the error of a worker that concerns every block
    <block>.part  how much of a block is done, 0 to 1, until it has finished
    secret        of the coordinator's proxy, if workers of other jobs may join (authenticated_proxy)
    """

    folder: Path

    @classmethod
    def begin(cls, folder: Path, pass_key: str) -> Session:
        """A new session in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "pass_key").write_text(pass_key)
        return cls(folder)

    @classmethod
    def current(cls) -> Session:
        """The session of this worker process."""
        return cls(Path(os.environ[SESSION_VARIABLE]))

    @property
    def id(self) -> str:
        """The unique name of the session."""
        return self.folder.name

    @property
    def pass_key(self) -> str:
        """The key of the pass."""
        return (self.folder / "pass_key").read_text()

    @property
    def has_failed(self) -> bool:
        """True after a worker recorded an error that concerns every block."""
        return (self.folder / "fatal.json").exists()

    def fail(self, error: StageError) -> None:
        """Record an error that concerns every block."""
        write_json(self.folder / "fatal.json", error.as_dict())

    def note(self, block: int, share: float) -> None:
        """Note how much of a block is done. Without room for the note, it is only not shown."""
        with suppress(OSError):
            (self.folder / f"{block}.part").write_text(f"{share:.3f}")

    def forget(self, block: int) -> None:
        """Remove the note of a block, if there is one."""
        with suppress(OSError):
            (self.folder / f"{block}.part").unlink()

    def under_way(self) -> float:
        """Sum of the noted shares; a note that is being written counts as 0."""
        shares = 0.0
        for path in self.folder.glob("*.part"):
            with suppress(OSError, ValueError):
                shares += float(path.read_text())
        return shares

    def raise_failure(self) -> None:
        """Raise the recorded error, if there is one."""
        if self.has_failed:
            raise rebuilt(read_json(self.folder / "fatal.json"))


def run_with_daisy(task: BlockTask, done: Collection[int]) -> None:
    """Process the blocks that are not done in worker processes of this machine. Blocks that fail get no done mark.

    Raises the StageError of a worker that concerns every block.
    """
    process = task.worker

    def work() -> None:
        """Process blocks until daisy has none left."""
        leave_terminal_to_coordinator()
        try:
            process()
        except RuntimeError as error:
            # daisy lost its connection: the coordinator has ended or was stopped, and reports that.
            if "os error" not in str(error):
                raise

    with tempfile.TemporaryDirectory(prefix="lsdflow-") as folder:
        os.environ[SESSION_VARIABLE] = folder
        workers = min(task.shared.processes, len(task.plan) - len(done))
        try:
            serve(task, done, Session.begin(Path(folder), task.key), work, workers=workers)
        finally:
            del os.environ[SESSION_VARIABLE]


def serve(
    task: BlockTask, done: Collection[int], session: Session, process: Callable[..., None], *, workers: int
) -> None:
    """Run daisy's server until every block is done or has failed for good. `process` runs in each of its workers.

    Raises the StageError of a worker that concerns every block.
    """
    import daisy
    import daisy.logging

    limit_s = task.compute.block_timeout_s
    pass_ = daisy_task(task.plan, done, process, name=task.stage, workers=workers, timeout_s=limit_s)
    with tempfile.TemporaryDirectory(prefix="lsdflow-daisy-") as logs:
        daisy.logging.set_log_basedir(logs)
        try:
            with daisy_warnings_logged(), stopped_by_signals():
                daisy.run_blockwise(pass_, progress=False, summary=False, host=LOOPBACK, return_states=True)
        except RuntimeError as error:
            LOG.warning("daisy gave up: %s", error)
    session.raise_failure()


def process_blocks(plan: BlockPlan, threads: Sequence[Callable[[int], bool]], slow: Iterable[int]) -> None:
    """Process blocks from the coordinator until it has none left, then those of `slow`.

    threads: a function for each block that this worker has at once (the first is called in this thread). It is called
    with the number of a block, and returns False if it failed. The coordinator then assigns the block again.
    """
    import daisy

    session, ended = Session.current(), threading.Event()

    def is_processed(process: Callable[[int], bool], number: int) -> bool:
        """True if the block is done; an error that is none of the block's fails the session."""
        try:
            return process(number)
        except Interrupted:
            raise
        except StageError as error:
            session.fail(error)
            return False

    def take_blocks(thread: int) -> None:
        """Process one block after the other, until there is none or another thread was stopped."""
        client = daisy.Client(_own_context(thread))
        try:
            while not ended.is_set():
                with client.acquire_block() as block:
                    if block is None:
                        return
                    # After a fatal error the other blocks are returned at once: daisy replaces a worker that ends.
                    number = plan.number_at(block.write_roi.begin)
                    if session.has_failed or not is_processed(threads[thread], number):
                        block.status = daisy.BlockStatus.FAILED
        except BaseException:
            ended.set()
            raise

    with ThreadPoolExecutor(len(threads)) as pool:
        others = [pool.submit(take_blocks, thread) for thread in range(1, len(threads))]
        take_blocks(0)
        for other in others:
            other.result()
    for number in slow:
        if session.has_failed:
            return
        is_processed(threads[0], number)


def daisy_task(
    plan: BlockPlan, done: Collection[int], process: Callable[..., None], *, name: str, workers: int, timeout_s: float
) -> daisy.Task:
    """The pass as a daisy.Task: ROIs in voxels of the target grid (z, y, x), without the finished blocks."""
    import daisy

    write = Box((0, 0, 0), plan.write_shape_vox)
    is_done = np.zeros(len(plan), bool)
    is_done[list(done)] = True
    return daisy.Task(
        name,
        total_roi=_roi(plan.total.grow(plan.context_vox)),
        read_roi=_roi(write.grow(plan.context_vox)),
        write_roi=_roi(write),
        process_function=process,
        read_write_conflict=False,
        fit="shrink",
        skip_mask=is_done.reshape(plan.grid_shape),
        max_workers=workers,
        max_retries=LOST_WORKER.attempts - 1,
        timeout=timeout_s,
        max_worker_restarts=LOST_WORKER.attempts * (len(plan) + 1),
    )


def join_context(context: str, worker: int, port: int) -> None:
    """Set the daisy context of this process, which daisy did not start, to that of a coordinator.

    The worker connects to `port` on loopback, has its own number, and does not use a log folder of another machine.
    """
    import daisy

    os.environ[CONTEXT_VARIABLE] = context
    own = daisy.Context.from_env()
    own["worker_id"] = FIRST_JOINED_WORKER + worker
    own["hostname"], own["port"] = LOOPBACK, port
    own["logdir"] = ""
    os.environ[CONTEXT_VARIABLE] = str(own.to_env())


def _own_context(thread: int) -> daisy.Context:
    """The daisy context of a thread of this worker. To the coordinator, the others look like workers that joined."""
    import daisy

    context = daisy.Context.from_env()
    if thread:
        context["worker_id"] = FIRST_JOINED_WORKER * (1 + thread) + int(context["worker_id"])
    return context


def worker_number() -> int:
    """Number of this worker process at its coordinator; 0 outside a worker."""
    import daisy

    if CONTEXT_VARIABLE not in os.environ:
        return 0
    return int(daisy.Context.from_env().get("worker_id", 0))


def _roi(box: Box) -> daisy.Roi:
    import daisy

    return daisy.Roi(box.begin_vox, box.shape_vox)
