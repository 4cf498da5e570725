"""What ends a command from outside, or makes its input endless, is named in one sentence: never 70, never a hang."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lsdflow_command.runfolder import run_folder
from lsdflow_contract.errors import BadData, ConfigError, Interrupted
from lsdflow_contract.experiment import STAGES, ExperimentTable, load_experiment
from lsdflow_contract.files import read_json
from lsdflow_launch import commands
from lsdflow_launch.commands import answer_of, ask_stage, run_command
from lsdflow_runtime.formats.source import reading

BIN = Path(os.environ.get("LSDFLOW_BIN", Path(__file__).resolve().parents[2] / "bin"))
SMALL = {"ulimit -v": resource.RLIMIT_AS, "ulimit -d": resource.RLIMIT_DATA}


@pytest.mark.parametrize("command", ["lsdflow", *STAGES])
@pytest.mark.parametrize("limit", SMALL)
def test_a_small_address_space_is_refused_by_every_command_before_numpy_is_loaded(command: str, limit: str) -> None:
    def limited() -> None:
        resource.setrlimit(SMALL[limit], (1_300_000_000, 1_300_000_000))

    done = subprocess.run(
        [BIN / command, "validate", "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=limited,
    )
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["exit_code"], done.stderr) == (78, 78, "")
    assert limit in answer["where"]
    assert ("1.21 GiB" in answer["found"], "GiB" in answer["wanted"]) == (True, True)


def test_more_threads_of_openblas_need_a_larger_address_space(tmp_path: Path) -> None:
    def code(threads: int) -> int:
        command = ["bash", "-c", f"ulimit -v 3000000; {BIN / 'prepare'} --version"]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads)}
        return subprocess.run(command, env=environment, capture_output=True, check=False).returncode

    assert [code(1), code(64)] == [0, 78]


def test_a_command_that_ignores_a_signal_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(commands, "KILL_AFTER_SECONDS", 0.5)
    deaf = "import signal, time, pathlib, sys; signal.signal(15, signal.SIG_IGN)"
    begun = tmp_path / "begun"

    def ask_to_end() -> None:
        while not begun.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=ask_to_end, daemon=True).start()
    program = f"{deaf}; pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"
    started = time.monotonic()
    assert run_command([sys.executable, "-c", program, str(begun)]) == 128 + signal.SIGKILL
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("command", ["lsdflow", "prepare", "train-lsd"])
def test_a_deleted_working_folder_is_a_sentence(command: str, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    line = f"cd {gone} && rmdir {gone} && {BIN / command} validate --json"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["exit_code"], answer["where"]) == (78, 78, str(gone))


ENDLESS = {
    "brackets": "x = " + "[" * 100_000,
    "closed brackets": "x = " + "[" * 500 + "]" * 500,
    "inline tables": "x = " + "{a=" * 5_000,
    "dotted keys": f"{'a.' * 50_000}a = 1",
    "digits": "x = " + "9" * 100_000,
    "large integer": "x = " + "9" * 40,
    "integer in a list": f"x = [[1, -{'9' * 30}]]",
    "binary": "x = 0b" + "1" * 20_000,
}


@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_endless_toml_is_a_wrong_experiment_file(tmp_path: Path, text: str) -> None:
    file = tmp_path / "experiment.toml"
    file.write_text(f"[experiment]\n{text}\n")
    with pytest.raises(ConfigError, match="not a TOML file") as caught:
        load_experiment(tmp_path)
    assert len(caught.value.message()) < 1000


@pytest.mark.parametrize(
    "override",
    [
        "experiment.seed=" + "[" * 100_000,
        "experiment.seed=" + "9" * 100_000,
        "experiment.seed=" + "9" * 40,
        f'experiment.seed="{"9" * 40}"',
        f"experiment.{'a.' * 5_000}b=1",
    ],
)
def test_endless_settings_are_refused(tmp_path: Path, override: str) -> None:
    (tmp_path / "experiment.toml").touch()
    with pytest.raises(ConfigError) as caught:
        load_experiment(tmp_path, [override])
    assert len(caught.value.message()) < 1000


def test_the_largest_integers_of_64_bits_are_read(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").touch()
    assert load_experiment(tmp_path, [f"experiment.seed={2**63 - 1}"]).common.seed == 2**63 - 1
    assert ExperimentTable.model_validate({"seed": 2**64 - 1}).seed == 2**64 - 1


@pytest.mark.parametrize("text", ["[" * 100_000, "[" * 500 + "]" * 500, '{"a": ' * 900 + "1" + "}" * 900, "9" * 30])
def test_endless_json_is_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(BadData, match="not a JSON file"):
        read_json(tmp_path / "x.json")


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Install a command `asked` of this Python, or of another, with this program."""

    def install(text: str, python: str = sys.executable) -> None:
        path = tmp_path / "asked"
        path.write_text(f"#!{python}\n{text}")
        path.chmod(0o755)
        monkeypatch.setenv("LSDFLOW_BIN", str(tmp_path))

    return install


@pytest.mark.parametrize("options", ["", " -B"], ids=["fork", "program"])
def test_a_stage_that_was_killed_before_it_answered_is_75(stage: Callable[[str, str], None], options: str) -> None:
    stage("import os; os.kill(os.getpid(), 9)", sys.executable + options)
    with pytest.raises(Interrupted, match=r"asked validate was killed.*\n.*signal 9"):
        ask_stage("asked", ["validate", "--json"])


def test_a_killed_fork_server_loses_no_answer_and_shows_no_traceback(
    stage: Callable[[str, str], None], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    # The fork kills its server once, and goes on after its asker has given up.
    once = f"import os, pathlib; p = pathlib.Path({str(tmp_path / 'once')!r})\nif not p.exists():\n  p.touch()\n"
    stage(f"{once}  os.kill(os.getppid(), 9)\nprint('[1]')", sys.executable)
    assert ask_stage("asked", ["plan"]) == [1]
    assert answer_of([tmp_path / "asked"]).stdout == "[1]\n"
    assert "Traceback" not in capfd.readouterr().err


def test_too_little_memory_is_a_sentence_and_no_damaged_file(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").touch()
    experiment = load_experiment(tmp_path)
    with (
        pytest.raises(ConfigError, match="not enough memory"),
        run_folder("prepare", experiment, {}),
        reading("v.zarr"),
    ):
        raise MemoryError("Unable to allocate 12.0 MiB")
