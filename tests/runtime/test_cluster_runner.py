"""Coordinator and workers as separate commands that find one another by a file: any loss leaves the same bits."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from lsdflow_contract.errors import BadData, BlocksFailed, ConfigError, Interrupted, MissingInput, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import made
from lsdflow_runtime.engine.blockwise import run_task
from lsdflow_runtime.engine.cluster import Coordinator, CoordinatorFile, _process_session, own_address, sole_coordinator
from lsdflow_runtime.engine.verify import verify_task
from lsdflow_runtime.io.volumes import open_volume
from lsdflow_runtime.store.rag_store import checksum_of_nodes

Make = Callable[..., Experiment]
TOY = Path(__file__).parent / "toy"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `toy <verb>` on an experiment; everything started is killed at the end."""
    processes: list[subprocess.Popen[str]] = []

    def go(verb: str, experiment: Experiment, *overrides: str, **environment: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "lsdflow_toy.cli", verb, "--experiment", str(experiment.path)]
        for override in (*(("compute.runner=cluster",) if verb == "run" else ()), *overrides):
            command += ["--set", override]
        variables = {"PYTHONPATH": str(TOY), "LSDFLOW_HOST": "127.0.0.1", "LSDFLOW_SUBMISSION": "test", **environment}
        process = subprocess.Popen(command, env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True)
        processes.append(process)
        return process

    yield go
    for process in processes:
        process.kill()
        process.communicate()


@pytest.fixture
def reference(make_experiment: Make) -> str:
    """Identity of the undisturbed serial run."""
    from lsdflow_toy.stage import block_task

    return run_task(block_task(make_experiment("serial", "compute.runner=serial"))).identity


def _end(process: subprocess.Popen[str], seconds: float = 600) -> tuple[int, str]:
    _, text = process.communicate(timeout=seconds)
    return process.returncode, text


def _identity(experiment: Experiment) -> str:
    return read_manifest(experiment.layout, "toy").identity


def _slow(experiment: Experiment, seconds: float) -> None:
    (experiment.layout.root / "slow").write_text(str(seconds))


def _blocks_done(experiment: Experiment) -> int:
    from lsdflow_toy.stage import block_task

    return len(block_task(experiment).marks.done())


def _wait_for_blocks(experiment: Experiment, at_least: int) -> int:
    deadline = time.monotonic() + 600
    while _blocks_done(experiment) < at_least:
        assert time.monotonic() < deadline, "no progress"
        time.sleep(0.05)
    return _blocks_done(experiment)


def test_workers_that_come_before_and_after_the_coordinator_share_the_blocks(
    make_experiment: Make, start: Start, reference: str
) -> None:
    experiment = make_experiment("a")
    _slow(experiment, 0.3)
    early = start("worker", experiment, LSDFLOW_JOB="early")
    coordinator = start("run", experiment)
    late = start("worker", experiment, LSDFLOW_JOB="late")
    assert [_end(p)[0] for p in (coordinator, early, late)] == [0, 0, 0]
    assert _identity(experiment) == reference
    from lsdflow_toy.stage import block_task

    marks = block_task(experiment).marks
    assert {marks.record(n)["job"] for n in marks.done()} == {"early", "late"}


def test_a_refusal_at_the_port_of_a_coordinator_is_in_the_log_of_its_run(make_experiment: Make, start: Start) -> None:
    experiment = make_experiment("a")
    coordinator = start("run", experiment)
    file, deadline = CoordinatorFile(experiment.layout.stage_runs("toy")), time.monotonic() + 600
    while (found := file.read()) is None or not found.port:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with socket.create_connection((found.host, found.port)) as stranger:
        stranger.sendall(b"x" * 64)
        stranger_port = stranger.getsockname()[1]
        while stranger.recv(1000):
            pass
    assert _end(start("worker", experiment))[0] == 0
    assert _end(coordinator)[0] == 0
    (log,) = experiment.layout.stage_runs("toy").glob("*/log.txt")
    refusals = [line for line in log.read_text().splitlines() if "does not know the secret of this session" in line]
    assert len(refusals) == 1
    assert str(stranger_port) in refusals[0]
    events = [json.loads(line) for line in (log.parent / "events.jsonl").read_text().splitlines()]
    assert any("does not know the secret" in event["message"] for event in events)


