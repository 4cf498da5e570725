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
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_launch.cli import app
from lsdflow_launch.doctor import checks, folder, machine, mount, probe
from lsdflow_launch.doctor.probe import Finding, fail, ok, warn
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
    found = states(folder.folder_findings(tmp_path / "not" / "there" / "yet"))
    for subject in ("rename", "making a name once", "clock of the file system"):
        assert found[subject].state == "ok", found[subject]
    assert "MB/s" in found["speed"].found
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
            facts = mount.tried_out(Path(name))
        found = states(folder.findings_of(Path(name), facts))["writing"]
    assert (found.state, "Permission denied" in found.found) == ("FAIL", True)
    assert found.fix == "use a folder that this user may write into"


def test_a_full_disk_needs_a_fix_and_says_to_free_space(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        facts = mount.tried_out(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    found = states(folder.findings_of(tmp_path, facts))["writing"]
    assert (found.state, "free some space" in found.fix) == ("FAIL", True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("blocks", "files"), [(10, 10**6), (10**9, 7)])
def test_too_few_bytes_or_inodes_need_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocks: int, files: int
) -> None:
    real = os.statvfs(tmp_path)

    class Small:
        f_bavail, f_frsize, f_files, f_favail = blocks, 4096, real.f_files, files

    monkeypatch.setattr(mount.os, "statvfs", lambda _: Small)
    assert states(folder.findings_of(tmp_path, mount.tried_out(tmp_path)))["room"].state == "FAIL"


def test_a_rename_that_leaves_the_old_name_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "replace", lambda self, other: Path(other).write_bytes(self.read_bytes()))
    assert states(folder.findings_of(tmp_path, mount.tried_out(tmp_path)))["rename"].state == "FAIL"


def test_a_name_that_two_may_make_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open
    monkeypatch.setattr(mount.os, "open", lambda path, flags, *mode: real(path, flags & ~os.O_EXCL, *mode))
    assert states(folder.findings_of(tmp_path, mount.tried_out(tmp_path)))["making a name once"].state == "FAIL"


def test_a_file_system_without_hard_links_needs_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(mount.os, "link", refuse)
    found = states(folder.findings_of(tmp_path, mount.tried_out(tmp_path)))["writing"]
    assert (found.state, "hard links" in found.fix) == ("FAIL", True)


def test_a_file_server_whose_clock_is_off_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = SimpleNamespace(time=lambda: time.time() + 3600, monotonic=time.monotonic)
    monkeypatch.setattr(mount, "time", ahead)
    found = states(folder.findings_of(tmp_path, mount.tried_out(tmp_path)))["clock of the file system"]
    assert (found.state, "3600.0 s behind" in found.found) == ("warn", True)


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ({"read_mb_per_s": 2.0}, "speed"),
        ({"write_mb_per_s": 2.0}, "speed"),
        ({"clock_ahead_s": -6.0}, "clock of the file system"),
        ({"file_system": "overlay"}, "file system"),
    ],
)
def test_what_makes_a_folder_slow_or_odd_is_reported_and_stops_nothing(
    tmp_path: Path, change: dict[str, Any], subject: str
) -> None:
    good = {**mount.tried_out(tmp_path), "read_mb_per_s": 200.0, "write_mb_per_s": 200.0, "file_system": "ext4"}
    good |= {"free_bytes": 10**12, "free_files": None, "clock_ahead_s": 0.0}
    assert {line.state for line in folder.findings_of(tmp_path, good)} == {"ok"}
    found = states(folder.findings_of(tmp_path, {**good, **change}))
    assert {name: line.state for name, line in found.items() if line.state != "ok"} == {subject: "warn"}


def test_bytes_that_are_not_read_back_need_a_fix(tmp_path: Path) -> None:
    facts = {**mount.tried_out(tmp_path), "reads_back_what_was_written": False}
    assert states(folder.findings_of(tmp_path, facts))["reading back"].state == "FAIL"


def test_memory_and_network_file_systems_are_named(tmp_path: Path) -> None:
    facts = mount.tried_out(tmp_path)
    kinds = {kind: states(folder.findings_of(tmp_path, {**facts, "file_system": kind})) for kind in ("tmpfs", "nfs4")}
    assert kinds["tmpfs"]["file system"].state == "warn"
    assert "shared or remote" in kinds["nfs4"]["file system"].found
    assert mount.tried_out(Path("/dev/shm"))["file_system"] == "tmpfs"


