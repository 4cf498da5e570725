"""What prepare left under contract 2.1 and before: journals, which become done marks, and unfinished arrays.

CONTAINER/.lsdflow/raw.jsonl, labels.jsonl     a line per finished block: number, checksum of each array, facts
CONTAINER/volumes/.raw.partial                 an array that was not finished; nothing reads it

These volumes have the blocks of today, and so the same identity. With marks they are verified and repaired like others.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from typing import Any

from lsdflow_contract.arrays import LABELS, MASK, RAW
from lsdflow_contract.errors import BadData
from lsdflow_contract.files import TEMPORARY_SUFFIX, storage_errors
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.sealing import unsealed
from lsdflow_prepare.volume_passes import VolumePass


def is_whole(task: VolumePass) -> bool:
    """True if every block of a pass is done, by its marks or by its journal, and its arrays exist."""
    if not _has_arrays(task):
        return False
    done = task.marks.done() or {line["brick"] for line in _lines(task)}
    return len(done) == len(task.plan)


def adopt_journal(task: VolumePass) -> None:
    """Write the done marks of a pass from its journal, if it has no marks and its arrays are complete."""
    if task.marks.done() or not _has_arrays(task):
        return
    for line in _lines(task):
        record = {"block": line["brick"], "checksums": line["checksums"], "facts": line["facts"]}
        task.marks.mark_done(line["brick"], {**record, "seconds": 0.0, "peak_rss_mib": 0.0})


def remove_unfinished_arrays(layout: ExperimentLayout) -> None:
    """Remove the arrays that prepares of contract 2.1 and before have not finished."""
    for spec in (RAW, LABELS, MASK):
        group, _, name = spec.dataset.rpartition("/")
        hidden = f"*.zarr/{group}/.{name}{TEMPORARY_SUFFIX}"
        kept = (*(layout.results / "prepare").glob(f"*/{hidden}"), *layout.data.glob(hidden))
        for folder in (*kept, *layout.data.glob(f"training/{hidden}")):
            with storage_errors(folder):
                shutil.rmtree(folder)


def _has_arrays(task: VolumePass) -> bool:
    return all(output.folder.is_dir() for output in task.outputs.values())


def _lines(task: VolumePass) -> Iterator[dict[str, Any]]:
    """The lines of a journal; a damaged line, or one cut off by a crash, is left out."""
    path = task.container / ".lsdflow" / f"{task.content}.jsonl"
    for text in path.read_bytes().splitlines() if path.exists() else []:
        try:
            line = unsealed(json.loads(text), path, "prepare repair")
            if line["key"] == task.volume_key:
                yield {"brick": int(line["brick"]), "checksums": dict(line["checksums"]), "facts": dict(line["facts"])}
        except (ValueError, KeyError, TypeError, BadData):
            continue
