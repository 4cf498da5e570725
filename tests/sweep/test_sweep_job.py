"""sweep.sbatch: a task of an array makes its part, and comes back when its time was up; not when it was cancelled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "slurm_wrappers" / "sweep.sbatch"
# Says that it runs, then waits for a signal: USR2 and TERM end it as they end lsdflow.
STAND_IN = f"""#!{sys.executable}
import pathlib, signal, sys
pathlib.Path(sys.argv[0] + ".called").write_text(" ".join(sys.argv[1:]))
if sys.argv[3] == "quick":
    sys.exit(int(sys.argv[-1]))
for number in (signal.SIGUSR2, signal.SIGTERM):
    signal.signal(number, lambda *_: sys.exit(75))
pathlib.Path(sys.argv[0] + ".ready").touch()
signal.pause()
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Stand-ins for lsdflow and scontrol, which writes what it was called with."""
    for name, text in (("lsdflow", STAND_IN), ("scontrol", '#!/usr/bin/env bash\nprintf "%s\\n" "$*" >"$0.called"\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def start(programs: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", **variables}
    command = ["bash", str(SCRIPT), *arguments]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def test_the_task_runs_its_part_in_images_and_returns_the_code_of_lsdflow(programs: Path) -> None:
    array = {f"SLURM_ARRAY_TASK_{name}": number for name, number in (("ID", "3"), ("COUNT", "4"), ("MAX", "4"))}
    for code in (0, 79):
        job = start(programs, str(programs / "lsdflow"), "quick", str(code), **array, SLURM_ARRAY_TASK_MIN="1")
        job.communicate(timeout=600)
        assert job.returncode == code
    words = "sweep run quick --part 3/4 --backend container --engine singularity 79"
    assert (programs / "lsdflow.called").read_text() == words
    assert not (programs / "scontrol.called").exists()


@pytest.mark.parametrize(("first", "last"), [("0", "3"), ("1", "7"), ("3", "3")])
def test_an_array_with_gaps_or_another_first_task_is_refused(programs: Path, first: str, last: str) -> None:
    array = {"ID": "3", "COUNT": "4" if first != last else "1", "MIN": first, "MAX": last}
    variables = {f"SLURM_ARRAY_TASK_{name}": number for name, number in array.items()}
    job = start(programs, str(programs / "lsdflow"), "quick", "0", **variables)
    assert "--array=1-N" in job.communicate(timeout=600)[1]
    assert job.returncode == 2
    assert not (programs / "lsdflow.called").exists()


@pytest.mark.parametrize(("number", "requeued"), [(signal.SIGUSR2, True), (signal.SIGTERM, False)])
def test_a_task_whose_time_is_up_comes_back_and_a_cancelled_one_does_not(
    programs: Path, number: signal.Signals, requeued: bool
) -> None:
    job = start(programs, str(programs / "lsdflow"), "long")
    while not (programs / "lsdflow.ready").exists():
        assert job.poll() is None
    job.send_signal(number)
    job.communicate(timeout=600)
    assert job.returncode == 75
    assert (programs / "scontrol.called").exists() == requeued
    if requeued:
        assert (programs / "scontrol.called").read_text() == "requeue 7\n"


def test_without_a_folder_it_says_what_it_wants(programs: Path) -> None:
    job = start(programs, str(programs / "lsdflow"))
    assert "sweep.sbatch DIR" in job.communicate(timeout=600)[1]
    assert job.returncode == 2


def test_the_command_is_that_of_the_path_unless_another_is_named(programs: Path) -> None:
    job = start(programs, "quick", "0")
    assert job.communicate(timeout=600)[1].count("sweep run quick") == 1
    assert job.returncode == 0


def test_the_modules_of_the_base_are_loaded_first_and_one_that_is_missing_ends_the_task(
    programs: Path, tmp_path: Path
) -> None:
    run = tmp_path / "grid" / "runs" / "threshold-0.2"
    run.mkdir(parents=True)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "BASH_FUNC_module%%": f'() {{ echo "$*" >>{tmp_path}/modules; [[ $2 != missing ]]; }}',
    }
    (programs / "lsdflow").write_text("#!/usr/bin/env bash\nexit 0\n")
    for names, code in (("apptainer cuda", 0), ("missing", 66)):
        (run / "experiment.toml").write_text(f'[cluster]\nmodules = "{names}"\n')
        job = subprocess.run(
            ["bash", str(SCRIPT), str(tmp_path / "grid")], env=environment, capture_output=True, text=True, check=False
        )
        assert job.returncode == code, job.stderr
    assert "module load missing failed" in job.stderr
    assert (tmp_path / "modules").read_text() == "load apptainer cuda\nload missing\n"


def test_modules_are_loaded_for_a_named_command_too_and_one_that_cannot_be_executed_is_refused(
    programs: Path, tmp_path: Path
) -> None:
    run = tmp_path / "grid" / "runs" / "threshold-0.2"
    run.mkdir(parents=True)
    (run / "experiment.toml").write_text('[cluster]\nmodules = "missing"\n')
    environment = {**os.environ, "SLURM_JOB_ID": "7", "BASH_FUNC_module%%": "() { return 1; }"}
    command = ["bash", str(SCRIPT), str(programs / "lsdflow"), str(tmp_path / "grid")]
    job = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert job.returncode == 66
    assert "module load missing failed" in job.stderr
    (run / "experiment.toml").write_text("")
    (programs / "lsdflow").chmod(0o644)
    job = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert job.returncode == 66
    assert "no command lsdflow on this node" in job.stderr