def test_a_mount_that_never_answers_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = tmp_path / "python"
    sleeper.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(folder.sys, "executable", str(sleeper))
    started = time.monotonic()
    (found,) = folder.folder_findings(tmp_path, limit_s=0.5)
    assert time.monotonic() - started < 20
    assert (found.state, "no answer within" in found.found) == ("FAIL", True)


# the machine


def test_limits_of_the_machine_that_stop_a_run_need_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (256, 4096))
    before = os.umask(0o277)
    try:
        found = states(machine.machine())
        assert os.umask(0o277) == 0o277, "the doctor changed the umask"
    finally:
        os.umask(before)
    assert (found["open files"].state, found["open files"].fix) == ("FAIL", "ulimit -n 4096")
    assert found["umask"].state == "FAIL"


@pytest.mark.parametrize(
    ("mask", "limit", "umask", "files"),
    [
        (0o022, 1024, "ok", "ok"),
        (0o077, 1023, "ok", "FAIL"),
        (0o200, resource.RLIM_INFINITY, "FAIL", "ok"),
        (0o002, 10**6, "ok", "ok"),
    ],
)
def test_only_a_limit_that_stops_a_run_needs_a_fix(
    monkeypatch: pytest.MonkeyPatch, mask: int, limit: int, umask: str, files: str
) -> None:
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (limit, limit))
    before = os.umask(mask)
    try:
        found = states(machine.machine())
    finally:
        os.umask(before)
    assert (found["umask"].state, found["open files"].state) == (umask, files)


def test_a_temp_folder_that_is_gone_needs_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine.tempfile, "gettempdir", lambda: str(tmp_path / "gone"))
    assert states(machine.machine())["temp folder"].state == "FAIL"


def test_stages_that_are_missing_or_of_another_contract_need_a_fix(
    program: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "STAGES", ("prepare", "no-such-stage"))
    monkeypatch.setenv("LSDFLOW_BIN", str(tmp_path / "bin"))
    program("prepare", "print('prepare 9.9 (contract 9.0)')")
    found = states(machine.commands())
    assert (found["prepare"].state, "contract 9.0" in found["prepare"].found) == ("FAIL", True)
    assert found["no-such-stage"].state == "FAIL"
    program("prepare", "print('prepare 0.1 (contract 2.0)')")
    assert states(machine.commands())["prepare"].state == "ok"


# GPU, containers, scheduler


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
    found = machine.torch_finding("predict", facts, gpus)
    assert (found.state, to_do in found.fix) == (state, True)


