"""Atomic file writes (complete or not at all): temp file in the same folder, fsync, rename, fsync of the folder."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
import time
import tomllib
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from lsdflow_contract.errors import BadData, ConfigError, MissingInput, PermissionDenied, StorageFailure

TEMPORARY_SUFFIX = ".partial"
# Levels of tables and lists in one another.
DEEPEST = 64
MOST_DOTS = 2000
TOO_DEEP, TOO_LARGE = f"more than {DEEPEST} levels of brackets or tables", "an integer of more than 64 bits"
_NO_SPACE, _NO_FOLDER = "free some space and run again", "there is a file where a folder is needed: move it away"
_READ_ONLY = "choose a folder that can be written to; in a container, one that is bound from outside"
_AWAY = "the storage does not answer as it should: run again when it does"
_STORAGE_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _NO_SPACE),
    **dict.fromkeys((errno.EEXIST, errno.ENOTDIR), _NO_FOLDER),
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.ETIMEDOUT), _AWAY),
    errno.EROFS: _READ_ONLY,
}
_DISK_ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EROFS)


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Convert OS errors while writing `path` to StorageFailure (74) or PermissionDenied (77) that name it."""
    try:
        yield
    except PermissionError as error:
        fix = "ask its owner for the right to write, or use a folder of your own"
        raise PermissionDenied("may not write", where=path, found=f"uid {os.geteuid()}", fix=fix) from error
    except OSError as error:
        fix = _STORAGE_HINTS.get(error.errno or 0, "")
        found = _space_left(path) if fix == _NO_SPACE else ""
        raise StorageFailure(f"writing failed: {error.strerror}", where=path, found=found, fix=fix) from error


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Convert a disk error that is not handled elsewhere (EIO, ENOSPC, ...) to StorageFailure (74).

    Any call that uses a file can raise such errors; `folder` is named if the error itself names no file.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        with storage_errors(Path(error.filename or folder)):
            raise


def _space_left(path: Path) -> str:
    """Free space on the file system of a path (or its nearest existing folder); empty if unknown."""
    for place in (path, *path.absolute().parents):
        with contextlib.suppress(OSError):
            disk = os.statvfs(place)
            return f"{disk.f_bavail * disk.f_frsize:,} bytes and {disk.f_favail:,} files left"
    return ""


def write_atomically(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Let `write` fill a temp file, then rename it to `path`. Creates the folder."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
        try:
            with partial.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        fsync_folder(path.parent)


def server_time(folder: Path) -> float:
    """Seconds since 1970 by the clock of the file server that holds `folder`, which dates all files there.

    It is read from a file that is made for it; if none can be made, the result is the time of this machine.
    """
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(prefix=".clock.", dir=folder) as file:
        os.utime(file.name)  # by the server; a new file may have the time of this machine
        return Path(file.name).stat().st_mtime
    return time.time()


def fsync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_if_changed(path: Path, content: bytes) -> None:
    """Write `content` atomically, unless the file already holds it, so that a rerun does not touch finished files."""
    if path.is_file() and path.read_bytes() == content:
        return
    write_atomically(path, lambda file: file.write(content))


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically; the file is not touched if it has this content."""
    write_if_changed(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file. MissingInput if absent, BadData if it is not JSON, or extreme (see `refuse_extremes`)."""
    try:
        value = json.loads(path.read_bytes())
        refuse_extremes(value)
    except FileNotFoundError as error:
        raise MissingInput("file not found", where=path) from error
    except (ValueError, RecursionError) as error:
        raise BadData("not a JSON file", where=path, found=error) from error
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file that exists. ConfigError if it is not TOML, or extreme (see `refuse_extremes`)."""
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError("not a TOML file", where=path, found=error) from error


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML. ValueError if it is not TOML, or extreme (see `refuse_extremes`)."""
    # tomllib needs minutes for a key of 50,000 parts.
    if any(line.count(".") > MOST_DOTS for line in text.splitlines()):
        raise ValueError(TOO_DEEP)
    try:
        value = tomllib.loads(text)
    except RecursionError as error:
        raise ValueError(TOO_DEEP) from error
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # of Python: more digits than it converts
        raise ValueError(TOO_LARGE) from error
    refuse_extremes(value)
    return value


def refuse_extremes(value: Any) -> None:
    """Raise ValueError for a value that no program can use: more than DEEPEST levels, or an integer beyond 64 bits."""
    level: list[Any] = [[value]]
    for _ in range(DEEPEST):
        level = [child for parent in level for child in _children(parent)]
        if any(isinstance(child, int) and not -(2**63) <= child < 2**64 for child in level):
            raise ValueError(TOO_LARGE)
        if not level:
            return
    raise ValueError(TOO_DEEP)


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
