"""`lsdflow doctor`: checks machine, folder, stages, GPU, containers, SLURM and store, with a fix for each problem.

Another process tries out the file system of the folder (python -m lsdflow_launch.doctor FOLDER), because a process that
waits for a dead file server cannot be killed: it is abandoned after a time limit, as every other call is.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lsdflow_command.machine import available_cores, free_memory_bytes, memory_limit_bytes
from lsdflow_command.scratch import scratch_folder
from lsdflow_contract import CONTRACT_MAJOR, CONTRACT_VERSION
from lsdflow_contract.errors import MissingInput, StageError
from lsdflow_contract.experiment import STAGES, TRAININGS, Experiment, load_experiment
from lsdflow_launch.commands import ask_program, stage_command, stages_here
from lsdflow_launch.slurm.jobs import Partition, existing_partitions
from lsdflow_launch.slurm.table import cluster_of, job_settings

GIB = 2**30
# Loading torch from a slow network disk takes long.
STAGE_S, FOLDER_S = 90.0, 120.0
CORES, MEMORY_BYTES, OPEN_FILES = 2, 6 * GIB, 1024
# For the batches of data loaders and daisy's logs.
TEMPORARY_BYTES, SHARED_BYTES = 2 * GIB, GIB
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - read, not written
FREE_BYTES, FREE_FILES = 5 * GIB, 100_000
# With a slower disk, a run waits for the disk most of the time.
SLOW_MB_PER_S, SPEED_BYTES, PIECE_BYTES = 20.0, 32 * 2**20, 2**20
NETWORK = ("nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "9p", "afs", "pvfs2")
GPU_FACTS = "--query-gpu=name,memory.total,memory.free,driver_version"
# One stage of each environment that has torch.
ONE_OF_EACH_TORCH = ("predict", "train-acrlsd")
# Commands that succeed only if this user may use the engine.
ENGINES = (
    ("docker", "version", "--format", "{{.Server.Version}}"),
    ("podman", "info", "--format", "{{.Version.Version}}"),
    ("apptainer", "--version"),
    ("singularity", "--version"),
)


@dataclass(frozen=True)
class Finding:
    """subject: what was checked. FAIL: a run would fail, or its results could not be trusted."""

    state: Literal["ok", "warn", "FAIL"]
    subject: str
    found: str
    fix: str = ""

    def line(self) -> str:
        """Return the finding as a line of text."""
        return f"{self.state:>4}  {self.subject}: {self.found}" + (f"\n      fix: {self.fix}" if self.fix else "")


# Of what was checked, what was found, and the fix. warn: a run is possible.
ok, warn, fail = partial(Finding, "ok"), partial(Finding, "warn"), partial(Finding, "FAIL")


def findings(folder: Path) -> list[Finding]:
    """Return the findings for the folder of an existing or future experiment."""
    experiment, found = None, []
    try:
        experiment = load_experiment(folder)
    except MissingInput:
        pass
    except StageError as error:
        found = [fail("experiment file", f"{error.where}: {error.what}", error.fix or "lsdflow validate DIR")]
    # Before the others: they load libraries, which takes memory and slows down the disk.
    found += [*machine(), *folder_findings(folder)]
    services = partial(scheduler_findings, experiment), partial(store_findings, experiment)
    with ThreadPoolExecutor() as pool:
        others = pool.map(lambda check: list(check()), (container_findings, *services, gpu_findings, stage_findings))
        return found + [line for lines in others for line in lines]


def _at_least(
    wanted: float, value: float, subject: str, found: str, fix: str, say: Callable[..., Finding] = warn
) -> Finding:
    return ok(subject, found) if value >= wanted else say(subject, found, fix)


def machine() -> Iterator[Finding]:
    """Yield findings about cores, memory, open files, and the folders for temporary files and shared memory."""
    cores, free = available_cores(), free_memory_bytes()
    yield _at_least(CORES, cores, "cores", f"{cores} usable", "the demo is slow with fewer than 2: ask for more")
    found = f"{free / GIB:.1f} of {memory_limit_bytes() / GIB:.1f} GiB free"
    yield _at_least(MEMORY_BYTES, free, "memory", found, "the profile tiny needs 6 GiB: end other programs")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit, fix = soft if soft >= 0 else OPEN_FILES, f"ulimit -n {min(hard, 4096) if hard > 0 else 4096}"
    found = f"at most {soft} at a time" if soft >= 0 else "no limit"
    yield _at_least(OPEN_FILES, limit, "open files", found, fix, fail)
    yield _room("temp folder", Path(tempfile.gettempdir()), TEMPORARY_BYTES, "set TMPDIR to a local folder with room")
    yield _room("shared memory", SHARED_MEMORY, SHARED_BYTES, "in a container: --shm-size=2g")


def _room(subject: str, folder: Path, wanted: int, fix: str) -> Finding:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return fail(subject, f"{folder}: {error.strerror}", fix)
    if not os.access(folder, os.W_OK | os.X_OK):
        return fail(subject, f"{folder}: this user may not write there", fix)
    return _at_least(wanted, free, subject, f"{folder}: {free / GIB:.1f} GiB free", fix)


def folder_findings(folder: Path, limit_s: float = FOLDER_S) -> Iterator[Finding]:
    """Yield the findings of another process about the folder, or the nearest one above it that exists."""
    there = next(p for p in (folder.absolute(), *folder.absolute().parents) if p.is_dir())
    out, problem = ask_program([sys.executable, "-m", "lsdflow_launch.doctor", str(there)], limit_s)
    try:
        yield from [Finding(**line) for line in json.loads(out)]
    except json.JSONDecodeError:
        fix = "does the file server answer (df, ls)? If not, use another folder"
        yield fail("folder", f"{there}: {problem or 'no answer'}", fix)


def try_folder(folder: Path) -> Iterator[Finding]:
    """Yield what a folder on this file system can do. Its room and speed are those of a run's results."""
    yield _kind(folder)
    space = os.statvfs(folder)
    free, files = space.f_bavail * space.f_frsize, space.f_favail if space.f_files else FREE_FILES
    found = f"{free / GIB:.1f} GiB" + (f" and {files} files" if space.f_files else "") + f" free in {folder}"
    fix = "a run writes about 30 bytes per voxel (see lsdflow plan DIR): free some space"
    yield _at_least(1, min(free / FREE_BYTES, files / FREE_FILES), "room", found, fix, fail)
    try:
        with scratch_folder(folder, "doctor") as probe:
            yield _commit(probe)
            yield _speed(probe / "speed")
    except OSError as error:
        fix = "use a folder that this user may write into"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            fix = "free some space, or raise the quota"
        elif error.errno in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM):
            fix = "this file system cannot do what a run needs (hard links, fsync): use another one"
        yield fail("writing", f"{folder}: {error.strerror}", fix)