@pytest.mark.parametrize("ends", [Interrupted("stopped"), BadData("broken"), None])
def test_a_coordinator_that_was_replaced_leaves_the_file_of_its_successor(
    make_experiment: Make, ends: StageError | None
) -> None:
    experiment = make_experiment("a", "compute.runner=cluster")
    file = CoordinatorFile(experiment.layout.stage_runs("toy"))
    successor = Coordinator("serving", session="s2", id="successor")
    with suppress(StageError), sole_coordinator("toy", experiment):
        assert file.read().state == "starting"
        file.write(successor)
        if ends is not None:
            raise ends
    assert file.read() == successor


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT])
@pytest.mark.parametrize("runner", ["daisy", "cluster"])
def test_a_signal_ends_a_coordinator_in_the_middle_and_the_next_resumes(
    make_experiment: Make, start: Start, reference: str, runner: str, sent: signal.Signals
) -> None:
    experiment = make_experiment("a")
    _slow(experiment, 1)
    set_runner = f"compute.runner={runner}"
    process = start("run", experiment, set_runner)
    worker = start("worker", experiment) if runner == "cluster" else None
    _wait_for_blocks(experiment, 1)
    begun = time.monotonic()
    process.send_signal(sent)
    code, text = _end(process)
    assert code == 75, text
    assert time.monotonic() - begun < 15
    assert _blocks_done(experiment) < 8, "it was not in the middle"
    (experiment.layout.root / "slow").unlink()
    again = start("run", experiment, set_runner)
    assert _end(again)[0] == 0
    assert worker is None or _end(worker)[0] == 0
    assert _identity(experiment) == reference


def test_workers_find_the_second_pass_of_a_coordinator(make_experiment: Make, start: Start, reference: str) -> None:
    experiment = make_experiment("a")
    (experiment.layout.root / "two-passes").touch()
    jobs = [start("run", experiment), start("worker", experiment), start("worker", experiment)]
    assert [_end(p)[0] for p in jobs] == [0, 0, 0]
    assert _identity(experiment) == reference
    folders = [next(experiment.layout.results.glob(f"toy/*/{name}.zarr")) for name in ("first", "toy")]
    first, second = (open_volume(folder, "volumes/doubled") for folder in folders)
    assert np.array_equal(first.read(first.box), second.read(second.box))


@pytest.mark.parametrize("seconds_apart", [0, 0.1, 2])
def test_a_second_coordinator_is_refused_and_disturbs_nothing(
    make_experiment: Make, start: Start, reference: str, seconds_apart: float
) -> None:
    experiment = make_experiment("a")
    _slow(experiment, 0.4)
    worker, first = start("worker", experiment), start("run", experiment)
    time.sleep(seconds_apart)
    second = start("run", experiment)
    (first_code, first_text), (second_code, second_text) = _end(first), _end(second)
    assert sorted([first_code, second_code]) == [0, 73]
    assert "another coordinator works on this stage" in (second_text if second_code else first_text)
    assert _end(worker)[0] == 0
    assert _identity(experiment) == reference
    assert read_manifest(experiment.layout, "toy").facts["blocks_executed"] == 12


def test_workers_leave_when_the_coordinator_ends_with_an_error_before_its_first_pass(
    make_experiment: Make, start: Start
) -> None:
    experiment = make_experiment("a")
    shutil.rmtree(experiment.layout.target_volume)
    worker, coordinator = start("worker", experiment), start("run", experiment)
    assert _end(coordinator)[0] == 66
    assert _end(worker)[0] == 0


def test_a_worker_process_killed_inside_a_block_costs_nothing(
    make_experiment: Make, start: Start, reference: str
) -> None:
    experiment = make_experiment("a")
    (experiment.layout.root / "kill-once").touch()
    coordinator, worker = start("run", experiment), start("worker", experiment)
    assert _end(coordinator)[0] == 0
    assert _end(worker)[0] == 0
    assert not (experiment.layout.root / "kill-once").exists()
    assert _identity(experiment) == reference


