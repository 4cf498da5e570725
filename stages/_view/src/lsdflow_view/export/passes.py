"""The passes of an export on the block engine, and the folder of an export.

OUT/.export/        during an export: the lock of the process that writes, keys of the layers, done marks, attempts, and
                    the segments that get meshes and skeletons (segments)
Each format records finished layers in its own metadata, which are written last. Then .export is removed.

A block (or segment) is written as whole files by a rename, depends on no other one of its pass and shares no file with
one. So the number and order of workers and attempts do not change the bytes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lsdflow_command.interruption import interrupt_on_signals
from lsdflow_command.lock_file import folder_lock
from lsdflow_contract.errors import BadData, OutputConflict, StorageFailure
from lsdflow_contract.experiment import ComputeTable, Experiment
from lsdflow_contract.files import TEMPORARY_SUFFIX, read_json, storage_errors, write_json
from lsdflow_contract.geometry import Box
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.no_experiment import EXPORT_RECORD, UNFINISHED
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask
from lsdflow_runtime.engine.blockwise import run_blocks, worker_task
from lsdflow_runtime.store.stores import FilesStore

KEYS = "keys.json"
# A mesh or a skeleton of a large segment takes longer than any block, and all workers are on this machine.
NO_TIMEOUT_S = 1e7

# Writes a block and flushes it to disk (fsync).
Write = Callable[[Block], None]


@dataclass(frozen=True)
class ExportPass:
    """A sweep over blocks (or segments, as blocks of a row), each written as a whole and independently.

    name, key: identify the done marks. folder: where the blocks are written. begin: creates the folder; True if it did
    not exist, so that all its marks are invalid. open: opens inputs and outputs once per worker, and yields what writes
    a block; it is pickled for the workers. in_process: if no more blocks than this are left, this process writes them,
    because workers take seconds to start.
    """

    name: str
    key: str
    plan: BlockPlan
    folder: Path
    begin: Callable[[], bool]
    open: Callable[[], AbstractContextManager[Write]]
    unit: str = "block"
    in_process: int = 4


@dataclass(frozen=True)
class PassRunner:
    """Runs passes for the export of an experiment with several workers; `folder` holds the unfinished data."""

    experiment: Experiment
    folder: Path
    workers: int = 1

    def run(self, passes: Sequence[ExportPass]) -> int:
        """Write all blocks without a done mark, pass by pass; returns how many were written.

        Raises BlocksFailed (79) if blocks failed in all attempts, or the error that concerns every block.
        """
        return sum(map(self._run, passes))

    def _run(self, pass_: ExportPass) -> int:
        layout = ExperimentLayout(self.folder)
        task = BlockTask(
            stage=pass_.name,
            store=FilesStore(layout.store),
            layout=layout,
            compute=self._compute(1),
            key=pass_.key,
            config={},
            inputs={},
            plan=pass_.plan,
            outputs={},
            open=partial(_opened, pass_.open),
            unit=pass_.unit,
        )
        if pass_.begin():
            task.marks.remove_all()
        left = len(task.plan) - task.marks.count_done()
        workers = 1 if left <= pass_.in_process else min(self.workers, left)
        task = replace(task, compute=self._compute(workers))
        written = run_blocks(replace(task, worker=partial(worker_task, task)))
        _remove_temporary_files(pass_.folder)
        return written

    def _compute(self, workers: int) -> ComputeTable:
        """The settings of the experiment for so many workers of this machine; one worker is this process."""
        runner = "daisy" if workers > 1 else "serial"
        how = {"runner": runner, "workers": workers, "block_timeout_s": NO_TIMEOUT_S}
        return self.experiment.compute.model_copy(update=how)


def row_of_blocks(count: int) -> BlockPlan:
    """`count` (at least 1) blocks that are not boxes of voxels, but rows of a table."""
    return BlockPlan(Box((0, 0, 0), (1, 1, count)), (1, 1, 1))


@contextmanager
def _opened(open_: Callable[[], AbstractContextManager[Write]]) -> Iterator[BlockFunction]:
    with open_() as write:

        def process(block: Block) -> BlockOutput:
            """Write a block, for the engine: the pass itself writes and checks its voxels."""
            write(block)
            return BlockOutput()

        yield process


@dataclass(frozen=True)
class ReadBack:
    """Reads every n-th block of a pass back from disk and compares it; 1: all."""

    every: int = 1

    @classmethod
    def of_fraction(cls, fraction: float) -> ReadBack:
        """An even sample of this fraction of the blocks, as in `verify` of the stages."""
        return cls(max(1, round(1 / fraction)))

    def require(self, number: int, values: npt.NDArray[Any], read: Callable[[], npt.NDArray[Any]], where: str) -> None:
        """StorageFailure (74) if the block with this number is sampled and `read` returns other bits than `values`."""
        if number % self.every:
            return
        found = read()
        if found.dtype != values.dtype or not np.array_equal(_bits(found), _bits(values)):
            raise StorageFailure(
                "what was read back is not what was written",
                where=where,
                fix="the storage loses or changes data: run the same command again, on other storage if it stays so",
            )


def _bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values as bits, so that nan equals nan, and 0 differs from -0."""
    return values.view(f"u{values.dtype.itemsize}")