def _kind(folder: Path) -> Finding:
    """Return the type of the file system: that of the last mount with the longest path above the folder."""
    rows = [line.split() for line in Path("/proc/self/mounts").read_text(errors="replace").splitlines()]
    above = [(row[1], row[2]) for row in rows if folder.is_relative_to(row[1].replace("\\040", " "))]
    kind = max(reversed(above), key=lambda mount: len(mount[0]))[1]
    if kind in NETWORK or kind.startswith("fuse"):
        return ok("file system", f"{folder}: {kind}, shared or remote")
    if kind in ("tmpfs", "ramfs"):
        return warn("file system", f"{folder}: {kind}, memory of this machine", "a restart deletes it: use a disk")
    if kind == "overlay":
        return warn("file system", f"{folder}: overlay, inside a container", "mount a folder of the machine there")
    return ok("file system", f"{folder}: {kind}, of this machine only")


def _commit(probe: Path) -> Finding:
    """Try what results and locks rely on: a rename over a file, and a second hard link that fails."""
    for name in ("old", "new"):
        (probe / name).write_text(name)
    (probe / "new").replace(probe / "old")
    safe = (probe / "old").read_text() == "new" and not (probe / "new").exists()
    os.link(probe / "old", probe / "lock")
    try:
        os.link(probe / "old", probe / "lock")
        safe = False
    except FileExistsError:
        pass
    if safe:
        return ok("writing", "renames are atomic, and a name is created only once")
    return fail("writing", "renames or links are not atomic here", "use another file system: results could be damaged")


