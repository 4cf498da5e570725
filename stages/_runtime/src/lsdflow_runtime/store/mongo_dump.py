"""BSON files of mongodump, plain or gzip, read as batches of whole documents in bounded memory.

A file is a sequence of documents, each preceded by its length. It has no checksum and no end mark. A file that was cut
between two documents looks complete, so the caller must check the content (for example edges without their nodes).
"""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, cast

import bson
from bson.errors import BSONError

from lsdflow_contract.errors import BadData, MissingInput, PermissionDenied, StorageFailure
from lsdflow_runtime.store.mongo_connection import Document

# Documents of a graph have about 100 bytes, so a batch has some 80 000 of them.
PIECE_BYTES = 1 << 23
SMALLEST_DOCUMENT = 5
LARGEST_DOCUMENT = (1 << 24) + (1 << 14)
GZIP, ARCHIVE = b"\x1f\x8b", b"\x6d\xe2\x99\x81"


@dataclass
class BsonFile:
    """One collection as mongodump wrote it. `provenance` is complete once `batches` has ended."""

    path: Path
    unit: str = "byte"
    documents: int = 0
    sha256: str = ""
    _digest: Any = field(default=None, repr=False)

    @property
    def where(self) -> str:
        """The file, for messages."""
        return str(self.path)

    @property
    def total(self) -> int:
        """Number of bytes to read."""
        return self.path.stat().st_size

    def batches(self) -> Iterator[tuple[list[Document], int]]:
        """Documents in the order of the file, with the bytes of the file that were read for them.

        Raises BadData (65) for a file that is not BSON, is damaged, or is cut off within a document.
        """
        self.documents, self._digest = 0, hashlib.sha256()
        with self._opened() as (file, stream):
            rest, reported = b"", 0
            while piece := stream.read(PIECE_BYTES):
                held = rest + piece
                end = self._end_of_whole(held)
                found = self._decoded(held[:end])
                rest = held[end:]
                self.documents += len(found)
                now = file.raw.tell()
                yield found, now - reported
                reported = now
        if rest:
            raise self._wrong("the file is cut off within a document", f"{len(rest)} bytes of it")
        self.sha256 = self._digest.hexdigest()

    def provenance(self) -> dict[str, Any]:
        """Facts of the file that was read: path, documents, checksum."""
        return {"from": self.where, "documents": self.documents, "sha256": self.sha256}

    @contextmanager
    def _opened(self) -> Iterator[tuple[BufferedReader, IO[bytes]]]:
        try:
            with self.path.open("rb") as file:
                begin = file.peek(4)[:4]
                if begin == ARCHIVE:
                    raise self._wrong("an archive of mongodump, not a BSON file", "made with --archive")
                hashed = cast(IO[bytes], _Hashed(file, self._digest))
                yield file, cast(IO[bytes], gzip.GzipFile(fileobj=hashed)) if begin[:2] == GZIP else hashed
        except FileNotFoundError as error:
            raise MissingInput("no such file", where=self.path) from error
        except PermissionError as error:
            raise PermissionDenied("may not read", where=self.path) from error
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise self._wrong("a damaged gzip file, or one that was cut off", error) from error
        except OSError as error:
            raise StorageFailure(f"reading failed: {error.strerror}", where=self.path) from error

    def _end_of_whole(self, held: bytes) -> int:
        """The end of the last complete document."""
        begin, length = 0, struct.Struct("<i").unpack_from
        while begin + 4 <= len(held):
            (size,) = length(held, begin)
            if not SMALLEST_DOCUMENT <= size <= LARGEST_DOCUMENT:
                raise self._wrong("not a BSON file, or a damaged one", f"a document of {size} bytes")
            if begin + size > len(held):
                break
            begin += size
        return begin

    def _decoded(self, whole: bytes) -> list[Document]:
        try:
            return bson.decode_all(whole) if whole else []
        except BSONError as error:
            raise self._wrong("not a BSON file, or a damaged one", error) from error

    def _wrong(self, what: str, found: object) -> BadData:
        fix = "copy the file again, or dump again: mongodump --collection NAME --out FOLDER"
        return BadData(what, where=f"{self.path} after document {self.documents}", found=found, fix=fix)


class _Hashed:
    """A file whose digest is updated as it is read."""

    def __init__(self, file: BufferedReader, digest: Any) -> None:
        self._file = file
        self._digest = digest

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes."""
        piece = self._file.read(size)
        self._digest.update(piece)
        return piece
