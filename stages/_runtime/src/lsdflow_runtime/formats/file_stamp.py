"""Hashes of the state of files (names, sizes and modification times, without reading them) and of their contents.

A volume of 10^12 voxels can have millions of chunk files. They are listed once, folder by folder, and examined by
several threads, because on a network file system most of the time is spent waiting. The hashes of the files are
summed, so that no list of all files is kept or sorted.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from lsdflow_contract.hashing import hash_of_file

THREADS = 16
FILES_AT_ONCE = 1024

Found = tuple[str, "os.DirEntry[str] | Path"]


def file_stamp(roots: Sequence[Path]) -> str:
    """64 hex digits that change if a file is added, removed, renamed, resized or written.

    roots: files, and folders with all their files, by name relative to the folder; links are followed.
    Raises OSError for a file that cannot be examined.
    """
    return _added_up(roots, _state)


def content_hash(roots: Sequence[Path]) -> str:
    """64 hex digits that change if a file is added, removed, renamed, or has other bytes. Reads all files."""
    return _added_up(roots, lambda file: hash_of_file(Path(file)))


def _state(file: os.DirEntry[str] | Path) -> str:
    state = file.stat()
    return f"{state.st_size}\0{state.st_mtime_ns}"


def _added_up(roots: Sequence[Path], describe: Callable[[os.DirEntry[str] | Path], str]) -> str:
    total = 0
    with ThreadPoolExecutor(THREADS) as pool:
        waiting: deque[Future[int]] = deque()
        for batch in _batches(_files(roots)):
            waiting.append(pool.submit(_sum_of, batch, describe))
            if len(waiting) > 2 * THREADS:
                total += waiting.popleft().result()
        total += sum(future.result() for future in waiting)
    return f"{total % 2**256:064x}"


def _files(roots: Sequence[Path]) -> Iterator[Found]:
    """Each file with its name relative to its root."""
    for root in roots:
        if not root.is_dir():
            yield root.name, root
            continue
        folders = [(str(root), "")]
        while folders:
            folder, name = folders.pop()
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.is_dir():
                        folders.append((entry.path, f"{name}{entry.name}/"))
                    else:
                        yield f"{name}{entry.name}", entry


def _batches(files: Iterable[Found]) -> Iterator[list[Found]]:
    remaining = iter(files)
    while batch := list(islice(remaining, FILES_AT_ONCE)):
        yield batch


def _sum_of(batch: list[Found], describe: Callable[[os.DirEntry[str] | Path], str]) -> int:
    """Sum of the hashes of files."""
    total = 0
    for name, file in batch:
        total += int.from_bytes(hashlib.sha256(os.fsencode(f"{name}\0{describe(file)}")).digest())
    return total
