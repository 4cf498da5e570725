"""The folder of an export: its lock, its finished layers, and the pieces that remain after an interruption.

OUT/.export/        during an export: the lock of the process that writes, keys of the layers, done marks, and the
                    segments that get meshes and skeletons (segment_works)
Each format records finished layers in its own metadata, which are written last. Then .export is removed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lsdflow_command.interruption import interrupt_on_signals
from lsdflow_command.lock_file import stage_lock
from lsdflow_command.progress import Progress
from lsdflow_contract.errors import OutputConflict
from lsdflow_contract.files import TEMPORARY_SUFFIX, read_json, storage_errors, write_json
from lsdflow_runtime.store.done_marks import DoneMarks
from lsdflow_runtime.store.packed_marks import PACK_BLOCKS
from lsdflow_view.export.crew import Crew

UNDER_WAY = ".export"
NOTED = "keys.json"


@dataclass(frozen=True)
class Work:
    """A pass: pieces (blocks, segments) numbered 0 to `count` - 1, each written as a whole and independently.

    name, key: identify the done marks. folder: where the pieces are written. begin: creates the folder; True if it
    did not exist, so that all its marks are invalid. write: writes one piece and flushes it to disk (fsync); it is
    pickled for worker processes.
    """

    name: str
    key: str
    count: int
    folder: Path
    begin: Callable[[], bool]
    write: Callable[[int], None]


@contextmanager
def export_folder(out: Path, finished: Mapping[str, str] | None, keys: Mapping[str, str]) -> Iterator[Path]:
    """Lock `out` for this process; yields the folder for unfinished data.

    finished: key of each layer that `out` already holds; None if no export was ever finished there.
    Raises OutputConflict (73) if `out` holds other files or an export of other data, or if another process exports.
    """
    under_way = out / UNDER_WAY
    _require_same(under_way, finished or {}, keys)
    with storage_errors(out):
        if finished is None and not under_way.is_dir() and out.exists() and (out.is_file() or any(out.iterdir())):
            raise OutputConflict(
                "the folder to export to exists and is no export of lsdflow",
                where=out,
                wanted="a new or empty folder, or one of an earlier export",
                fix="name another folder",
            )
        under_way.mkdir(parents=True, exist_ok=True)
    with interrupt_on_signals(), stage_lock(under_way, "another process exports to this folder"):
        # Another process may have recorded its keys meanwhile.
        _require_same(under_way, finished or {}, keys)
        yield under_way


def claim(under_way: Path, finished: Mapping[str, str], keys: Mapping[str, str]) -> None:
    """Record the key of each layer before it is written. Raises OutputConflict (73) like `export_folder`."""
    write_json(under_way / NOTED, {**_require_same(under_way, finished, keys), **keys})


def close_folder(out: Path) -> None:
    """Remove the folder for unfinished data."""
    with storage_errors(out):
        shutil.rmtree(out / UNDER_WAY)


def run_works(label: str, unit: str, under_way: Path, works: list[Work], workers: int = 1) -> int:
    """Write all pieces without a done mark, pass by pass; returns how many were written."""
    open_marks = [(work, DoneMarks.of(under_way, work.name, work.key)) for work in works]
    for work, marks in open_marks:
        if work.begin():
            marks.remove_all()
    if not works:
        return 0
    total, already = sum(work.count for work in works), sum(marks.count_done() for _, marks in open_marks)
    with (
        Progress(label, total=total, unit=unit, already=already) as progress,
        Crew(min(workers, max(1, total - already)), [work.write for work in works]) as crew,
    ):
        for index, (_, marks) in enumerate(open_marks):
            _run(index, works[index], marks, crew, progress)
    return total - already


def _run(index: int, work: Work, marks: DoneMarks, crew: Crew, progress: Progress) -> None:
    done = marks.done()
    left = [number for number in range(work.count) if number not in done]
    for count, number in enumerate(crew.written(index, left), 1):
        marks.mark_done(number, {"piece": number})
        progress.advance()
        if count % PACK_BLOCKS == 0:
            marks.pack(work.count)
    _sweep(work.folder)


def _sweep(folder: Path) -> None:
    """Remove the temporary files of writers that were killed."""
    with storage_errors(folder):
        for partial in folder.rglob(f".*{TEMPORARY_SUFFIX}"):
            partial.unlink(missing_ok=True)


def _require_same(under_way: Path, finished: Mapping[str, str], keys: Mapping[str, str]) -> dict[str, str]:
    """All keys recorded in the folder. OutputConflict (73) if a layer of `keys` has a different key there."""
    noted = under_way / NOTED
    found = {**(read_json(noted) if noted.exists() else {}), **finished}
    other = [name for name, key in keys.items() if found.get(name, key) != key]
    if other:
        raise OutputConflict(
            f"{', '.join(other)}: another volume, or other levels of it, were exported to this folder",
            where=under_way.parent,
            wanted=f"key {keys[other[0]][:12]}",
            found=f"key {str(found[other[0]])[:12]}",
            fix="name another folder, or remove this one",
        )
    return found
