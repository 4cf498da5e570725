"""`lsdflow doctor`: each finding is tested by breaking what it checks; nothing that does not answer delays it."""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_launch import commands, doctor
from lsdflow_launch.cli import app
from lsdflow_launch.commands import ask_program
from lsdflow_launch.doctor import Finding, fail, ok, warn
from lsdflow_launch.slurm import jobs
from lsdflow_runtime.store.stores import store_facts

Program = Callable[[str, str], None]
FINE = {"torch": "torch 2", "cuda": "12.8", "driver": "525", "devices": 1}


def states(found: list[Finding] | Iterator[Finding]) -> dict[str, Finding]:
    """Findings by subject."""
    return {line.subject: line for line in found}


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Puts programs on PATH, on which there are none besides."""
    folder_ = tmp_path / "bin"
    folder_.mkdir()
    monkeypatch.setenv("PATH", str(folder_))

    def put(name: str, body: str) -> None:
        (folder_ / name).write_text(f"#!{sys.executable}\nimport sys, time\n{body}\n")
        (folder_ / name).chmod(0o755)

    return put


def make(root: Path, text: str = "") -> Experiment:
    root.mkdir(parents=True, exist_ok=True)
    (root / "experiment.toml").write_text(text)
    return load_experiment(root)


# the folder


def test_a_good_folder_is_fine_and_left_as_it_was(tmp_path: Path) -> None:
    found = states(doctor.folder_findings(tmp_path / "not" / "there" / "yet"))
    assert found["writing"].state == "ok", found
    assert "MB/s" in found["speed"].found
    assert "GiB and" in found["room"].found
    assert list(tmp_path.iterdir()) == []


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write everywhere; what a user may not shows only to a user."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_may_not_be_written_into_needs_a_fix() -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        with as_nobody():
            found = states(doctor.try_folder(Path(name)))["writing"]
    assert (found.state, "Permission denied" in found.found) == ("FAIL", True)
    assert found.fix == "use a folder that this user may write into"


def test_a_full_disk_needs_a_fix_and_says_to_free_space(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        found = list(doctor.try_folder(tmp_path))[-1]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (found.state, found.subject, "free some space" in found.fix) == ("FAIL", "writing", True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("blocks", "files"), [(10, 10**6), (10**9, 7)])
def test_too_few_bytes_or_inodes_need_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, files: int
) -> None:
    class Small:
        f_bavail, f_frsize, f_files, f_favail = blocks, 4096, 10**6, files

    monkeypatch.setattr(doctor.os, "statvfs", lambda _: Small)
    assert states(doctor.try_folder(tmp_path))["room"].state == "FAIL"


def test_a_file_system_without_inodes_has_room_for_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Btrfs:
        f_bavail, f_frsize, f_files, f_favail = 10**9, 4096, 0, 0

    monkeypatch.setattr(doctor.os, "statvfs", lambda _: Btrfs)
    assert states(doctor.try_folder(tmp_path))["room"].state == "ok"


def test_a_rename_that_leaves_the_old_name_needs_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "replace", lambda self, other: Path(other).write_bytes(self.read_bytes()))
    assert states(doctor.try_folder(tmp_path))["writing"].state == "FAIL"


def test_a_name_that_two_may_make_needs_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "link", lambda old, new: Path(new).write_bytes(Path(old).read_bytes()))
    assert states(doctor.try_folder(tmp_path))["writing"].state == "FAIL"


def test_a_file_system_without_hard_links_needs_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(doctor.os, "link", refuse)
    found = states(doctor.try_folder(tmp_path))["writing"]
    assert (found.state, "hard links" in found.fix) == ("FAIL", True)


@pytest.mark.proves("TRB-13")
def test_a_slow_disk_is_reported_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SLOW_MB_PER_S", 1e9)
    assert states(doctor.try_folder(tmp_path))["speed"].state == "warn"


def test_bytes_that_are_not_read_back_need_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "posix_fadvise", lambda file, *_: os.ftruncate(file, 2**20))
    assert states(doctor.try_folder(tmp_path))["reading back"].state == "FAIL"


@pytest.mark.parametrize(
    ("mounts", "state", "word"),
    [
        ("/dev/a / ext4\nhost:/x /data nfs4", "ok", "nfs4, shared or remote"),
        ("/dev/a / ext4\nhost:/x /other nfs4", "ok", "ext4, of this machine only"),
        ("/dev/a / ext4\nhost:/x /dat nfs4", "ok", "ext4, of this machine only"),
        ("/dev/a /data ext4\nnone /data tmpfs", "warn", "memory of this machine"),
        ("overlay / overlay", "warn", "inside a container"),
        ("x / ext4\ns /data/a\\040b fuse.sshfs", "ok", "fuse.sshfs, shared or remote"),
    ],
)
def test_the_file_system_is_that_of_the_nearest_mount(
    monkeypatch: pytest.MonkeyPatch, mounts: str, state: str, word: str
) -> None:
    text = "".join(f"{line} rw 0 0\n" for line in mounts.split("\n"))
    monkeypatch.setattr(Path, "read_text", lambda *_a, **_k: text)
    found = doctor._kind(Path("/data/a b"))
    assert (found.state, word in found.found) == (state, True)


def test_a_mount_that_never_answers_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = tmp_path / "python"
    sleeper.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(doctor.sys, "executable", str(sleeper))
    started = time.monotonic()
    (found,) = doctor.folder_findings(tmp_path, limit_s=0.5)
    assert time.monotonic() - started < 20
    assert (found.state, "no answer within" in found.found) == ("FAIL", True)


# the machine


@pytest.mark.parametrize(
    ("limit", "state", "fix"),
    [(1023, "FAIL", "ulimit -n 4096"), (1024, "ok", ""), (resource.RLIM_INFINITY, "ok", ""), (10**6, "ok", "")],
)
def test_too_few_open_files_need_a_fix(monkeypatch: pytest.MonkeyPatch, limit: int, state: str, fix: str) -> None:
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda _: (limit, 10**6))
    found = states(doctor.machine())["open files"]
    assert (found.state, found.fix) == (state, fix)


def test_a_machine_that_is_small_or_busy_is_reported_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available_cores", lambda: 1)
    monkeypatch.setattr(doctor, "free_memory_bytes", lambda: 2**30)
    monkeypatch.setattr(doctor, "SHARED_BYTES", 2**60)
    found = states(doctor.machine())
    assert [found[name].state for name in ("cores", "memory", "shared memory")] == ["warn"] * 3


def test_a_temp_folder_that_is_gone_needs_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: str(tmp_path / "gone"))
    assert states(doctor.machine())["temp folder"].state == "FAIL"


def test_stages_that_are_missing_or_of_another_contract_need_a_fix(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(doctor, "STAGES", ("prepare", "no-such-stage"))
    monkeypatch.setenv("LSDFLOW_BIN", str(tmp_path / "bin"))
    program("prepare", "print('prepare 9.9 (contract 9.0)')")
    found = states(doctor.stage_findings())
    assert (found["prepare"].state, "contract 9.0" in found["prepare"].found) == ("FAIL", True)
    assert found["no-such-stage"].state == "FAIL"
    program("prepare", "print('prepare 0.1 (contract 2.0)')")
    assert states(doctor.stage_findings())["prepare"].state == "ok"


def test_a_training_that_is_not_installed_is_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def only_predict(stage: str) -> Path:
        if stage != "predict":
            raise MissingInput(f"no {stage}", fix=f"pip install lsdflow-{stage}")
        return tmp_path / stage

    for module in (doctor, commands):
        monkeypatch.setattr(module, "stage_command", only_predict)
    monkeypatch.setattr(doctor, "STAGES", ("train-lsd", "watershed"))
    found = states(doctor.stage_findings())
    assert [(found[s].state, found[s].fix) for s in found] == [
        ("warn", "pip install lsdflow-train-lsd"),
        ("FAIL", "pip install lsdflow-watershed"),
    ]
    monkeypatch.setattr(doctor, "ask_doctor_of", lambda stage: {**FINE, "torch": stage})
    monkeypatch.setattr(doctor, "ask_program", lambda *_: ("", "no driver"))
    assert [name for name in states(doctor.gpu_findings()) if name.startswith("torch")] == ["torch of predict"]


# GPU, containers, scheduler


@pytest.mark.proves("CON-04")
@pytest.mark.parametrize(
    ("facts", "gpus", "state", "to_do"),
    [
        (FINE, 1, "ok", ""),
        ({**FINE, "devices": 0, "cuda": ""}, 0, "ok", ""),
        ({**FINE, "devices": 0, "cuda": ""}, 1, "FAIL", "TORCH=cuda"),
        ({**FINE, "devices": 0, "cuda_problem": "driver too old"}, 1, "FAIL", "CUDA 12.8 (driver 525 or newer)"),
        ({**FINE, "devices": 1}, 2, "warn", "CUDA_VISIBLE_DEVICES"),
        ({"problem": "no answer within 90 s"}, 0, "FAIL", "doctor --debug"),
    ],
)
def test_torch_must_see_the_gpus_that_the_driver_has(facts: dict[str, Any], gpus: int, state: str, to_do: str) -> None:
    found = doctor.torch_finding("predict", facts, gpus)
    assert (found.state, to_do in found.fix) == (state, True)


@pytest.mark.proves("CON-04")
def test_a_driver_that_lists_no_gpu_needs_a_fix(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ask_doctor_of", lambda *_: {**FINE, "devices": 0})
    program("nvidia-smi", "sys.stderr.write('NVIDIA-SMI has failed'); sys.exit(9)")
    found = states(doctor.gpu_findings())
    assert (found["GPU"].state, "has failed" in found["GPU"].found) == ("FAIL", True)
    program("nvidia-smi", "print('NVIDIA H200, 143771, 143000, 570.1')")
    found = states(doctor.gpu_findings())
    assert (found["GPU"].state, "driver 570.1" in found["GPU"].found) == ("ok", True)
    assert found["torch of predict"].state == "FAIL"


def test_an_engine_that_does_not_answer_this_user_is_reported_and_none_is_fine(program: Program) -> None:
    assert states(doctor.container_findings())["containers"].state == "ok"
    program("docker", "sys.stderr.write('permission denied while trying to connect'); sys.exit(1)")
    program("apptainer", "print('apptainer version 1.4.5')")
    found = states(doctor.container_findings())
    assert (found["docker"].state, "permission denied" in found["docker"].found) == ("warn", True)
    assert found["apptainer"].state == "ok"


def test_a_program_that_hangs_is_given_up(program: Program) -> None:
    program("docker", "time.sleep(60)")
    started = time.monotonic()
    assert ask_program(["docker", "version"], 0.5)[1].startswith("no answer within")
    assert time.monotonic() - started < 20


SINFO = "print('cpu*|up|2|1-00:00:00|(null)'); print('old|down|1|infinite|(null)'); print('slow|drain|1|infinite|')"
CLUSTER = '[cluster]\npartition_cpu = "cpu"\npartition_gpu = "{}"\n'


@pytest.mark.parametrize(
    ("text", "state", "found"),
    [
        (CLUSTER.format("a100"), "FAIL", "there is no a100"),
        (CLUSTER.format("cpu"), "ok", "cpu"),
        (CLUSTER.format("old"), "warn", "not up: old"),
        (CLUSTER.format("slow"), "warn", "not up: slow"),
        ("", "warn", "there is no gpu"),
    ],
)
def test_partitions_of_the_experiment_must_be_there(
    program: Program, tmp_path: Path, text: str, state: str, found: str
) -> None:
    program("sinfo", SINFO)
    lines = states(doctor.scheduler_findings(make(tmp_path / "a", text)))
    assert lines["scheduler"].state == "ok"
    line = lines["partitions of [cluster]"]
    assert (line.state, line.found) == (state, found)


def test_a_scheduler_that_is_missing_or_silent_matters_to_those_who_name_it(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, plain = make(tmp_path / "a", CLUSTER.format("gpu")), make(tmp_path / "b")
    assert states(doctor.scheduler_findings(plain))["scheduler"].state == "ok"
    assert states(doctor.scheduler_findings(named))["scheduler"].state == "FAIL"
    monkeypatch.setattr(jobs, "SINFO_LIMIT_S", 0.5)
    program("sinfo", "time.sleep(60)")
    started = time.monotonic()
    assert states(doctor.scheduler_findings(plain))["scheduler"].state == "FAIL"
    assert time.monotonic() - started < 20


# the store


def mongo(root: Path, uri: str) -> Experiment:
    experiment = make(root, '[store]\nengine = "mongo"\nuri_file = "uri"\n')
    (root / "uri").write_text(uri)
    (root / "uri").chmod(0o600)
    return experiment


def test_a_dead_store_needs_a_fix_and_no_password_is_printed(tmp_path: Path) -> None:
    facts = store_facts(mongo(tmp_path / "a", "mongodb://alice:secret@127.0.0.1:1/db"))
    (found,) = doctor.mongo_findings(facts)
    assert found.state == "FAIL"
    assert "127.0.0.1:1" in found.found
    assert "secret" not in json.dumps(facts)


def test_a_file_with_the_uri_that_others_may_read_needs_a_fix(tmp_path: Path) -> None:
    experiment = mongo(tmp_path / "a", "mongodb://alice:secret@127.0.0.1:1/db")
    (tmp_path / "a" / "uri").chmod(0o644)
    (found,) = doctor.mongo_findings(store_facts(experiment))
    assert (found.state, "open to others" in found.found, "chmod 600" in found.fix) == ("FAIL", True, True)


def test_a_living_store_with_a_password_is_fine(tmp_path: Path, mongod: Any) -> None:
    uri_file = mongod.uri_file("doctor", tmp_path)
    text = f'[store]\nengine = "mongo"\nuri_file = "{uri_file}"\ndatabase = "doctor"\n'
    (found,) = doctor.mongo_findings(store_facts(make(tmp_path / "a", text)))
    assert (found.state, found.subject, "0." in found.found) == ("ok", "store", True)


def test_a_stage_that_cannot_say_how_its_store_is_needs_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ask_doctor_of", lambda *_: {"problem": "the command watershed is not installed"})
    (found,) = doctor.store_findings(mongo(tmp_path / "a", "mongodb://alice:secret@127.0.0.1:1/db"))
    assert (found.state, "not installed" in found.found, found.fix) == ("FAIL", True, "lsdflow validate DIR shows more")


KNOWN = {"version": "7.0.1", "address": "h:1/d", "seconds_to_answer": 0.0, "lets_strangers_in": False}
KNOWN |= {"replica_set": ""}


@pytest.mark.parametrize(
    ("change", "subjects"),
    [
        ({}, []),
        ({"lets_strangers_in": True}, ["login of the store"]),
        ({"version": "8.0.35"}, ["writes of the store"]),
        ({"version": "8.0.35", "replica_set": "rs0"}, []),
        ({"version": "8.0.39"}, []),
    ],
)
def test_what_is_unsafe_about_a_store_is_reported(change: dict[str, Any], subjects: list[str]) -> None:
    store, *others = doctor.mongo_findings({**KNOWN, **change})
    assert (store.state, [line.subject for line in others]) == ("ok", subjects)
    assert {line.state for line in others} <= {"warn"}


# the command


@pytest.mark.parametrize(
    ("lines", "code"),
    [([ok("a", "b")], 0), ([ok("a", "b"), warn("c", "d", "e")], 0), ([warn("c", "d"), fail("f", "g", "h")], 1)],
)
def test_the_exit_code_is_1_only_for_what_needs_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[Finding], code: int
) -> None:
    monkeypatch.setattr(doctor, "findings", lambda _: lines)
    done = CliRunner().invoke(app, ["doctor", str(tmp_path), "--json"])
    assert done.exit_code == code
    assert [line["state"] for line in json.loads(done.stdout)] == [line.state for line in lines]
    text = CliRunner().invoke(app, ["doctor", str(tmp_path)]).stdout
    assert all(line.found in text and line.fix in text for line in lines)


def test_a_broken_experiment_file_does_not_hide_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "experiment.toml").write_text("[compute\n")
    for name in ("machine", "container_findings", "gpu_findings", "stage_findings"):
        monkeypatch.setattr(doctor, name, lambda: iter([ok("rest", "there")]))
    monkeypatch.setattr(doctor, "folder_findings", lambda _: iter([]))
    found = states(doctor.findings(tmp_path))
    assert (found["experiment file"].state, found["rest"].state) == ("FAIL", "ok")
