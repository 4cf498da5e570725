"""What the file system of a folder really does, tried out in a folder that is removed again.

Results are safe only where a rename puts a file in place at once, one of two creations of a name fails, and what was
synced can be read back; lsdflow needs nothing else (no locks). Run by itself, as a process that the doctor does not
wait for without end:   python -m lsdflow_launch.doctor.mount FOLDER
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SPEED_BYTES = 32 * 2**20
PIECE_BYTES = 2**20
MOUNTS = Path("/proc/self/mountinfo")


def tried_out(folder: Path) -> dict[str, Any]:
    """Facts of the file system of a folder; "problem" where something is not as it must be."""
    facts: dict[str, Any] = {**_kind(folder), **_room(folder)}
    try:
        probe = Path(tempfile.mkdtemp(prefix=".doctor-", dir=folder))
    except OSError as error:
        return {**facts, "problem": f"nothing can be written: {error.strerror}", "errno": error.errno or 0}
    try:
        for name, trial in _TRIALS.items():
            facts |= trial(probe)
            facts.setdefault(name, True)
    except OSError as error:
        facts |= {"problem": f"{name}: {error.strerror}", "errno": error.errno or 0}
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    return facts


def _rename(probe: Path) -> dict[str, Any]:
    """A rename over a file: afterwards the name shows the new one, and the old one is gone."""
    (probe / "old").write_text("old")
    (probe / "new").write_text("new")
    (probe / "new").replace(probe / "old")
    return {"atomic_rename": (probe / "old").read_text() == "new" and not (probe / "new").exists()}


def _exclusive(probe: Path) -> dict[str, Any]:
    """Of two that make a name, one is refused: by O_EXCL and by a hard link, as the lock of a coordinator."""
    (probe / "mine").write_text("mine")
    os.link(probe / "mine", probe / "lock")
    refused = 0
    try:
        os.link(probe / "mine", probe / "lock")
    except FileExistsError:
        refused += 1
    os.close(os.open(probe / "once", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    try:
        os.close(os.open(probe / "once", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        refused += 1
    return {"exclusive_creation": refused == 2}


def _clock(probe: Path) -> dict[str, Any]:
    """How far the clock of the file server is before ours, in seconds."""
    before = time.time()
    (probe / "now").write_text("now")
    after, stamp = time.time(), (probe / "now").stat().st_mtime
    ahead = stamp - after if stamp > after else min(stamp - before, 0.0)
    return {"clock_ahead_s": ahead}


def _locks(probe: Path) -> dict[str, Any]:
    """flock: only two runs of prepare or of a sweep at once need it."""
    with (probe / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return {"flock": False, "flock_problem": error.strerror}
    return {"flock": True}


def _speed(probe: Path) -> dict[str, Any]:
    """MB/s of writing with fsync, and of reading back; what is read may come from memory."""
    # Random, so that no file system makes it smaller.
    piece = os.urandom(PIECE_BYTES)
    path, started = probe / "speed", time.monotonic()
    with path.open("wb") as file:
        for _ in range(SPEED_BYTES // PIECE_BYTES):
            file.write(piece)
        file.flush()
        syncing = time.monotonic()
        os.fsync(file.fileno())
        synced = time.monotonic()
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with path.open("rb") as file:
        reading = time.monotonic()
        same = all(found == piece for found in iter(lambda: file.read(PIECE_BYTES), b""))
        read = time.monotonic()
    return {
        "fsync_s": synced - syncing,
        "write_mb_per_s": SPEED_BYTES / 1e6 / (synced - started),
        "read_mb_per_s": SPEED_BYTES / 1e6 / (read - reading),
        "reads_back_what_was_written": same and path.stat().st_size == SPEED_BYTES,
    }


_TRIALS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "atomic_rename": _rename,
    "exclusive_creation": _exclusive,
    "clock_ahead_s": _clock,
    "flock": _locks,
    "write_mb_per_s": _speed,
}


def _room(folder: Path) -> dict[str, Any]:
    found = os.statvfs(folder)
    files = found.f_favail if found.f_files else None
    return {"free_bytes": found.f_bavail * found.f_frsize, "free_files": files}


def _kind(folder: Path) -> dict[str, Any]:
    """Type of the file system: the mount with the longest path that the folder lies in."""
    best, kind = "", ""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {"file_system": ""}
    for line in lines:
        before, _, after = line.partition(" - ")
        point = before.split(" ")[4].replace("\\040", " ")
        inside = str(folder) == point or str(folder).startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, after.split(" ")[0]
    return {"file_system": kind, "mount_point": best}


def main() -> None:
    """Try the folder of the command line out; JSON to stdout."""
    sys.stdout.write(json.dumps(tried_out(Path(sys.argv[1]).resolve())))


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

if __name__ == "__main__":
    main()
