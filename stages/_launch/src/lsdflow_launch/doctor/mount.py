"""Tests of the file system of a folder, in a temporary folder inside it.

Results are safe only if a rename replaces a file atomically, the second of two creations of a name fails, and synced
data can be read back; lsdflow needs nothing else (no locks). The doctor runs it as a separate process with a time
limit:   python -m lsdflow_launch.doctor.mount FOLDER
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SPEED_BYTES = 32 * 2**20
PIECE_BYTES = 2**20
MOUNTS = Path("/proc/self/mountinfo")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def tried_out(folder: Path) -> dict[str, Any]:
    """Return the facts about the file system of a folder, with "problem" if a test failed."""
    facts: dict[str, Any] = {**_kind(folder), **_room(folder)}
    try:
        probe = Path(tempfile.mkdtemp(prefix=".doctor-", dir=folder))
    except OSError as error:
        return {**facts, "problem": f"nothing can be written: {error.strerror}", "errno": error.errno or 0}
    try:
        for trial in (_rename, _exclusive, _clock, _speed):
            facts |= trial(probe)
    except OSError as error:
        facts |= {"problem": f"{trial.__name__[1:]}: {error.strerror}", "errno": error.errno or 0}
    finally:
        shutil.rmtree(probe, ignore_errors=True)
    return facts


def _rename(probe: Path) -> dict[str, Any]:
    """Test a rename over a file: afterwards the name has the new content, and the old name is gone."""
    (probe / "old").write_text("old")
    (probe / "new").write_text("new")
    (probe / "new").replace(probe / "old")
    return {"atomic_rename": (probe / "old").read_text() == "new" and not (probe / "new").exists()}


def _exclusive(probe: Path) -> dict[str, Any]:
    """Test that the second creation of a name fails, with O_EXCL and with a hard link (the lock of a coordinator)."""
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
    """Return how far the clock of the file server is ahead of this machine's, in seconds."""
    before = time.time()
    (probe / "now").write_text("now")
    after, stamp = time.time(), (probe / "now").stat().st_mtime
    ahead = stamp - after if stamp > after else min(stamp - before, 0.0)
    return {"clock_ahead_s": ahead}


def _speed(probe: Path) -> dict[str, Any]:
    """Measure MB/s of writing with fsync and of reading back; the read may come from the page cache."""
    # Random, so that no file system can compress it.
    piece = os.urandom(PIECE_BYTES)
    path, started = probe / "speed", time.monotonic()
    with path.open("wb") as file:
        for _ in range(SPEED_BYTES // PIECE_BYTES):
            file.write(piece)
        file.flush()
        syncing = time.monotonic()
        os.fsync(file.fileno())
        synced = time.monotonic()
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


def _room(folder: Path) -> dict[str, Any]:
    found = os.statvfs(folder)
    files = found.f_favail if found.f_files else None
    return {"free_bytes": found.f_bavail * found.f_frsize, "free_files": files}


def _kind(folder: Path) -> dict[str, Any]:
    """Return the type of the file system: that of the mount with the longest path above the folder."""
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
    return {"file_system": kind}


def main() -> None:
    """Test the folder of the command line; print JSON to stdout."""
    sys.stdout.write(json.dumps(tried_out(Path(sys.argv[1]).resolve())))


if __name__ == "__main__":
    main()
