"""One coordinator at a time: of many that try, one holds the lock; the dead are found out; times are the server's."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lsdflow_command import lock_file
from lsdflow_command.lock_file import Holder, LockFile, folder_lock
from lsdflow_contract.errors import Interrupted, OutputConflict

ELSEWHERE = {"id": "x", "host": "elsewhere", "pid": 1, "job": ""}


def _leave_dead(folder: Path) -> None:
    """A lock that nobody has renewed for longer than it lives."""
    (folder / "lock").write_text(json.dumps(ELSEWHERE))
    old = time.time() - lock_file.EXPIRY_SECONDS - 5
    os.utime(folder / "lock", (old, old))


def _hold(folder: str, go: float, answers: multiprocessing.Queue, done: threading.Event) -> None:
    time.sleep(max(0.0, go - time.time()))
    try:
        with folder_lock(Path(folder)):
            answers.put("held")
            done.wait(60)
    except OutputConflict:
        answers.put("refused")


@pytest.mark.parametrize("dead", [False, True])
def test_of_eight_that_try_at_once_one_holds_the_lock(tmp_path: Path, dead: bool) -> None:
    if dead:
        _leave_dead(tmp_path)
    context = multiprocessing.get_context("fork")
    answers, done = context.Queue(), context.Event()
    go = time.time() + 1
    processes = [context.Process(target=_hold, args=(str(tmp_path), go, answers, done)) for _ in range(8)]
    for process in processes:
        process.start()
    found = sorted(answers.get(timeout=600) for _ in processes)
    done.set()
    for process in processes:
        process.join()
    assert found == ["held"] + ["refused"] * 7
    assert list(tmp_path.iterdir()) == []


def test_a_lock_of_a_live_coordinator_elsewhere_is_respected_and_named(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(json.dumps(ELSEWHERE))
    with pytest.raises(OutputConflict, match="elsewhere") as caught, folder_lock(tmp_path):
        pass
    assert caught.value.exit_code == 73
    assert json.loads((tmp_path / "lock").read_text()) == ELSEWHERE


def test_a_lock_that_nobody_renewed_is_taken_over(tmp_path: Path) -> None:
    _leave_dead(tmp_path)
    with folder_lock(tmp_path):
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_taken_between_check_and_takeover_stays(tmp_path: Path) -> None:
    dead, own = Holder(**ELSEWHERE), tmp_path / "own"
    living = {**ELSEWHERE, "id": "y"}
    (tmp_path / "lock").write_text(json.dumps(living))
    own.touch()
    LockFile(tmp_path / "lock").remove_stale(dead, own)
    assert json.loads((tmp_path / "lock").read_text()) == living
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "own"}


def test_a_takeover_is_waited_for_and_expires_with_its_process(tmp_path: Path) -> None:
    _leave_dead(tmp_path)
    file, own, other = LockFile(tmp_path / "lock"), tmp_path / "own", tmp_path / "other"
    dead = file.holder()
    for path in (own, other):
        path.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", lambda *_args, **_kwargs: None)  # killed before it takes anything away
        file.remove_stale(dead, other)
    (takeover,) = tmp_path.glob(".*.takeover")
    file.remove_stale(dead, own)
    assert (file.holder(), takeover.exists()) == (dead, True), "another process is about to"
    old = time.time() - lock_file.EXPIRY_SECONDS - 5
    os.utime(other, (old, old))
    file.remove_stale(dead, own)
    assert not takeover.exists()
    file.remove_stale(dead, own)
    assert file.holder() is None


def test_of_eight_that_find_a_dead_one_at_the_same_moment_one_holds_the_lock(tmp_path: Path) -> None:
    """Twenty times, each waiting for the moment without giving its core away: eight in a hundred went wrong once."""
    for turn in range(20):
        folder = tmp_path / str(turn)
        folder.mkdir()
        _leave_dead(folder)
        context = multiprocessing.get_context("fork")
        answers, done = context.Queue(), context.Event()
        go = time.monotonic() + 0.2
        processes = [context.Process(target=_try, args=(folder, go, answers, done)) for _ in range(8)]
        for process in processes:
            process.start()
        found = sorted(answers.get(timeout=600) for _ in processes)
        done.set()
        for process in processes:
            process.join()
        assert found == ["held"] + ["refused"] * 7
        assert list(folder.iterdir()) == []


def _try(folder: Path, go: float, answers: multiprocessing.Queue, done: threading.Event) -> None:
    file = LockFile(folder / "lock")
    while time.monotonic() < go:
        pass
    try:
        holder = file.acquire(lambda found, _age_s: OutputConflict(found.host))
    except OutputConflict:
        answers.put("refused")
        return
    answers.put("held")
    done.wait(60)
    file.release(holder)


def test_a_killed_process_of_this_machine_does_not_make_its_successor_wait(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from lsdflow_command.lock_file import folder_lock\n"
        "with folder_lock(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    with pytest.raises(OutputConflict), folder_lock(tmp_path):
        pass
    child.send_signal(signal.SIGKILL)
    child.wait()
    with folder_lock(tmp_path):
        pass


def test_a_coordinator_in_another_pid_namespace_with_this_host_name_keeps_its_lock(tmp_path: Path) -> None:
    """As two containers with `docker --network host`: its process number means nothing here."""
    program = (
        "import sys; from pathlib import Path; from lsdflow_command.lock_file import folder_lock\n"
        "with folder_lock(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    )
    words = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    command = [*words, sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        held = json.loads((tmp_path / "lock").read_text())
        held["pid"] = 2**22 + 1  # more than Linux gives: no process here has it
        (tmp_path / "lock").write_text(json.dumps(held))
        with pytest.raises(OutputConflict, match=socket.gethostname()), folder_lock(tmp_path):
            pass
        assert LockFile(tmp_path / "lock").live_holder() == Holder(**held)
        child.stdin.close()


def test_an_earlier_start_of_the_same_job_does_not_make_the_requeued_one_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lock").write_text(json.dumps({**ELSEWHERE, "job": "17 restart 0"}))
    monkeypatch.setenv("LSDFLOW_JOB", "18 restart 0")
    with pytest.raises(OutputConflict), folder_lock(tmp_path):
        pass
    monkeypatch.setenv("LSDFLOW_JOB", "17 restart 1")
    with folder_lock(tmp_path):
        pass


def test_a_coordinator_that_lost_its_lock_is_stopped_with_73(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lsdflow_command.interruption import interrupt_on_signals

    monkeypatch.setattr(lock_file, "RENEWAL_SECONDS", 0.2)

    def hold() -> None:
        with interrupt_on_signals(), folder_lock(tmp_path):
            (tmp_path / "lock").write_text(json.dumps(ELSEWHERE))
            time.sleep(10)

    started = time.monotonic()
    with pytest.raises(OutputConflict, match="elsewhere"):
        hold()
    assert time.monotonic() - started < 5
    assert json.loads((tmp_path / "lock").read_text()) == ELSEWHERE


def test_a_signal_while_the_lock_is_held_stays_an_interruption(tmp_path: Path) -> None:
    with pytest.raises(Interrupted, match="stopped"), folder_lock(tmp_path):
        raise Interrupted("stopped")


def test_the_lock_is_renewed_while_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock_file, "RENEWAL_SECONDS", 0.1)
    with folder_lock(tmp_path):
        os.utime(tmp_path / "lock", (1, 1))
        time.sleep(1)
        assert (tmp_path / "lock").stat().st_mtime > 1
