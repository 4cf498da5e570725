"""Ctrl-C, and a terminal that is gone, end a stage as a scheduler's SIGTERM does: 75, one message, outcome.json."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lsdflow_command.interruption import interrupt_on_signals
from lsdflow_contract.errors import Interrupted
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import read_json

pytestmark = pytest.mark.usefixtures("at_a_terminal")

Make = Callable[..., Experiment]
Start = Callable[..., "subprocess.Popen[str]"]
TOY = Path(__file__).parent / "toy"


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a run of the toy stage as a terminal does: the first of a process group of its own."""
    begun: list[subprocess.Popen[str]] = []

    def run(experiment: Experiment, runner: str, *more: str, through: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "lsdflow_toy.cli", "run", "-e", str(experiment.path)]
        begun.append(
            subprocess.Popen(
                [*through, *words, "--set", f"compute.runner={runner}", *more],
                env={**os.environ, "PYTHONPATH": str(TOY)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return begun[-1]

    yield run
    for process in begun:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def slowed(experiment: Experiment, seconds: float = 0.4) -> Experiment:
    (experiment.layout.root / "slow").write_text(str(seconds))
    return experiment


def wait_for_a_block(experiment: Experiment, process: subprocess.Popen[str]) -> None:
    """Until an attempt at a block is noted, so the run is in the middle."""
    until = time.monotonic() + 600
    while not any(f.stat().st_size > 100 for f in experiment.layout.stage_runs("toy").glob("attempts/*.tsv")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)


def outcome(experiment: Experiment) -> dict[str, Any]:
    (path,) = experiment.layout.stage_runs("toy").glob("*/outcome.json")
    return dict(read_json(path))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
@pytest.mark.parametrize("runner", ["serial", "daisy"])
def test_a_signal_to_the_whole_group_ends_with_75_one_message_and_no_traceback_of_anybody(
    make_experiment: Make, start: Start, runner: str, sent: signal.Signals
) -> None:
    experiment = slowed(make_experiment("a"))
    process = start(experiment, runner)
    wait_for_a_block(experiment, process)
    if sent == signal.SIGTERM:
        process.send_signal(sent)  # as a scheduler does; terminals send the others, to the group
    else:
        os.killpg(process.pid, sent)
    _, text = process.communicate(timeout=600)
    assert process.returncode == 75, text
    assert "Traceback" not in text
    assert text.count(f"error: stopped by {sent.name}") == 1
    assert "fix: run the same command again" in text
    found = outcome(experiment)
    assert (found["exit_code"], found["error"]["error"]) == (75, "Interrupted")
    assert sent.name in found["error"]["what"]


def test_ctrl_c_that_comes_twice_still_leaves_its_outcome(make_experiment: Make, start: Start) -> None:
    """As in `lsdflow run`: from the terminal, and passed on."""
    experiment = slowed(make_experiment("a"))
    process = start(experiment, "serial")
    wait_for_a_block(experiment, process)
    process.send_signal(signal.SIGINT)
    time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=600)
    assert process.returncode == 75, text
    assert outcome(experiment)["exit_code"] == 75


def test_ctrl_c_that_comes_again_while_python_ends_does_not_change_the_exit_code() -> None:
    program = """
import os, signal, sys, time
from lsdflow_command.interruption import interrupt_on_signals
from lsdflow_contract.errors import Interrupted

class Last:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGINT, sleep=time.sleep):
        kill(pid, number)
        sleep(0.05)

last = Last()
try:
    with interrupt_on_signals():
        signal.raise_signal(signal.SIGINT)
except Interrupted as error:
    sys.exit(error.exit_code)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=600).returncode == 75


def test_under_nohup_a_lost_terminal_changes_nothing(make_experiment: Make, start: Start) -> None:
    experiment = slowed(make_experiment("a"), 0.2)
    process = start(experiment, "daisy", through=("nohup",))
    wait_for_a_block(experiment, process)
    os.killpg(process.pid, signal.SIGHUP)
    _, text = process.communicate(timeout=600)
    assert process.returncode == 0, text
    assert outcome(experiment)["exit_code"] == 0


def test_a_second_signal_within_the_tidying_up_does_not_break_it_off() -> None:
    tidied = []

    def work() -> None:
        with interrupt_on_signals():
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(5)
            finally:
                os.kill(os.getpid(), signal.SIGINT)
                tidied.append("all")

    with pytest.raises(Interrupted, match="SIGINT"):
        work()
    assert tidied == ["all"]


def test_a_second_signal_within_the_report_does_not_break_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

    def work() -> None:
        with interrupt_on_signals():
            interrupt()

    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(Interrupted, match="SIGINT"):
            work()
        interrupt()
        monkeypatch.setattr("lsdflow_command.interruption.SAME_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_a_command_was_started_to_ignore_stays_ignored(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with interrupt_on_signals():
            assert signal.getsignal(number) == signal.SIG_IGN
            os.kill(os.getpid(), number)
    finally:
        signal.signal(number, before)


def test_a_killed_worker_is_replaced_and_one_line_reports_it(make_experiment: Make, start: Start) -> None:
    experiment = slowed(make_experiment("a"))
    process = start(experiment, "daisy")
    wait_for_a_block(experiment, process)
    (log,) = list(experiment.layout.stage_runs("toy").glob("attempts/*.tsv"))[:1]
    os.kill(int(log.name.split("-")[1]), signal.SIGKILL)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    assert "Traceback" not in out + err
    assert "WARN" not in out + err
    (line,) = [line for line in err.splitlines() if "worker" in line]
    assert line.endswith("a worker process ended early (SIGKILL); another one will process its block")
    assert "12/12 blocks" in err


def test_a_reader_of_stderr_that_is_gone_stops_nobody_who_writes_while_daisy_serves() -> None:
    """As `lsdflow run ... 2>&1 | head`: far more is written than the socket in between can hold."""
    code = (
        "import os\nfrom lsdflow_runtime.engine.daisy_server import daisy_warnings_logged\n"
        "with daisy_warnings_logged():\n    for _ in range(3000):\n        os.write(2, b'x' * 1000)\nprint('done')\n"
    )
    local, remote = os.pipe()
    os.close(local)
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=remote, timeout=300, check=True)
    os.close(remote)
    assert done.stdout == b"done\n"


def test_progress_on_a_terminal_is_drawn_while_daisy_serves(make_experiment: Make) -> None:
    experiment = slowed(make_experiment("a"))
    local, remote = pty.openpty()
    words = [
        sys.executable,
        "-m",
        "lsdflow_toy.cli",
        "run",
        "-e",
        str(experiment.path),
        "--set",
        "compute.runner=daisy",
    ]
    environment = {**os.environ, "PYTHONPATH": str(TOY), "TERM": "xterm"}
    output = b""
    with subprocess.Popen(words, env=environment, stderr=remote, start_new_session=True) as process:
        os.close(remote)
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while part := os.read(local, 65536):
                output += part
    os.close(local)
    assert process.returncode == 0, output
    drawn = {int(number) for number in re.findall(rb"(\d+)/12", output)}
    assert len(drawn) >= 3, output
