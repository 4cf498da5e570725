"""daisy 2 behind two functions: a coordinator that hands out block numbers, and a worker loop that takes them.

daisy sees a row of unit blocks, one per pending block: no context and no conflicts reach it, because a block writes
only its own whole chunks. Our own done marks are the truth; daisy's are not used.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lsdflow_contract.errors import InternalError, Interrupted, StageError
from lsdflow_contract.experiment import load_experiment

if TYPE_CHECKING:
    from lsdflow_runtime.block_task import BlockTask

LOG = logging.getLogger("lsdflow.daisy")
PENDING_VARIABLE = "LSDFLOW_PENDING_BLOCKS"
FATAL_FILE = "fatal.json"
BLOCK_TIMEOUT_SECONDS = 3600.0
# A worker that dies is replaced; this many deaths per run are weather (spot nodes), more are a fault of the stage.
SPARE_RESTARTS = 20


def run_with_daisy(task: BlockTask, pending: list[int], attempts: int) -> None:
    """Run the pending blocks in worker processes of this machine. Blocks that fail are left without a done mark.

    Raises the StageError that a worker found to concern every block.
    """
    import daisy
    import daisy.logging

    with tempfile.TemporaryDirectory(prefix="lsdflow-") as scratch:
        daisy.logging.set_log_basedir(scratch)
        pending_file = Path(scratch) / "pending.json"
        pending_file.write_text(json.dumps(pending))
        os.environ[PENDING_VARIABLE] = str(pending_file)
        blocks = daisy.Task(
            task.stage,
            total_roi=daisy.Roi((0,), (len(pending),)),
            read_roi=daisy.Roi((0,), (1,)),
            write_roi=daisy.Roi((0,), (1,)),
            process_function=_worker_starter(task.stage, task.experiment.path, task.experiment.overrides),
            read_write_conflict=False,
            max_workers=min(task.experiment.compute.workers, len(pending)),
            max_retries=attempts - 1,
            timeout=BLOCK_TIMEOUT_SECONDS,
            max_worker_restarts=SPARE_RESTARTS + attempts * len(pending),
        )
        try:
            daisy.run_blockwise(blocks, progress=False, summary=False, host="127.0.0.1", return_states=True)
        except RuntimeError as error:
            LOG.warning("daisy gave up: %s", error)
        finally:
            del os.environ[PENDING_VARIABLE]
        _raise_fatal(Path(scratch))


def take_blocks(do_block: Callable[[int], bool]) -> None:
    """Take block numbers from the coordinator until it has none left; failed ones go back to it for another attempt."""
    import daisy

    pending_file = Path(os.environ[PENDING_VARIABLE])
    pending: list[int] = json.loads(pending_file.read_text())
    fatal = pending_file.parent / FATAL_FILE
    client = daisy.Client()
    while True:
        with client.acquire_block() as block:
            if block is None:
                return
            # After a fatal error the rest is handed back undone: a worker that left would be replaced, again and again.
            if fatal.exists() or not _do_or_note(do_block, pending[block.write_roi.offset[0]], fatal):
                block.status = daisy.BlockStatus.FAILED


def _do_or_note(do_block: Callable[[int], bool], number: int, fatal: Path) -> bool:
    try:
        return do_block(number)
    except Interrupted:
        raise
    except StageError as error:
        fatal.write_text(json.dumps(error.as_dict()))
        return False


def worker_number() -> int:
    """Number of this worker process among those of its coordinator; 0 outside a worker."""
    import daisy

    if "DAISY_CONTEXT" not in os.environ:
        return 0
    return int(daisy.Context.from_env().get("worker_id", 0))


def _worker_starter(stage: str, experiment: Path, overrides: tuple[str, ...]) -> Callable[[], None]:
    module = f"lsdflow_{stage.replace('-', '_')}.task"

    def start_worker() -> None:
        importlib.import_module(module).worker(load_experiment(experiment, overrides))

    return start_worker


def _raise_fatal(scratch: Path) -> None:
    path = scratch / FATAL_FILE
    if not path.exists():
        return
    found = json.loads(path.read_text())
    kinds = {kind.__name__: kind for kind in StageError.__subclasses__()}
    kind = kinds.get(found["error"], InternalError)
    raise kind(found["what"], where=found["where"], wanted=found["wanted"], found=found["found"], hint=found["hint"])
