"""This machine: commands and their contract, cores, memory, limits, temporary folder, GPUs with torch, engines."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lsdflow_command.machine import available_cores, free_memory_bytes, memory_limit_bytes
from lsdflow_contract import CONTRACT_MAJOR, CONTRACT_VERSION
from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import STAGES
from lsdflow_launch.commands import stage_command
from lsdflow_launch.doctor.probe import STAGE_S, Answer, Finding, ask_program, ask_stage_in_time, fail, ok, warn

GIB = 2**30
CORES, MEMORY_BYTES = 2, 6 * GIB
OPEN_FILES = 1024
# For the batches of data loaders and daisy's logs.
TEMPORARY_BYTES, SHARED_BYTES = 2 * GIB, GIB
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - read, not written
QUERY = ("nvidia-smi", "--query-gpu=name,memory.total,memory.free,driver_version", "--format=csv,noheader,nounits")
# One stage of each environment: prediction, and the trainings.
ONE_OF_EACH_TORCH = ("predict", "train-acrlsd")
# Commands that succeed only if this user may use the engine.
ENGINE_COMMANDS = {
    "docker": ("docker", "version", "--format", "{{.Server.Version}}"),
    "podman": ("podman", "info", "--format", "{{.Version.Version}}"),
    "apptainer": ("apptainer", "--version"),
    "singularity": ("singularity", "--version"),
}
ENGINE_FIXES = {
    "docker": "start the daemon, or let an administrator put you into the group docker",
    "podman": "see podman info; rootless podman needs entries in /etc/subuid and /etc/subgid",
}


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
    reported = answer.out.strip()
    if not answer.problem and f"(contract {CONTRACT_MAJOR}." in reported:
        return ok(stage, reported)
    return fail(stage, reported or answer.problem, f"install the stage of contract {CONTRACT_VERSION}: make setup")


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


def gpu_findings() -> Iterator[Finding]:
    """Yield findings about the driver and its GPUs, then about torch in each environment."""
    with ThreadPoolExecutor() as pool:
        answers = pool.map(lambda stage: ask_stage_in_time(stage, ["doctor", "--json"]), ONE_OF_EACH_TORCH)
        answer = ask_program(QUERY)
        gpus = [line for line in answer.out.splitlines() if line.strip()] if not answer.problem else []
        if not answer.here:
            yield ok("GPU", "no driver: networks run on the CPU (profile tiny, compute.device auto)")
        elif not gpus:
            yield fail(
                "GPU", f"nvidia-smi: {answer.problem or 'no GPU'}", "load the driver (nvidia-smi must list GPUs)"
            )
        for line in gpus:
            name, total, free, driver = (part.strip() for part in line.split(","))
            yield ok("GPU", f"{name}, {free} of {total} MiB free, driver {driver}")
        for stage, facts in zip(ONE_OF_EACH_TORCH, answers, strict=True):
            yield torch_finding(stage, facts, len(gpus))


def torch_finding(stage: str, facts: Mapping[str, Any], gpus: int) -> Finding:
    """Return whether torch of a stage sees the GPUs that the driver reports."""
    subject = f"torch of {stage}"
    if "problem" in facts or "torch" not in facts:
        return fail(subject, str(facts.get("problem", "no answer")), f"{stage} doctor --debug shows more; make setup")
    cuda = f"CUDA {facts.get('cuda')} (driver {facts.get('driver')} or newer)"
    built = cuda if facts.get("cuda") else "the CPU only"
    found = f"{facts['torch']} for {built}, sees {facts['devices']} GPUs"
    if not gpus or facts["devices"] >= gpus:
        return ok(subject, found)
    if not facts.get("cuda"):
        return fail(subject, f"{found}, there are {gpus}", "make setup TORCH=cuda, or the images of TORCH=cuda")
    if facts["devices"]:
        return warn(subject, f"{found}, there are {gpus}", "CUDA_VISIBLE_DEVICES hides the others?")
    return fail(subject, f"{found}: {facts.get('cuda_problem') or 'CUDA cannot be used'}", f"a driver for {cuda}")


def container_findings() -> Iterator[Finding]:
    """Yield a finding for each installed engine."""
    with ThreadPoolExecutor() as pool:
        answers = dict(zip(ENGINE_COMMANDS, pool.map(ask_program, ENGINE_COMMANDS.values()), strict=True))
    here = {name: answer for name, answer in answers.items() if answer.here}
    yield from (_engine_finding(name, answer) for name, answer in here.items())
    if not here:
        yield ok("containers", "no docker, podman or apptainer: needed only for --backend container, compose, clusters")


def _engine_finding(name: str, answer: Answer) -> Finding:
    if not answer.problem and answer.out.strip():
        return ok(name, answer.out.strip().splitlines()[-1])
    return warn(
        name,
        f"does not answer this user: {answer.problem or 'no version'}",
        ENGINE_FIXES.get(name, f"{name} --version"),
    )
