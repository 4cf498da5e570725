"""Hashes of the state of files (names, sizes, modification times, and a sample of their bytes) and of their contents.

A volume of 10^12 voxels can have millions of chunk files. They are listed once, folder by folder, and examined by
several threads, because on a network file system most of the time is spent waiting. The hashes of the files are
summed, so that no list of all files is kept or sorted.

Copying programs may keep sizes and modification times (`rsync -t`, a restored backup), so the state includes bytes of
SAMPLED_FILES files, those whose names have the smallest hashes: all bytes up to SAMPLED_BYTES, else evenly distributed
pieces. A change of other bytes is seen only if a size or a time changed too.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from heapq import nsmallest
from itertools import islice
from pathlib import Path
from typing import TypeVar

from lsdflow_contract.hashing import hash_of_file

THREADS = 16
FILES_AT_ONCE = 1024
SAMPLED_FILES = 1024
SAMPLED_BYTES = 64 << 20
PIECE_BYTES = 64 << 10

Found = tuple[str, "os.DirEntry[str] | Path"]
# The hash of a name, the path and the bytes of a file.
Candidate = tuple[int, str, int]
Item = TypeVar("Item")
Result = TypeVar("Result")


def file_stamp(roots: Sequence[Path]) -> str:
    """64 hex digits that change if a file is added, removed, renamed, resized or written, or if sampled bytes change.

    roots: files, and folders with all their files, by name relative to the folder; links are followed.
    Raises OSError for a file that cannot be examined.
    """
    total, sampled = 0, list[Candidate]()
    for states, candidates in _in_threads(_states_of, _batches(files_below(roots))):
        total += states
        sampled = nsmallest(SAMPLED_FILES, [*sampled, *candidates])
    size = sum(candidate[2] for candidate in sampled)
    pieces = _in_threads(_piece, [piece for candidate in sampled for piece in _pieces(candidate, size)])
    return f"{(total + _number(' '.join(pieces))) % 2**256:064x}"


def content_hash(roots: Sequence[Path]) -> str:
    """64 hex digits that change if a file is added, removed, renamed, or has other bytes. Reads all files."""
    return f"{sum(_in_threads(_contents_of, _batches(files_below(roots)))) % 2**256:064x}"


def _states_of(batch: list[Found]) -> tuple[int, list[Candidate]]:
    """Sum of the hashes of the states of files, and the files."""
    total, candidates = 0, []
    for name, file in batch:
        state = file.stat()
        total += _number(f"{name}\0{state.st_size}\0{state.st_mtime_ns}")
        candidates.append((_number(name), os.fspath(file), state.st_size))
    return total, nsmallest(SAMPLED_FILES, candidates)


def _contents_of(batch: list[Found]) -> int:
    return sum(_number(f"{name}\0{hash_of_file(Path(file))}") for name, file in batch)


def _pieces(file: Candidate, total: int) -> Iterator[tuple[str, int, int]]:
    """Path, first byte and number of bytes of each piece of a file that is read; total: the bytes of all such files."""
    number, path, size = file
    count = max(1, SAMPLED_BYTES * size // max(total, 1) // PIECE_BYTES)
    if total <= SAMPLED_BYTES or size <= count * PIECE_BYTES:
        yield path, 0, size
    elif count == 1:
        yield path, number % (size - PIECE_BYTES), PIECE_BYTES
    else:
        yield from ((path, (size - PIECE_BYTES) * i // (count - 1), PIECE_BYTES) for i in range(count))


def _piece(piece: tuple[str, int, int]) -> str:
    path, begin, size = piece
    with Path(path).open("rb") as file:
        file.seek(begin)
        return hashlib.sha256(file.read(size)).hexdigest()


def _in_threads(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The results of a function, in the order of the items."""
    with ThreadPoolExecutor(THREADS) as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > 2 * THREADS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(os.fsencode(text)).digest())


def files_below(roots: Sequence[Path]) -> Iterator[Found]:
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
