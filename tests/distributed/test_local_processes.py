"""The option `processes`: that many processes on this node, started, ended and answered for by one."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")

from lsdflow_contract.errors import InternalError, Interrupted
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.manifest import read_manifest
from lsdflow_train_acrlsd.stage import TrainAcrlsd
from lsdflow_training.processes import launch
from lsdflow_training.processes.ranks import Ranks
from lsdflow_training.settings import Distribution

# Every Python that finds it as sitecustomize.py stores the names of its threads, those of C++ too, when it exits.
THREADS_AT_EXIT = """
import atexit, os
from pathlib import Path

def store():
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    (Path(__file__).parent / f"threads-{os.environ.get('RANK')}").write_text("\\n".join(names))

atexit.register(store)
"""


@pytest.mark.proves("DDP-01")
def test_two_processes_are_started_and_leave_one_training_and_no_thread_of_their_group(
    training, tmp_path, monkeypatch, capfd
) -> None:
    (tmp_path / "sitecustomize.py").write_text(THREADS_AT_EXIT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    experiment = load_experiment(
        training("two", max_iteration=1, peer_timeout_s=240.0).toml, ["train-acrlsd.processes=2"]
    )
    TrainAcrlsd().run(experiment)
    assert re.search(
        r"2 processes on 1 node\(s\) exchange gradients by gloo, at 127\.0\.0\.1:\d+, interface lo",
        capfd.readouterr().err,
    )
    # A thread of the group that runs until Python exits can abort a process that has finished its work.
    for rank in (0, 1):
        threads = (tmp_path / f"threads-{rank}").read_text().splitlines()
        assert [name for name in threads if "gloo" in name] == [], threads
    made = read_manifest(experiment.layout, "train-acrlsd")
    assert made.facts["iteration"] == 1
    assert made.config["processes"] == 2
    assert "samples_per_s" in made.facts


def stand_in(monkeypatch, *commands: list[str]) -> None:
    """Start these commands instead of a training, by rank."""

    def start(_arguments, ranks: Ranks) -> subprocess.Popen[bytes]:
        return subprocess.Popen(commands[ranks.rank])

    monkeypatch.setattr(launch, "_start", start)


def run(training, processes: int) -> None:
    experiment = load_experiment(training("none").toml, [])
    how = Distribution(processes=processes, peer_timeout_s=1.0)
    launch.run_local_processes(experiment, "train-acrlsd", how, Ranks())


def test_a_process_that_is_killed_is_named_and_the_others_do_not_stay(training, monkeypatch) -> None:
    stand_in(monkeypatch, ["sleep", "1000"], ["sh", "-c", "kill -KILL $$"])
    with pytest.raises(Interrupted) as caught:
        run(training, 2)
    assert caught.value.what == "process 1 of the training was killed"
    assert caught.value.found == "SIGKILL"


def test_a_process_that_ends_without_a_reason_is_an_internal_error(training, monkeypatch) -> None:
    stand_in(monkeypatch, ["true"], ["false"])
    with pytest.raises(InternalError, match="process 1"):
        run(training, 2)


def test_a_signal_reaches_every_process(training, monkeypatch) -> None:
    signals_parent = ["sh", "-c", "trap 'exit 75' TERM; kill -TERM $PPID; while :; do sleep 0.1; done"]
    waits = ["sh", "-c", "trap 'exit 75' TERM; while :; do sleep 0.1; done"]
    stand_in(monkeypatch, waits, signals_parent)
    with pytest.raises(Interrupted, match="SIGTERM"):
        run(training, 2)


def test_a_process_reacts_to_signals_before_it_loads_torch() -> None:
    code = "import sys, lsdflow_training.processes.launch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
