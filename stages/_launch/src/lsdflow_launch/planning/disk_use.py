"""Bytes and files that a stage has written, and the free space of the disk."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lsdflow_contract.layout import ExperimentLayout

# 10^6 files of a shared file system can take minutes to count; after this time the count is reported as incomplete.
COUNT_SECONDS = 20.0


@dataclass(frozen=True)
class DiskUse:
    """Files and bytes found. complete: False if counting took too long."""

    files: int = 0
    size_bytes: int = 0
    complete: bool = True


def made_by(layout: ExperimentLayout, stage: str) -> list[Path]:
    """Return the folders that hold the results of a stage (the rows of a mongo store are elsewhere)."""
    blocks, results = layout.store / "blocks" / stage, layout.results / stage
    folders = {
        "prepare": [results, layout.data],
        "predict": [results, blocks],
        "watershed": [results, layout.store / "nodes", blocks],
        "agglomerate": [results, *layout.store.glob("edges_*"), blocks],
        "segment": [results, layout.luts, blocks],
        "evaluate": [results, layout.report, *layout.store.glob("overlaps_*"), blocks],
    }
    return folders.get(stage, [layout.train_dir(stage)])


def disk_use(folders: list[Path]) -> DiskUse:
    """Count the files and bytes below folders."""
    files = size = 0
    end = time.monotonic() + COUNT_SECONDS
    for entry in (e for folder in folders for e in _files(folder)):
        files, size = files + 1, size + entry.stat(follow_symlinks=False).st_size
        if files % 1000 == 0 and time.monotonic() > end:
            return DiskUse(files, size, complete=False)
    return DiskUse(files, size)


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    waiting = [str(folder)] if folder.is_dir() else []
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry


@dataclass(frozen=True)
class Room:
    """What the user may still write: bytes, and files (None where the file system does not count them)."""

    free_bytes: int
    free_files: int | None


def room_in(folder: Path) -> Room:
    """Return the free space of the file system that holds a folder."""
    found = os.statvfs(folder)
    return Room(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)