def _speed(path: Path) -> Finding:
    """Measure writing with fsync, and reading, which may come from the page cache."""
    piece = os.urandom(PIECE_BYTES)  # random, so that no file system can compress it
    started = time.monotonic()
    with path.open("wb") as file:
        for _ in range(SPEED_BYTES // PIECE_BYTES):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    written = time.monotonic()
    with path.open("rb") as file:
        same = all(found == piece for found in iter(lambda: file.read(PIECE_BYTES), b""))
    if not same or path.stat().st_size != SPEED_BYTES:
        return fail("reading back", "other bytes than were written", "do not use this disk")
    write, read = (SPEED_BYTES / 1e6 / s for s in (written - started, time.monotonic() - written))
    found = f"{write:.0f} MB/s written, {read:.0f} MB/s read (32 MiB)"
    fix = "a run will wait for this disk: use a faster one, or larger blocks"
    return _at_least(SLOW_MB_PER_S, min(write, read), "speed", found, fix)


def stage_findings() -> Iterator[Finding]:
    """Yield for each stage whether its command is installed and has this contract."""
    with ThreadPoolExecutor(available_cores()) as pool:
        yield from pool.map(_stage_finding, STAGES)


def _stage_finding(stage: str) -> Finding:
    try:
        out, problem = ask_program([str(stage_command(stage)), "--version"], STAGE_S)
    except MissingInput as error:
        # The trainings have an environment of their own, which not everybody needs.
        return (warn if stage in TRAININGS else fail)(stage, error.what, error.fix)
    if not problem and f"(contract {CONTRACT_MAJOR}." in out:
        return ok(stage, out.strip())
    return fail(stage, out.strip() or problem, f"install the stage of contract {CONTRACT_VERSION}: make setup")


def ask_doctor_of(stage: str, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """Return the JSON answer of `<stage> doctor`; {"problem": why} if there is none."""
    try:
        out, problem = ask_program([str(stage_command(stage)), "doctor", "--json", *arguments], STAGE_S)
        facts: dict[str, Any] = json.loads(out)
    except MissingInput as error:
        return {"problem": error.what}
    except json.JSONDecodeError:
        return {"problem": problem or "no answer"}
    return {"problem": facts["what"]} if "exit_code" in facts else facts


def gpu_findings() -> Iterator[Finding]:
    """Yield findings about the driver and its GPUs, then about torch in each environment."""
    with ThreadPoolExecutor() as pool:
        with_torch = [stage for stage in ONE_OF_EACH_TORCH if stage in stages_here()]
        answers = pool.map(ask_doctor_of, with_torch)
        out, problem = ask_program(["nvidia-smi", GPU_FACTS, "--format=csv,noheader,nounits"])
        gpus = [] if problem else out.strip().splitlines()
        if shutil.which("nvidia-smi") is None:
            yield ok("GPU", "no driver: networks run on the CPU (profile tiny, compute.device auto)")
        elif not gpus:
            yield fail("GPU", f"nvidia-smi: {problem or 'no GPU'}", "load the driver (nvidia-smi must list GPUs)")
        for line in gpus:
            name, total, free, driver = (part.strip() for part in line.split(","))
            yield ok("GPU", f"{name}, {free} of {total} MiB free, driver {driver}")
        for stage, facts in zip(with_torch, answers, strict=True):
            yield torch_finding(stage, facts, len(gpus))


def torch_finding(stage: str, facts: Mapping[str, Any], gpus: int) -> Finding:
    """Return whether torch of a stage sees the GPUs that the driver reports."""
    subject = f"torch of {stage}"
    if "torch" not in facts:
        return fail(subject, str(facts.get("problem", "no answer")), f"{stage} doctor --debug shows more; make setup")
    cuda = f"CUDA {facts['cuda']} (driver {facts['driver']} or newer)"
    found = f"{facts['torch']} for {cuda if facts['cuda'] else 'the CPU only'}, sees {facts['devices']} GPUs"
    if facts["devices"] >= gpus:
        return ok(subject, found)
    if not facts["cuda"]:
        return fail(subject, f"{found}, there are {gpus}", "make setup TORCH=cuda, or the images of TORCH=cuda")
    if facts["devices"]:
        return warn(subject, f"{found}, there are {gpus}", "CUDA_VISIBLE_DEVICES hides the others?")
    fix = f"a driver for {cuda}; for drivers from 525 on: make setup TORCH=cuda12"
    return fail(subject, f"{found}: {facts.get('cuda_problem') or 'CUDA cannot be used'}", fix)


def container_findings() -> Iterator[Finding]:
    """Yield a finding for each installed engine."""
    here = [command for command in ENGINES if shutil.which(command[0])]
    if not here:
        yield ok("containers", "no docker, podman or apptainer: needed only for --backend container, compose, clusters")
    for command in here:
        out, problem = ask_program(command)
        if out.strip() and not problem:
            yield ok(command[0], out.strip().splitlines()[-1])
        else:
            fix = f"`{' '.join(command[:2])}` must work for this user: is its service running, are you in its group?"
            yield warn(command[0], f"does not answer this user: {problem or 'no version'}", fix)


def scheduler_findings(experiment: Experiment | None) -> Iterator[Finding]:
    """Yield findings about the existing partitions, and those that the jobs of the experiment need."""
    wanted = experiment is not None and experiment.uses_cluster
    try:
        partitions = existing_partitions()
    except StageError as error:
        if error.exit_code == MissingInput.exit_code and not wanted:
            yield ok("scheduler", "no SLURM here: needed for lsdflow submit only")
        else:
            yield fail("scheduler", f"{error.what} {error.found}".strip(), error.fix or "run on a login node")
        return
    listed = ", ".join(f"{p.name} ({p.nodes} nodes, {p.time_limit}, {p.state})" for p in partitions.values())
    yield ok("scheduler", f"SLURM: {listed or 'no partitions'}")
    if experiment is not None:
        yield _partition_finding(experiment, partitions)


def _partition_finding(experiment: Experiment, partitions: dict[str, Partition]) -> Finding:
    """Check the partitions of the jobs; without [cluster] in the file a missing default is only a warning."""
    subject = "partitions of [cluster]"
    try:
        settings = job_settings(cluster_of(experiment), experiment)
    except StageError as error:
        return fail("[cluster]", error.what, error.fix)
    named = {name for k, v in settings.items() if k.endswith("_PARTITION") for name in v.split(",") if name}
    if missing := sorted(named - set(partitions)):
        say = fail if experiment.uses_cluster else warn
        fix = f"set cluster.partition_cpu and cluster.partition_gpu: {', '.join(partitions)}"
        return say(subject, f"there is no {', '.join(missing)}", fix)
    if down := sorted(name for name in named if partitions[name].state != "up"):
        return warn(subject, f"not up: {', '.join(down)}", "jobs will wait; see sinfo")
    return ok(subject, ", ".join(sorted(named)) or "the default one")


def store_findings(experiment: Experiment | None) -> Iterator[Finding]:
    """Yield the findings about a mongo store, which a stage with its driver asks; a files store is in the folder."""
    if experiment is None:
        return
    if experiment.store.engine == "files":
        yield ok("store", "files, in the folder of the experiment")
        return
    sets = [part for override in experiment.overrides for part in ("--set", override)]
    answer = ask_doctor_of("watershed", ["--experiment", str(experiment.path), *sets])
    yield from mongo_findings(answer.get("store", answer))


def mongo_findings(facts: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings that follow from the facts of a mongo store."""
    if "problem" in facts:
        fix = str(facts.get("fix") or "lsdflow validate DIR shows more")
        yield fail("store", f"mongo at {facts.get('address', '?')}: {facts['problem']}", fix)
        return
    yield ok("store", f"mongo {facts['version']} at {facts['address']}, {facts['seconds_to_answer']:.2f} s an answer")
    if facts["lets_strangers_in"]:
        yield warn("login of the store", "anyone is let in without a password", "start mongod with --auth")
    version = tuple(int(part) for part in facts["version"].split(".") if part.isdigit())
    if (8, 0, 32) <= version <= (8, 0, 38) and not facts["replica_set"]:
        found = f"a single server of mongo {facts['version']} may lose writes when it is killed"
        yield warn("writes of the store", found, "a replica set of one member, or 7.0")


def main() -> None:
    """Try out the folder of the command line; print the findings as JSON to stdout."""
    sys.stdout.write(json.dumps([asdict(line) for line in try_folder(Path(sys.argv[1]).resolve())]))


if __name__ == "__main__":
    main()
