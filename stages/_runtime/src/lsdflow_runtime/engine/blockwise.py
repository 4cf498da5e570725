"""Runs a BlockTask: resume, workers, failures, and the manifest once every block is done.

The serial runner is the reference: it processes blocks in ascending order in one process. The daisy runner starts
worker processes that open the task once and get blocks from the coordinator. With the cluster runner, workers of other
jobs join (`cluster`). All use `commit_block`, and a block function is pure, so the result has the same bits for any
number of workers, any order and any interruption.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lsdflow_command.attempts import AttemptLog
from lsdflow_command.interruption import end_if_asked
from lsdflow_command.progress import REPORT, Progress
from lsdflow_contract.errors import (
    BadData,
    BlocksFailed,
    ContractMismatch,
    Interrupted,
    MissingInput,
    StageError,
    StorageFailure,
)
from lsdflow_contract.failed_blocks import fact_of, failed_blocks_of_inputs
from lsdflow_contract.manifest import Manifest, Writer, current_key, read_kept_manifest, remove_manifest
from lsdflow_runtime.blocks import Block, write_grid
from lsdflow_runtime.engine.accepted_failures import (
    FATAL_CODES,
    LOST,
    accepted_failures,
    failures_of_run,
    missing_blocks,
    record_failures,
    recorded_failures,
)
from lsdflow_runtime.engine.block_task import BlockFunction, BlockTask, commit_block, outputs_of
from lsdflow_runtime.engine.cluster import serve_workers_of_other_jobs
from lsdflow_runtime.engine.daisy_runner import SESSION_VARIABLE, Session, process_blocks, run_with_daisy
from lsdflow_runtime.engine.slow_blocks import InProgress, blocks_watched, slow_blocks
from lsdflow_runtime.io.volumes import Volume
from lsdflow_runtime.store.packed_marks import PACK_BLOCKS
from lsdflow_runtime.transient_errors import BLOCK, try_block

LOG = logging.getLogger("lsdflow.blocks")
# Interval for counting done marks: short for workers of this machine, long on shared storage.
POLL_SECONDS = {"daisy": 0.5, "cluster": 5.0}


def run_task(task: BlockTask, keys: Collection[str] = (), earlier: Sequence[BlockTask] = ()) -> Manifest:
    """Process every block without a done mark, then write the stage's manifest.

    keys: keys of all passes of the run. earlier: the passes before this one, whose arrays the manifest also lists.

    Raises OutputConflict (73) for outputs of another program, BlocksFailed (79) if failed blocks are not accepted, or
    the error that stopped the run.
    """
    started = time.time()
    executed = run_blocks(task, keys)
    return _write_manifest(task, keys, earlier, executed, seconds=time.time() - started)


def run_blocks(task: BlockTask, keys: Collection[str] = ()) -> int:
    """Process every block without a done mark; returns their number. For a pass that is not the last one of the stage.

    A manifest of these passes is removed first, because only finished results have a manifest. A result of other
    settings remains current.
    """
    task.create_outputs()
    layout, keys = task.layout, {task.key, *keys}
    write_grid(layout, task.stage, task.key, task.plan)
    done = task.marks.done()
    if len(done) < len(task.plan):
        remove_manifest(layout, task.stage, keys)
        _run_blocks(task, done)
    if current_key(layout, task.stage) not in keys:
        task.marks.pack(len(task.plan), all_of_them=True)
    accepted = accepted_failures(task)
    require_all_done(task, unexplained=LOST, accepted=[failed.block for failed in accepted])
    record_failures(task, accepted)
    return len(task.plan) - len(done)


def worker_task(task: BlockTask) -> None:
    """Body of a worker process: process blocks for the coordinator named in the environment, until none is left."""
    marks, runs = task.marks, task.layout.stage_runs(task.stage)
    session, limit_s = Session.current().id, task.compute.block_timeout_s
    logs = [AttemptLog(runs, task.key, thread) for thread in range(task.shared.blocks_at_once)]
    with block_runners(task, logs) as runners, ExitStack() as watched:
        threads = [
            partial(
                _attempt_once, task, do_block, session, watched.enter_context(blocks_watched(marks, log.path, limit_s))
            )
            for do_block, log in zip(runners, logs, strict=True)
        ]
        process_blocks(task.plan, threads, slow_blocks(marks, runs, logs[0].path, task.key, at_once=len(logs)))


def status_task(task: BlockTask) -> dict[str, Any]:
    """Finished blocks, and failed blocks with their errors."""
    failed = sorted(task.marks.failed())
    missing, accepted = missing_blocks(task), recorded_failures(task.layout, task.stage, task.key)
    is_whole = {block.block for block in accepted} == set(missing)
    return {
        "blocks": len(task.plan),
        "done": len(task.plan) - len(missing),
        "failed": len(failed),
        "failures": {str(n): task.marks.failure(n).get("what", "") for n in failed[:20]},
        "finished": is_whole and current_key(task.layout, task.stage) == task.key,
        **({"accepted": list(map(str, accepted))} if accepted and is_whole else {}),
    }


def _run_blocks(task: BlockTask, done: Collection[int]) -> None:
    total = len(task.plan)
    with Progress(task.stage, total=total, unit=task.unit, already=len(done)) as progress:
        if task.compute.runner == "serial":
            with block_runners(task) as (do_block,):
                for count, number in enumerate((n for n in range(total) if n not in done), 1):
                    is_done = _attempt(task, do_block, number, attempts=BLOCK.attempts)
                    progress.failed += not is_done
                    progress.advance(int(is_done))
                    if count % PACK_BLOCKS == 0:
                        task.marks.pack(total)
        else:
            end_if_asked()
            on_cluster = task.compute.runner == "cluster"
            with _watched(task, progress, len(done)):
                (serve_workers_of_other_jobs if on_cluster else run_with_daisy)(task, done)


@contextmanager
def block_runners(task: BlockTask, logs: Sequence[AttemptLog] = ()) -> Iterator[list[Callable[[int], None]]]:
    """Open the task once; yields for each log of attempts a function that processes and commits the block of a number.

    Each may run in a thread of its own. Without logs there is one function.
    """
    opened: dict[str, Volume] = {name: output.open() for name, output in task.outputs.items()}
    logs = logs or [AttemptLog(task.layout.stage_runs(task.stage), task.key)]
    with task.open() as function, ExitStack() as open_logs:

        def do_block(log: AttemptLog, number: int) -> None:
            """Process, verify and commit one block, and log the attempt."""
            with log.attempt(number):
                _do_block(task, opened, function, task.plan.block(number), len(logs))

        yield [partial(do_block, open_logs.enter_context(log)) for log in logs]


def _do_block(task: BlockTask, opened: dict[str, Volume], function: BlockFunction, block: Block, at_once: int) -> None:
    started = time.monotonic()
    output = function(block)
    # Blocks that a worker has at once share its time: the sum over all blocks is the time of the workers.
    commit_block(task, opened, block, output, (time.monotonic() - started) / at_once)


def _attempt_once(
    task: BlockTask, do_block: Callable[[int], None], session: str, in_progress: list[InProgress], number: int
) -> bool:
    """Process a block once, unless another worker has. It is not retried after the failures that BLOCK allows.

    The coordinator offers a block more often than that, because a lost worker is not a failure of the block.
    """
    here = Session.current()
    if task.marks.is_done(number):
        here.forget(number)
        return True
    try:
        failure = task.marks.failure(number)
    except MissingInput:
        failure = {}
    failures = int(failure.get("attempts", 0)) if failure.get("session") == session else 0
    if failures >= BLOCK.attempts:
        return False
    known = {"session": session, "attempts": failures + 1}
    in_progress.append(InProgress(number, known))
    # Workers of other jobs are many, and their session is on shared storage.
    token = REPORT.set(partial(here.note, number) if task.compute.runner == "daisy" else None)
    try:
        return _attempt(task, do_block, number, attempts=1, known=known)
    finally:
        REPORT.reset(token)
        here.forget(number)
        in_progress.clear()


def _attempt(
    task: BlockTask,
    do_block: Callable[[int], None],
    number: int,
    attempts: int,
    known: Mapping[str, Any] = MappingProxyType({}),
) -> bool:
    """Process a block up to `attempts` times; the last failure is recorded with the `known` record of earlier ones.

    Errors that concern every block are raised.
    """
    for attempt in range(1, attempts + 1):
        end_if_asked()
        try:
            try_block(do_block, number)
        except (Interrupted, KeyboardInterrupt):
            raise
        except StageError as error:
            task.marks.mark_failed(number, {**error.as_dict(), **known})
            if error.exit_code in FATAL_CODES:
                raise
        except OSError as error:
            failure = StorageFailure(f"reading or writing failed: {error}", where=task.plan.block(number))
            task.marks.mark_failed(number, {**failure.as_dict(), **known})
            raise failure from error
        except Exception as error:  # noqa: BLE001 - an error of one block must not stop the others
            what = f"{type(error).__name__}: {error}"
            LOG.warning("block %d, attempt %d: %s", number, attempt, what, extra={"block": number})
            record = {"error": type(error).__name__, "exit_code": 70, "what": what}
            task.marks.mark_failed(number, {**record, **known, "traceback": traceback.format_exc()})
        else:
            return True
    return False


@contextmanager
def _watched(task: BlockTask, progress: Progress, already: int) -> Iterator[None]:
    """Show progress from the done marks while other processes write them, and pack the marks."""
    stop = threading.Event()

    def update(counted: int) -> int:
        """Advance the progress by the blocks done since `counted`; return how many are done now."""
        now = task.marks.count_done()
        progress.failed = task.marks.count_failed()
        session = os.environ.get(SESSION_VARIABLE)
        progress.under_way = Session(Path(session)).under_way() if session else 0.0
        progress.advance(now - counted)
        return now

    def watch() -> None:
        """Update the progress and pack marks at intervals until the pass ends."""
        counted, packing = already, True
        while not stop.wait(POLL_SECONDS[task.compute.runner]):
            counted = update(counted)
            packing = packing and _packed(task)
        update(counted)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _packed(task: BlockTask) -> bool:
    """Pack whole ranges of done marks; False on failure, which is harmless because single marks remain valid."""
    try:
        task.marks.pack(len(task.plan))
    except (StageError, OSError) as error:
        LOG.warning("done marks are no longer packed during this run: %s", error)
        return False
    return True


def require_all_done(task: BlockTask, unexplained: str = "not done", accepted: Collection[int] = ()) -> None:
    """Raise BlocksFailed (79) with the first blocks without a done mark and the reasons, or `unexplained`."""
    missing = [n for n in missing_blocks(task) if n not in accepted]
    if not missing:
        return
    failed = task.marks.failed()
    lines = []
    for number in missing[:10]:
        why = task.marks.failure(number).get("what", "") if number in failed else unexplained
        lines.append(f"{task.plan.block(number)}: {why}")
    raise BlocksFailed(
        f"{len(missing)} of {len(task.plan)} blocks of {task.stage} are not done",
        where=task.marks.where,
        found="; ".join(lines),
        fix="fix the cause and run the same command again: it processes only these blocks",
    )


def _write_manifest(
    task: BlockTask, keys: Collection[str], earlier: Sequence[BlockTask], executed: int, seconds: float
) -> Manifest:
    layout = task.layout
    layout.result(task.stage, task.key).mkdir(parents=True, exist_ok=True)
    if executed == 0:
        # A damaged manifest is written again from the done marks, with the same identity.
        with suppress(BadData, MissingInput, ContractMismatch):
            found = read_kept_manifest(layout, task.stage, task.key)
            if current_key(layout, task.stage) != task.key:
                found.write(layout)
            return found
    found_records = task.marks.records()
    records = list(found_records.values())
    failed = (*failures_of_run(task, keys), *failed_blocks_of_inputs(layout, task.inputs))
    manifest = Manifest(
        writer=Writer.of(task.stage),
        key=task.key,
        config=dict(task.config),
        inputs=dict(task.inputs),
        outputs=outputs_of([*earlier, task]),
        facts={
            "blocks": len(task.plan),
            "blocks_executed": executed,
            "seconds": seconds,
            "seconds_in_blocks": sum(r["seconds"] for r in records),
            "peak_rss_mib": max(r["peak_rss_mib"] for r in records),
            "totals": _totals([r["facts"] for r in records]),
            **fact_of(failed),
        },
        identity=task.identity(found_records),
    )
    return manifest.finish(layout)


def _totals(facts: list[dict[str, Any]]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for record in facts:
        for name, value in record.items():
            if isinstance(value, int | float):
                totals[name] = totals.get(name, 0) + value
    return totals
