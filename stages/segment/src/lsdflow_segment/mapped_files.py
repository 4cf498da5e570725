"""Files for what does not fit into memory: arrays that are memory-mapped, and rows that are appended part by part.

Files of rows are only appended to. They are valid once all of them are complete: whoever writes them notes their
lengths (`counts`) in another file, last.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.lib.format as npy
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_contract.files import fsync_folder, storage_errors, write_atomically

_BUFFER_BYTES = 1 << 24


def write_array(path: Path, shape: tuple[int, ...], dtype: Any, rows: Iterable[NDArray[Any]]) -> None:
    """Write an array (.npy) atomically from arrays that follow each other in it."""
    header = {"descr": npy.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}

    def write(file: Any) -> None:
        npy.write_array_header_1_0(file, header)
        for row in rows:
            file.write(np.ascontiguousarray(row, dtype).data)

    write_atomically(path, write)


def map_array(path: Path) -> NDArray[Any]:
    """An array (.npy), memory-mapped read-only."""
    with path.open("rb") as file:
        npy.read_magic(file)
        shape, _, dtype = npy.read_array_header_1_0(file)
        begin = file.tell()
    if not np.prod(shape):
        return np.zeros(shape, dtype)
    return np.asarray(np.memmap(path, dtype, "r", begin, shape))


@contextmanager
def appearing_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder to fill, which becomes `folder` in one step at the end."""
    filled = folder.with_name(f".{folder.name}")
    with storage_errors(folder):
        shutil.rmtree(filled, ignore_errors=True)
        filled.mkdir(parents=True)
    yield filled
    with storage_errors(folder):
        filled.replace(folder)
        fsync_folder(folder.parent)


class RowFiles:
    """Rows of one kind in `folder`, a file for each part: `<kind>-<part>.rows`; `counts` has the rows of each file."""

    def __init__(self, folder: Path, kind: str, dtype: np.dtype[Any]) -> None:
        self.counts: dict[str, int] = {}
        self._folder, self._kind, self._dtype = folder, kind, dtype
        self._buffer: list[tuple[NDArray[np.int64], NDArray[Any]]] = []
        self._buffer_bytes = 0

    def add(self, parts: NDArray[np.int64], *columns: NDArray[Any]) -> None:
        """Add rows, given as columns (n,) in the order of the dtype, to the parts with these numbers, (n,)."""
        if not len(parts):
            return
        rows = np.empty(len(parts), self._dtype)
        for name, column in zip(self._dtype.names or (), columns, strict=True):
            rows[name] = column
        self._buffer.append((parts, rows))
        self._buffer_bytes += rows.nbytes
        if self._buffer_bytes > _BUFFER_BYTES:
            self._flush()

    def finish(self) -> None:
        """Write the buffered rows, and make all files durable."""
        self._flush()
        for name in self.counts:
            with storage_errors(self._folder / name), (self._folder / name).open("rb") as file:
                os.fsync(file.fileno())

    def _flush(self) -> None:
        if not self._buffer:
            return
        parts, rows = (np.concatenate([held[column] for held in self._buffer]) for column in range(2))
        order = np.argsort(parts, kind="stable")
        numbers, begins = np.unique(parts[order], return_index=True)
        for number, these in zip(numbers.tolist(), np.split(order, begins[1:]), strict=True):
            self._append(f"{self._kind}-{number}.rows", rows[these])
        self._buffer, self._buffer_bytes = [], 0

    def _append(self, name: str, rows: NDArray[Any]) -> None:
        path = self._folder / name
        with storage_errors(path), path.open("ab") as file:
            file.write(rows.tobytes())
        self.counts[name] = self.counts.get(name, 0) + len(rows)


def read_rows(folder: Path, kind: str, part: int, dtype: np.dtype[Any], counts: dict[str, int]) -> NDArray[Any]:
    """The rows of a part, memory-mapped. Raises BadData if they are not as many as were written."""
    name = f"{kind}-{part}.rows"
    wanted = counts.get(name, 0)
    if not wanted:
        return np.zeros(0, dtype)
    path = folder / name
    found = path.stat().st_size if path.exists() else 0
    if found != wanted * dtype.itemsize:
        fix = f"remove {folder} and run segment again"
        raise BadData("rows of a part are lost", where=path, wanted=f"{wanted} rows", found=f"{found} bytes", fix=fix)
    return np.memmap(path, dtype, "r")
