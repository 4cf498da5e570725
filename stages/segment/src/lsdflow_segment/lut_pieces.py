"""A lookup table written piece by piece: the same bytes as the contract's `write_lut`, in the memory of a piece."""

from __future__ import annotations

import filecmp
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.lib.format as npy
from numpy.typing import NDArray

from lsdflow_contract.files import fsync_folder, storage_errors, write_atomically
from lsdflow_contract.lut import LUT_KEY, write_side_car
from lsdflow_segment.part_files import write_array

UInt64s = NDArray[np.uint64]

# What is compressed at once, as numpy does it.
_PIECE_IDS = 1 << 21


@dataclass(frozen=True, eq=False)
class Piece:
    """Some fragments of a table, uint64 (n,) ascending, their voxels, uint64 (n,), and how their segments are found."""

    fragments: UInt64s
    voxels: UInt64s
    find: Callable[[], UInt64s]

    @property
    def segments(self) -> UInt64s:
        """The segment of each fragment, uint64 (n,); found anew each time it is asked for."""
        return self.find()


def write_lut_pieces(path: Path, pieces: Sequence[Piece], facts: Mapping[str, Any]) -> str:
    """Write the npz and its side-car, each atomically; pieces in the order of their fragments. The npz's sha256.

    An npz that holds the same already is left untouched.
    """
    fragments = sum(len(piece.fragments) for piece in pieces)
    written = path.with_name(f".{path.name}.new")
    write_atomically(written, lambda file: _write_npz(file, fragments, pieces))
    with storage_errors(path):
        if path.is_file() and filecmp.cmp(written, path, shallow=False):
            written.unlink()
        else:
            written.replace(path)
            fsync_folder(path.parent)
    return write_side_car(path, fragments, facts)


def write_mapped_lut(path: Path, pieces: Sequence[Piece]) -> None:
    """Write the table as an array (2, N) in which a worker looks up without reading all of it."""
    fragments = sum(len(piece.fragments) for piece in pieces)
    write_array(path, (2, fragments), np.uint64, _rows(pieces))


def _rows(pieces: Sequence[Piece]) -> Iterator[UInt64s]:
    return chain((piece.fragments for piece in pieces), (piece.segments for piece in pieces))


def _write_npz(file: BinaryIO, fragments: int, pieces: Sequence[Piece]) -> None:
    header = {"descr": "<u8", "fortran_order": False, "shape": (2, fragments)}
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open(f"{LUT_KEY}.npy", "w", force_zip64=True) as member,
    ):
        npy.write_array_header_1_0(member, header)
        for values in _of_equal_length(_rows(pieces), _PIECE_IDS):
            member.write(values.astype("<u8", copy=False).tobytes())


def _of_equal_length(rows: Iterable[UInt64s], length: int) -> Iterator[UInt64s]:
    """The values of all rows in arrays of `length`; the last may be shorter."""
    held: list[UInt64s] = []
    missing = length
    for row in rows:
        begin = 0
        while len(row) - begin >= missing:
            yield np.concatenate([*held, row[begin : begin + missing]])
            begin, missing, held = begin + missing, length, []
        held.append(row[begin:])
        missing -= len(row) - begin
    if missing < length:
        yield np.concatenate(held)
