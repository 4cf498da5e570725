"""Bytes and files that a stage has made, and the room that is left: counted on the disk."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lsdflow_contract.layout import ExperimentLayout

# 10^6 files of a shared file system can take minutes to look at: then the count is told to be unfinished.
COUNT_SECONDS = 20.0


@dataclass(frozen=True)
class DiskUse:
    """What lies there; complete: False if counting took too long."""

    files: int = 0
    size_bytes: int = 0
    complete: bool = True


def made_by(layout: ExperimentLayout, stage: str) -> list[Path]:
    """Folders that hold what a stage makes (the rows of a mongo store lie elsewhere)."""
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
    """Files and bytes below folders."""
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
    """What a user may still write: bytes, and files (None where the file system does not count them)."""

    free_bytes: int
    free_files: int | None


def room_in(folder: Path) -> Room:
    """The room of the file system of a folder."""
    found = os.statvfs(folder)
    return Room(found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None)
