"""This machine: the commands and their contract, cores, memory, open files, umask, temporary folder, shared memory."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from lsdflow_command.machine import available_cores, free_memory_bytes, memory_limit_bytes
from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import STAGES
from lsdflow_launch.commands import stage_command
from lsdflow_launch.doctor.finding import Finding, fail, ok, warn
from lsdflow_launch.doctor.outside import STAGE_S, ask_program

GIB = 2**30
CORES, MEMORY_BYTES = 2, 6 * GIB
OPEN_FILES = 1024
# For the batches of data loaders and daisy's logs.
TEMPORARY_BYTES, SHARED_BYTES = 2 * GIB, GIB
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - looked at, not written


def commands() -> Iterator[Finding]:
    """Yield for each stage whether its command is installed and has this contract."""
    with ThreadPoolExecutor(available_cores()) as pool:
        yield from pool.map(_command, STAGES)


def machine() -> Iterator[Finding]:
    """Yield the findings about the machine."""
    cores, free = available_cores(), free_memory_bytes()
    yield _at_least("cores", cores, CORES, f"{cores} usable", "fewer than 2 make the demo slow; ask for more cores")
    found = f"{free / GIB:.1f} of {memory_limit_bytes() / GIB:.1f} GiB free"
    yield _at_least("memory", free, MEMORY_BYTES, found, "the profile tiny wants 6 GiB: end something else")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield _open_files(soft, hard)
    yield _umask()
    yield _room("temp folder", Path(tempfile.gettempdir()), TEMPORARY_BYTES, "set TMPDIR to a local folder with room")
    yield _room("shared memory", SHARED_MEMORY, SHARED_BYTES, "in a container: --shm-size=2g")


def _command(stage: str) -> Finding:
    try:
        command = stage_command(stage)
    except MissingInput as error:
        return fail(stage, error.what, error.fix)
    answer = ask_program([str(command), "--version"], STAGE_S)
    told = answer.out.strip()
    if answer.fine and f"(contract {CONTRACT_VERSION.split('.', maxsplit=1)[0]}." in told:
        return ok(stage, told)
    return fail(stage, told or answer.problem, f"install the stage of contract {CONTRACT_VERSION}: make setup")


def _at_least(subject: str, value: float, wanted: float, found: str, fix: str) -> Finding:
    return ok(subject, found) if value >= wanted else warn(subject, found, fix)


def _open_files(soft: int, hard: int) -> Finding:
    found = "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft} at a time"
    if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES:
        return ok("open files", found)
    fix = f"ulimit -n {min(hard, 4096) if hard > 0 else 4096}"
    return fail("open files", found, fix)


def _umask() -> Finding:
    # The umask can be read only by setting it.
    mask = os.umask(0o022)
    os.umask(mask)
    if mask & 0o700:
        return fail("umask", f"{mask:04o}: you could not read what you write", "umask 022")
    shared = "the group may read what is written" if not mask & 0o040 else "nobody else may read what is written"
    return ok("umask", f"{mask:04o}: {shared}")


def _room(subject: str, folder: Path, wanted: int, fix: str) -> Finding:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return fail(subject, f"{folder}: {error.strerror}", fix)
    if not os.access(folder, os.W_OK | os.X_OK):
        return fail(subject, f"{folder}: this user may not write there", fix)
    found = f"{folder}: {free / GIB:.1f} GiB free"
    return ok(subject, found) if free >= wanted else warn(subject, found, fix)