def test_a_killed_worker_is_replaced_by_a_later_one(make_experiment: Make, start: Start, reference: str) -> None:
    experiment = make_experiment("a")
    _slow(experiment, 0.3)
    coordinator, worker = start("run", experiment), start("worker", experiment)
    assert _wait_for_blocks(experiment, 2) < 12
    worker.kill()
    later = start("worker", experiment)
    assert [_end(p)[0] for p in (coordinator, later)] == [0, 0]
    assert _identity(experiment) == reference


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 75), (signal.SIGUSR2, 75)])
def test_workers_outlive_their_coordinator_and_join_the_next(
    make_experiment: Make, start: Start, reference: str, number: signal.Signals, code: int
) -> None:
    experiment = make_experiment("a")
    _slow(experiment, 0.3)
    first, worker = start("run", experiment), start("worker", experiment)
    assert _wait_for_blocks(experiment, 2) < 12
    first.send_signal(number)
    assert _end(first)[0] == code
    done = _blocks_done(experiment)
    second = start("run", experiment)
    assert _end(second)[0] == 0
    assert _end(worker)[0] == 0
    assert _identity(experiment) == reference
    executed = read_manifest(experiment.layout, "toy").facts["blocks_executed"]
    assert executed <= 12 - done + 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_worker_that_must_stop_ends_with_75_at_once(
    make_experiment: Make, start: Start, number: signal.Signals
) -> None:
    experiment = make_experiment("a")
    _slow(experiment, 90)
    start("run", experiment)
    worker = start("worker", experiment)
    file = CoordinatorFile(experiment.layout.stage_runs("toy"))
    deadline = time.monotonic() + 600
    while (found := file.read()) is None or found.state != "serving" or not found.port:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(1)
    worker.send_signal(number)
    assert _end(worker)[0] == 75


@pytest.mark.proves("TRB-20")
def test_a_worker_without_a_coordinator_ends_with_75_and_reports_it(make_experiment: Make, start: Start) -> None:
    code, text = _end(start("worker", make_experiment("a"), "compute.join_wait_s=1"))
    assert code == 75
    assert "no coordinator of toy answered" in text


def test_a_worker_that_comes_after_the_end_leaves_at_once(make_experiment: Make, start: Start) -> None:
    experiment = make_experiment("a")
    coordinator, worker = start("run", experiment), start("worker", experiment)
    assert [_end(p)[0] for p in (coordinator, worker)] == [0, 0]
    late = start("worker", experiment)
    assert _end(late)[0] == 0


def test_a_session_that_has_ended_is_no_failure_of_the_worker_that_comes_late(make_experiment: Make) -> None:
    experiment = make_experiment("a")
    file = CoordinatorFile(experiment.layout.stage_runs("toy"))
    session = file.new_session("key of the pass")
    assert not (session.folder / "secret").exists()
    arguments = ("toy", experiment.path, Coordinator("serving", session=session.id), session)
    child = multiprocessing.get_context("spawn").Process(target=_process_session, args=arguments)
    child.start()
    child.join(60)
    assert child.exitcode == 0


def test_a_worker_of_a_new_submission_does_not_believe_the_end_of_an_earlier_one(
    make_experiment: Make, start: Start
) -> None:
    experiment = make_experiment("a")
    coordinator, worker = start("run", experiment), start("worker", experiment)
    assert [_end(p)[0] for p in (coordinator, worker)] == [0, 0]
    code, _ = _end(start("worker", experiment, "compute.join_wait_s=2", LSDFLOW_SUBMISSION="next"))
    assert code == 75


def test_a_poison_block_ends_the_coordinator_with_79_and_the_workers_with_0(
    make_experiment: Make, start: Start
) -> None:
    experiment = make_experiment("a")
    (experiment.layout.root / "poison").touch()
    coordinator, worker = start("run", experiment), start("worker", experiment)
    code, text = _end(coordinator)
    assert code == 79
    assert "poisoned" in text
    assert _end(worker)[0] == 0
    assert _blocks_done(experiment) == 11


