"""The folder of an existing or future experiment: tests of its file system, free space, clock."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lsdflow_launch.doctor.mount import FULL
from lsdflow_launch.doctor.probe import Finding, ask_program, fail, ok, warn

GIB = 2**30
FREE_BYTES, FREE_FILES = 5 * GIB, 100_000
# With a slower disk, a run waits for the disk most of the time.
SLOW_MB_PER_S = 20.0
MOUNT_S = 120.0
# Locks are renewed every 5 s and expire after 60 s by the file server's clock; reports use this machine's clock.
CLOCK_S = 5.0
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "9p", "afs", "pvfs2")
MEMORY = ("tmpfs", "ramfs")


def folder_findings(folder: Path, limit_s: float = MOUNT_S) -> Iterator[Finding]:
    """Yield all findings about the folder; a separate process tests it, so that a dead mount blocks nothing."""
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.is_dir())
    answer = ask_program([sys.executable, "-m", "lsdflow_launch.doctor.mount", str(there)], limit_s)
    try:
        facts: dict[str, Any] = json.loads(answer.out)
    except json.JSONDecodeError:
        fix = "is the file server alive? df, ls; or use another folder"
        yield fail("folder", f"{there}: {answer.problem or 'no answer'}", fix)
        return
    yield from findings_of(there, facts)


def findings_of(folder: Path, facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings that follow from the facts."""
    kind = facts["file_system"]
    yield _kind(folder, kind)
    yield _room(folder, facts)
    if "problem" in facts:
        yield fail("writing", f"{folder}: {facts['problem']}", _fix(facts.get("errno", 0)))
        return
    for name, what in (("atomic_rename", "rename"), ("exclusive_creation", "making a name once")):
        fine = facts[name] is True
        other = "use another file system: results there could be torn, or made twice at once"
        yield ok(what, "seen to be atomic") if fine else fail(what, "not atomic on this file system", other)
    if not facts["reads_back_what_was_written"]:
        yield fail("reading back", "other bytes than were written", "do not use this disk")
    yield _speed(facts)
    yield clock("clock of the file system", facts["clock_ahead_s"])


def clock(subject: str, ahead_s: float) -> Finding:
    """Return the finding about the difference of two clocks."""
    found = f"{abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} this machine's"
    if abs(ahead_s) < CLOCK_S:
        return ok(subject, "the same as this machine's" if abs(ahead_s) < 1 else found)
    return warn(subject, found, "times in reports will not fit together: run chrony or ntp on both")


def _fix(number: int) -> str:
    if number in FULL:
        return "free some space, or raise the quota"
    if number in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
        return "this file system cannot do what a run needs (hard links, fsync): use another one"
    return "use a folder that this user may write into"


def _kind(folder: Path, kind: str) -> Finding:
    if kind in NETWORK or kind.startswith("fuse"):
        return ok("file system", f"{folder}: {kind}, shared or remote")
    if kind in MEMORY:
        return warn(
            "file system", f"{folder}: {kind}, memory of this machine", "all is lost at the next start: move it"
        )
    if kind == "overlay":
        return warn("file system", f"{folder}: overlay, inside a container", "mount a folder of the machine there")
    return ok("file system", f"{folder}: {kind or 'unknown'}, of this machine only")


def _room(folder: Path, facts: Mapping[str, Any]) -> Finding:
    free, files = facts["free_bytes"], facts["free_files"]
    found = f"{free / GIB:.1f} GiB" + ("" if files is None else f" and {files} files") + f" free in {folder}"
    if free < FREE_BYTES or (files is not None and files < FREE_FILES):
        return fail("room", found, "a run writes about 30 bytes per voxel (see lsdflow plan DIR): free some space")
    return ok("room", found)


def _speed(facts: Mapping[str, Any]) -> Finding:
    write, read = facts["write_mb_per_s"], facts["read_mb_per_s"]
    found = f"{write:.0f} MB/s written, {read:.0f} MB/s read, fsync {1000 * facts['fsync_s']:.0f} ms (32 MiB)"
    if min(write, read) < SLOW_MB_PER_S:
        return warn("speed", found, "a run will wait for this disk: use a faster one, or larger blocks")
    return ok("speed", found)