@contextmanager
def export_folder(out: Path, finished: Mapping[str, str] | None, keys: Mapping[str, str]) -> Iterator[Path]:
    """Lock `out` for this process; yields the folder for unfinished data.

    finished: key of each layer that `out` already holds; None if no export was ever finished there.
    Raises OutputConflict (73) if `out` holds other files or an export of other data, or if another process exports.
    """
    folder = out / UNFINISHED
    _require_same(folder, finished or {}, keys)
    with storage_errors(out):
        if finished is None and not folder.is_dir() and out.exists() and (out.is_file() or any(out.iterdir())):
            raise OutputConflict(
                "the folder to export to exists and is no export of lsdflow",
                where=out,
                wanted="a new or empty folder, or one of an earlier export",
                fix="name another folder",
            )
        folder.mkdir(parents=True, exist_ok=True)
    with interrupt_on_signals(), folder_lock(folder, "another process exports to this folder"):
        # Another process may have recorded its keys meanwhile.
        _require_same(folder, finished or {}, keys)
        yield folder


def export_record(out: Path) -> dict[str, Any] | None:
    """Keys of the finished layers and shapes of a precomputed export; None if there are none."""
    path = out / EXPORT_RECORD
    record = read_json(path) if path.is_file() else None
    if record is not None and not (isinstance(record, dict) and isinstance(record.get("layers"), dict)):
        raise BadData("damaged record of an export", where=path, fix="export to another folder")
    return record


def record_keys(folder: Path, finished: Mapping[str, str], keys: Mapping[str, str]) -> None:
    """Record the key of each layer before it is written. Raises OutputConflict (73) like `export_folder`."""
    write_json(folder / KEYS, {**_require_same(folder, finished, keys), **keys})


def close_folder(out: Path) -> None:
    """Remove the folder for unfinished data."""
    with storage_errors(out):
        shutil.rmtree(out / UNFINISHED)


def _remove_temporary_files(folder: Path) -> None:
    """Remove the temporary files of writers that were killed."""
    with storage_errors(folder):
        for unfinished in folder.rglob(f".*{TEMPORARY_SUFFIX}"):
            unfinished.unlink(missing_ok=True)


def _require_same(folder: Path, finished: Mapping[str, str], keys: Mapping[str, str]) -> dict[str, str]:
    """All keys recorded in the folder. OutputConflict (73) if a layer of `keys` has a different key there."""
    recorded = folder / KEYS
    found = {**(read_json(recorded) if recorded.exists() else {}), **finished}
    other = [name for name, key in keys.items() if found.get(name, key) != key]
    if other:
        raise OutputConflict(
            f"{', '.join(other)}: another volume, or other levels of it, were exported to this folder",
            where=folder.parent,
            wanted=f"key {keys[other[0]][:12]}",
            found=f"key {str(found[other[0]])[:12]}",
            fix="name another folder, or remove this one",
        )
    return found