def test_a_block_that_crashes_its_process_ends_the_run_with_79_after_the_others_are_done(
    make_experiment: Make, start: Start
) -> None:
    experiment = make_experiment("a")
    (experiment.layout.root / "segfault").touch()
    coordinator, worker = start("run", experiment), start("worker", experiment)
    assert _end(coordinator)[0] == 79
    assert _end(worker)[0] == 0
    assert _blocks_done(experiment) == 11


def test_an_error_of_every_block_ends_the_coordinator_with_its_own_code(make_experiment: Make, start: Start) -> None:
    experiment = make_experiment("a")
    (experiment.layout.root / "bad").touch()
    coordinator, worker = start("run", experiment), start("worker", experiment)
    code, text = _end(coordinator)
    assert code == 65
    assert "bad on request" in text
    assert _end(worker)[0] == 0


def test_the_loopback_address_is_refused_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LSDFLOW_HOST", "127.0.0.1")
    assert own_address() == "127.0.0.1"
    monkeypatch.delenv("LSDFLOW_HOST")
    monkeypatch.setattr("lsdflow_runtime.engine.cluster.FAR_AWAY", ("127.0.0.1", 9))
    with pytest.raises(ConfigError, match="loopback"):
        own_address()


def _finished(make_experiment: Make) -> Experiment:
    from lsdflow_toy.stage import block_task

    experiment = make_experiment("a", "compute.runner=serial")
    run_task(block_task(experiment))
    return experiment


def test_verify_reports_the_identity_of_whole_results(make_experiment: Make) -> None:
    from lsdflow_toy.stage import verify

    experiment = _finished(make_experiment)
    assert verify(experiment) == {
        "blocks": 12,
        "blocks_read_back": 12,
        "identity": _identity(experiment),
        "verified": True,
    }


def _chunk(experiment: Experiment) -> Path:
    return max((made(experiment.layout, "toy") / "volumes/doubled/c").rglob("*"), key=lambda p: len(p.parts))


def _delete(path: Path) -> None:
    path.unlink()


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.proves("PRD-12")
@pytest.mark.parametrize(
    ("what", "damage"),
    [("chunk", _delete), ("chunk", _truncate), ("chunk", _flip)]
    + [(rows, damage) for rows in ("nodes", "edges_mean") for damage in (_delete, _truncate)],
)
def test_verify_finds_every_lost_or_damaged_file(
    make_experiment: Make, what: str, damage: Callable[[Path], None]
) -> None:
    from lsdflow_toy.stage import block_task, verify

    experiment = _finished(make_experiment)
    rows = experiment.layout.store / what / block_task(experiment).key / "3.parquet"
    damage(_chunk(experiment) if what == "chunk" else rows)
    with pytest.raises(BadData, match="lost or damaged") as caught:
        verify(experiment)
    assert "block" in caught.value.found


def test_a_flipped_bit_of_a_graph_file_is_found_or_changes_no_row(make_experiment: Make) -> None:
    from lsdflow_toy.stage import block_task

    task = block_task(_finished(make_experiment))
    path = task.layout.store / "nodes" / task.key / "3.parquet"
    whole = path.read_bytes()
    rows = checksum_of_nodes(task.rag_store.read_nodes(task.key, 3))
    found = 0
    for position in range(0, len(whole), 5):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 16]) + whole[position + 1 :])
        try:
            assert checksum_of_nodes(task.rag_store.read_nodes(task.key, 3)) == rows, position
        except BadData:
            found += 1
    assert found > 20


def test_verify_names_a_block_without_a_mark_and_a_stage_that_has_not_finished(make_experiment: Make) -> None:
    from lsdflow_toy.stage import block_task, verify

    experiment = _finished(make_experiment)
    marks = block_task(experiment).marks
    record = marks.record(5)
    marks.remove(5)
    with pytest.raises(BlocksFailed, match="block 5"):
        verify(experiment)
    marks.mark_done(5, {**record, "checksums": {}})
    with pytest.raises(BadData, match="do not belong together"):
        verify(experiment)
    experiment.layout.manifest("toy").unlink()
    with pytest.raises(MissingInput):
        verify_task(block_task(experiment))