def test_a_driver_that_lists_no_gpu_needs_a_fix(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ask_stage_in_time", lambda *_: {**FINE, "devices": 0})
    program("nvidia-smi", "sys.stderr.write('NVIDIA-SMI has failed'); sys.exit(9)")
    found = states(machine.gpu_findings())
    assert (found["GPU"].state, "has failed" in found["GPU"].found) == ("FAIL", True)
    program("nvidia-smi", "print('NVIDIA H200, 143771, 143000, 570.1')")
    found = states(machine.gpu_findings())
    assert (found["GPU"].state, "driver 570.1" in found["GPU"].found) == ("ok", True)
    assert found["torch of predict"].state == "FAIL"


def test_an_engine_that_does_not_answer_this_user_is_reported_and_none_is_fine(program: Program) -> None:
    assert states(machine.container_findings())["containers"].state == "ok"
    program("docker", "sys.stderr.write('permission denied while trying to connect'); sys.exit(1)")
    program("apptainer", "print('apptainer version 1.4.5')")
    found = states(machine.container_findings())
    assert (found["docker"].state, "permission denied" in found["docker"].found) == ("warn", True)
    assert found["apptainer"].state == "ok"


def test_a_program_that_hangs_is_given_up(program: Program) -> None:
    program("docker", "time.sleep(60)")
    started = time.monotonic()
    assert probe.ask_program(["docker", "version"], 0.5).problem.startswith("no answer within")
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
    lines = states(checks.scheduler_findings(make(tmp_path / "a", text)))
    assert lines["scheduler"].state == "ok"
    line = lines["partitions of [cluster]"]
    assert (line.state, line.found) == (state, found)


def test_a_scheduler_that_is_missing_or_silent_matters_to_those_who_name_it(
    program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named, plain = make(tmp_path / "a", CLUSTER.format("gpu")), make(tmp_path / "b")
    assert states(checks.scheduler_findings(plain))["scheduler"].state == "ok"
    assert states(checks.scheduler_findings(named))["scheduler"].state == "FAIL"
    monkeypatch.setattr(jobs, "SINFO_LIMIT_S", 0.5)
    program("sinfo", "time.sleep(60)")
    started = time.monotonic()
    assert states(checks.scheduler_findings(plain))["scheduler"].state == "FAIL"
    assert time.monotonic() - started < 20


# the store


def mongo(root: Path, uri: str) -> Experiment:
    experiment = make(root, '[store]\nengine = "mongo"\nuri_file = "uri"\n')
    (root / "uri").write_text(uri)
    (root / "uri").chmod(0o600)
    return experiment


def test_a_dead_store_needs_a_fix_and_no_password_is_printed(tmp_path: Path) -> None:
    facts = store_facts(mongo(tmp_path / "a", "mongodb://alice:secret@127.0.0.1:1/db"))
    (found,) = checks.store_findings_of(facts)
    assert found.state == "FAIL"
    assert "127.0.0.1:1" in found.found
    assert "secret" not in json.dumps(facts)


def test_a_file_with_the_uri_that_others_may_read_needs_a_fix(tmp_path: Path) -> None:
    experiment = mongo(tmp_path / "a", "mongodb://alice:secret@127.0.0.1:1/db")
    (tmp_path / "a" / "uri").chmod(0o644)
    (found,) = checks.store_findings_of(store_facts(experiment))
    assert (found.state, "open to others" in found.found, "chmod 600" in found.fix) == ("FAIL", True, True)


def test_a_living_store_reports_version_safety_login_and_clock(tmp_path: Path, mongod: Any) -> None:
    uri_file = mongod.uri_file("doctor", tmp_path)
    text = f'[store]\nengine = "mongo"\nuri_file = "{uri_file}"\ndatabase = "doctor"\n'
    experiment = make(tmp_path / "a", text)
    found = states(checks.store_findings_of(store_facts(experiment)))
    assert found["store"].state == "ok", found
    assert found["login of the store"].state == "ok"
    assert "w=majority, journal on" in found["writes of the store"].found
    assert found["clock of the store"].state == "ok"


KNOWN = {"version": "7.0.1", "address": "h:1/d", "seconds_to_answer": 0.0, "lets_strangers_in": False}
KNOWN |= {"w": "majority", "journal": True, "replica_set": "rs0", "clock_ahead_s": 0.0}


@pytest.mark.parametrize(
    ("change", "subject"),
    [
        ({"lets_strangers_in": True}, "login of the store"),
        ({"version": "4.2.25"}, "writes of the store"),
        ({"version": "8.0.35", "replica_set": ""}, "writes of the store"),
        ({"clock_ahead_s": -90.0}, "clock of the store"),
    ],
)
def test_what_is_unsafe_about_a_store_is_reported(change: dict[str, Any], subject: str) -> None:
    assert {line.state for line in checks.store_findings_of(KNOWN)} == {"ok"}
    found = states(checks.store_findings_of({**KNOWN, **change}))
    assert [name for name, line in found.items() if line.state == "warn"] == [subject]


# the command


@pytest.mark.parametrize(
    ("lines", "code"),
    [([ok("a", "b")], 0), ([ok("a", "b"), warn("c", "d", "e")], 0), ([warn("c", "d"), fail("f", "g", "h")], 1)],
)
def test_the_exit_code_is_1_only_for_what_needs_a_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[Finding], code: int
) -> None:
    monkeypatch.setattr(checks, "findings", lambda _: lines)
    done = CliRunner().invoke(app, ["doctor", str(tmp_path), "--json"])
    assert done.exit_code == code
    assert [line["state"] for line in json.loads(done.stdout)] == [line.state for line in lines]
    text = CliRunner().invoke(app, ["doctor", str(tmp_path)]).stdout
    assert all(line.found in text and line.fix in text for line in lines)


def test_a_broken_experiment_file_does_not_hide_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "experiment.toml").write_text("[compute\n")
    for name in ("machine", "container_findings", "gpu_findings", "commands"):
        monkeypatch.setattr(checks, name, lambda: iter([ok("rest", "there")]))
    monkeypatch.setattr(checks, "folder_findings", lambda _: iter([]))
    found = states(checks.findings(tmp_path))
    assert (found["experiment file"].state, found["rest"].state) == ("FAIL", "ok")
