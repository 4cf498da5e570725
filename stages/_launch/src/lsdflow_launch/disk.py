"""Disk space of an experiment: what the results of its stages take, and what is free."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lsdflow_contract.experiment import TRAININGS
from lsdflow_contract.layout import ExperimentLayout

# Free space beyond what is expected to be written.
SPARE = 1.1
# 10^6 files of a shared file system can take minutes to count; after this time the count is reported as incomplete.
COUNT_SECONDS = 20.0


@dataclass(frozen=True)
class DiskUse:
    """Files and bytes found. complete: False if counting took too long."""

    files: int = 0
    size_bytes: int = 0
    complete: bool = True


def result_folders(layout: ExperimentLayout, stage: str) -> list[Path]:
    """Return the folders that hold the results of a stage (the rows of a mongo store are elsewhere)."""
    blocks, results = layout.store / "blocks" / stage, layout.results / stage
    if stage in TRAININGS:
        return [layout.train_dir(stage)]
    others = {
        "watershed": [layout.store / "nodes"],
        "agglomerate": layout.store.glob("edges_*"),
        "segment": [layout.luts],
        "evaluate": [layout.report, *layout.store.glob("overlaps_*")],
    }
    return [results, *others.get(stage, ()), blocks]


def disk_use(folders: Sequence[Path]) -> DiskUse:
    """Count the files and bytes below folders, for at most COUNT_SECONDS."""
    files = size = 0
    end = time.monotonic() + COUNT_SECONDS
    for path in (Path(root, name) for folder in folders for root, _, names in os.walk(folder) for name in names):
        with suppress(FileNotFoundError):  # a stage that runs renames its files
            files, size = files + 1, size + path.lstat().st_size
        if files % 1000 == 0 and time.monotonic() > end:
            return DiskUse(files, size, complete=False)
    return DiskUse(files, size)


@dataclass(frozen=True)
class FreeSpace:
    """What the user may still write: bytes, and files (None where the file system does not count them)."""

    free_bytes: int
    free_files: int | None


def free_space(folder: Path) -> FreeSpace:
    """Return the free space of the file system that holds a folder."""
    found = os.statvfs(folder)
    return FreeSpace(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)
