"""Jobs of a submission: what `lsdflow status` joins, `run --backend slurm` follows, `submit` and `cancel` refuse.

squeue, sacct and scancel are stand-ins that answer from files: tests/cluster asks the real ones.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lsdflow_contract.errors import StoreUnreachable
from lsdflow_contract.experiment import STAGES
from lsdflow_launch.slurm.follow import Following, chain_code
from lsdflow_launch.slurm.jobs import Submitted, Task
from lsdflow_launch.status import progress_text

STAND_IN = """#!{python}
import json, sys
from pathlib import Path
here, name = Path({folder!r}), Path(sys.argv[0]).name
with (here / "calls").open("a") as calls:
    calls.write(json.dumps([name, *sys.argv[1:]]) + "\\n")
kind = name if name in {slurm!r} else sys.argv[1] + "-" + name
path = here / ("answer-" + kind)
answers = {{"validate": "[]", "describe": "{{}}", "plan": "{{}}"}}
print(path.read_text() if path.exists() else answers.get(sys.argv[1], ""), end="")
sys.exit(int((here / ("code-" + kind)).read_text()) if (here / ("code-" + kind)).exists() else 0)
"""
SLURM = ("squeue", "sacct", "scancel", "sbatch")


@dataclass(frozen=True)
class Queue:
    """Stand-ins, an experiment whose chain was submitted, and its folder."""

    folder: Path
    experiment: Path

    def answer(self, name: str, text: str, code: int = 0) -> None:
        """What a command says from now on: `squeue`, or `status-predict` for a verb of a stage."""
        (self.folder / f"answer-{name}").write_text(text)
        (self.folder / f"code-{name}").write_text(str(code))

    def rows(self, *rows: Sequence[Any]) -> None:
        """squeue: job, state, reason, nodes, restarts, exit code."""
        lines = [f"{j}|{s}|{r}|{n}|0:01|{k}|{c << 8}|{self.experiment}|" for j, s, r, n, k, c in rows]
        self.answer("squeue", "".join(f"{line}\n" for line in lines))

    def calls(self, name: str) -> list[list[str]]:
        """Arguments of all calls of a command."""
        path = self.folder / "calls"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [call[1:] for call in found if call[0] == name]

    def lsdflow(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """The front command among the stand-ins."""
        program = "from lsdflow_launch.cli import main; main()"
        command = [sys.executable, "-c", program, *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)

    def status(self) -> dict[str, Any]:
        """`lsdflow status --json`."""
        done = self.lsdflow("status", self.experiment, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


JOBS = (
    ("predict", "coordinator", "11"),
    ("predict", "workers", "12"),
    ("predict", "verify", "13"),
    ("watershed", "coordinator", "14"),
    ("watershed", "workers", "15"),
    ("watershed", "verify", "16"),
)


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """predict and watershed of an experiment in the queue."""
    folder, experiment = tmp_path / "bin", tmp_path / "experiment"
    folder.mkdir()
    for name in (*SLURM, *STAGES):
        (folder / name).write_text(STAND_IN.format(python=sys.executable, folder=str(folder), slurm=SLURM))
        (folder / name).chmod(0o755)
    submission = experiment / "runs" / "submit" / "20260101T000000-1"
    submission.mkdir(parents=True)
    (experiment / "experiment.toml").write_text('[experiment]\nmode = "mtlsd"\n')
    (experiment / "images.env").write_text("")
    (submission / "jobs.tsv").write_text("".join("\t".join((*job, "now")) + "\n" for job in JOBS))
    (submission / "settings.env").write_text("SET='watershed.size=7'\n")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("LSDFLOW_BIN", str(folder))
    return Queue(folder, experiment.resolve())


def _begin(queue: Queue, stage: str, done: int, seconds_ago: float) -> None:
    """A run that began so many seconds ago, and its blocks that are done."""
    runs, began = queue.experiment / "runs" / stage, time.time() - seconds_ago
    config, attempts = runs / "1" / "config.resolved.json", runs / "attempts" / "20260101T000000-1-n1.tsv"
    for path in (config, attempts):
        path.parent.mkdir(parents=True)
    config.write_text("{}")
    os.utime(config, (began,) * 2)
    lines = (f"{block}\t{began + 1}\tkey\t\tdone\t1.0\t1.0\t1\t1\t1\t1\t\t0\t\n" for block in range(done))
    attempts.write_text("".join(lines))


@pytest.mark.proves("SCH-05", "TRB-06")
def test_status_joins_queue_blocks_speed_and_failures_with_their_logs(queue: Queue) -> None:
    _begin(queue, "predict", done=10, seconds_ago=300)
    queue.rows(
        ("11", "RUNNING", "None", "n1", 1, 0),
        ("12_0", "RUNNING", "None", "n1", 0, 0),
        ("12_1", "RUNNING", "None", "n2", 0, 0),
        ("12_[2-5]", "PENDING", "Resources", "", 0, 0),
        ("12_6", "FAILED", "NonZeroExitCode", "n2", 0, 74),
        ("13", "PENDING", "Dependency", "", 0, 0),
    )
    failures = {"7": "RuntimeError: out of memory", "31": "no log knows it"}
    queue.answer("status-predict", json.dumps({"blocks": 40, "done": 20, "failed": 2, "failures": failures}))
    logs = queue.experiment / "runs" / "predict" / "slurm"
    logs.mkdir()
    (logs / "exp-predict-workers.12_6.log").write_text("block 77, attempt 1\nblock 7, attempt 2: out of memory\n")
    (logs / "exp-predict-workers.12_0.log").write_text("block 70, attempt 1\n")
    predict = queue.status()["predict"]
    assert predict["coordinator"] == "11 RUNNING on n1 restarts 1"
    expected = "12: 2 RUNNING on n1 n2, 1 PENDING (Resources), 1 FAILED on n2 exit code 74"
    assert predict["workers"] == expected
    assert predict["verify"] == "13 PENDING (Dependency)"
    # Of 40 blocks 10 were done before this run began, and 10 in its 5 minutes.
    assert (predict["blocks_done"], predict["blocks"], predict["failed"]) == (20, 40, 2)
    # On a loaded machine, seconds pass between both.
    assert predict["blocks_per_minute"] == pytest.approx(2, rel=0.2)
    assert predict["minutes_left"] == pytest.approx(10, rel=0.2)
    log = logs / "exp-predict-workers.12_6.log"
    assert predict["failures"] == {"7": f"RuntimeError: out of memory (log: {log})", "31": "no log knows it"}
    assert predict["logs"] == [str(log)]
    lines = queue.lsdflow("status", queue.experiment).stdout.splitlines()
    (row,) = [text for text in lines if text.startswith("predict  ")]
    assert re.search(r"^predict +running \(last sign [^)]+ ago\) +20/40 +2 ", row)
    assert f"predict: block 7: RuntimeError: out of memory (log: {log})" in lines
    assert f"predict workers: {expected}" in lines


def test_status_asks_the_stages_with_what_the_submission_was_made_with(queue: Queue) -> None:
    _begin(queue, "watershed", done=0, seconds_ago=1)
    queue.answer("status-watershed", json.dumps({"blocks": 4, "done": 0, "failed": 0, "failures": {}}))
    watershed = queue.status()["watershed"]
    assert watershed["blocks_done"] == 0
    assert "blocks_per_minute" not in watershed
    assert queue.calls("watershed")[-1][-2:] == ["--set", "watershed.size=7"]


def test_jobs_that_squeue_has_dropped_come_from_the_accounting(queue: Queue) -> None:
    queue.rows(("13", "PENDING", "Dependency", "", 0, 0))
    queue.answer("sacct", f"11|COMPLETED|n1|0:0|{queue.experiment}\n12_0|CANCELLED by 1000|n2|0:15|x\n")
    predict = queue.status()["predict"]
    assert predict["coordinator"] == "11 COMPLETED on n1"
    assert predict["workers"] == "12 CANCELLED on n2"
    assert queue.status()["watershed"]["coordinator"] == "14 not known to SLURM any more"


def test_without_an_answer_of_slurm_status_still_reports_what_is_done(queue: Queue) -> None:
    _begin(queue, "predict", done=10, seconds_ago=300)
    queue.answer("status-predict", json.dumps({"blocks": 40, "done": 20, "failed": 0, "failures": {}}))
    queue.answer("squeue", "", code=1)
    done = queue.lsdflow("status", queue.experiment, "--json")
    assert done.returncode == 0
    assert "squeue does not answer" in done.stderr
    assert json.loads(done.stdout)["predict"]["blocks_done"] == 20


def test_a_second_submit_is_refused_while_jobs_wait(queue: Queue) -> None:
    queue.rows(("14", "PENDING", "Dependency", "", 0, 0))
    done = queue.lsdflow("submit", queue.experiment)
    assert done.returncode == 73
    assert "watershed coordinator 14" in done.stderr
    assert queue.calls("sbatch") == []


@pytest.mark.parametrize("words", [("use", "{}", "segment", "0"), ("clean", "{}", "--yes"), ("repair", "{}")])
def test_what_the_jobs_in_the_queue_will_read_is_not_changed(queue: Queue, words: tuple[str, ...]) -> None:
    queue.rows(("14", "PENDING", "Dependency", "", 0, 0))
    done = queue.lsdflow(*(word.format(queue.experiment) for word in words))
    assert done.returncode == 73, done.stderr
    assert "watershed coordinator 14" in done.stderr


def test_workers_are_added_to_stages_that_are_running(queue: Queue) -> None:
    queue.answer("squeue", "RUNNING\n")
    queue.answer("sbatch", "99\n")
    done = queue.lsdflow("scale", queue.experiment, "predict=2", "watershed=3")
    assert done.returncode == 0, done.stderr
    arrays = [word for call in queue.calls("sbatch") for word in call if word.startswith(("--array", "--dependency"))]
    assert arrays == ["--dependency=after:11", "--array=0-1", "--dependency=after:14", "--array=0-2"]


def test_scale_without_a_stage_is_refused(queue: Queue) -> None:
    assert queue.lsdflow("scale", queue.experiment).returncode == 2
    assert queue.lsdflow("scale", queue.experiment, "predict=none").returncode == 2
    assert queue.calls("sbatch") == []


@pytest.mark.proves("SCH-05")
def test_cancel_ends_the_last_jobs_first_and_nobody_elses(queue: Queue) -> None:
    queue.rows(
        ("11", "RUNNING", "None", "n1", 0, 0),
        ("12_0", "COMPLETED", "None", "n1", 0, 0),
        ("13", "PENDING", "Dependency", "", 0, 0),
    )
    text = (queue.folder / "answer-squeue").read_text()
    queue.answer("squeue", text + "16|RUNNING|None|n2|0:01|0|0|/somebody/else|\n")
    done = queue.lsdflow("cancel", queue.experiment)
    assert queue.calls("scancel") == [["13"], ["11"]]
    assert "job 16 belongs to something else: /somebody/else" in done.stdout


def test_run_on_slurm_follows_what_is_in_the_queue_and_ends_with_the_code_of_the_failed_stage(queue: Queue) -> None:
    queue.rows(("11", "RUNNING", "None", "n1", 0, 0))
    _begin(queue, "predict", done=10, seconds_ago=300)
    queue.answer("status-predict", json.dumps({"blocks": 40, "done": 20, "failed": 0, "failures": {}}))
    often = "from lsdflow_launch.slurm import follow; follow.PROGRESS_EVERY_S = 0"
    command = [sys.executable, "-c", f"{often}; from lsdflow_launch.cli import main; main()"]
    child = subprocess.Popen(
        [*command, "run", str(queue.experiment), "--backend", "slurm"], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 600
    while len(queue.calls("squeue")) < 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    queue.rows(("11", "FAILED", "NonZeroExitCode", "n1", 0, 79), ("13", "FAILED", "NonZeroExitCode", "n1", 0, 66))
    output = child.communicate(timeout=600)[1]
    assert child.returncode == 79, output
    assert "predict coordinator: job 11 RUNNING" in output
    assert re.search(r"predict: 20 of 40 blocks done, [12]\.\d+ a minute, 1\d\.\d minutes left", output), output
    assert "predict ended with exit code 79" in output
    assert queue.calls("sbatch") == []


def test_run_on_slurm_submits_nothing_that_has_problems(queue: Queue) -> None:
    queue.rows()
    problem = {"what": "no such volume", "exit_code": 66, "where": "/far/away.zarr", "fix": "repair it"}
    queue.answer("validate-prepare", json.dumps([problem]))
    done = queue.lsdflow("run", queue.experiment, "--backend", "slurm")
    assert done.returncode == 66
    assert "no such volume" in done.stderr
    assert queue.calls("sbatch") == []


def test_a_second_submission_says_that_the_first_is_in_the_queue_whatever_else_is_wrong(queue: Queue) -> None:
    queue.rows(("11", "PENDING", "Resources", "", 0, 0))
    queue.answer("validate-prepare", json.dumps([{"what": "no such volume", "exit_code": 66, "where": "/far"}]))
    done = queue.lsdflow("submit", queue.experiment, "--to", "prepare")
    assert done.returncode == 73, done.stderr
    assert "no such volume" not in done.stderr
    assert queue.calls("sbatch") == []


def test_stages_that_are_not_to_be_submitted_are_not_checked(queue: Queue) -> None:
    queue.rows()
    queue.answer("validate-predict", json.dumps([{"what": "no such network", "exit_code": 66, "where": "/far"}]))
    done = queue.lsdflow("submit", queue.experiment, "--to", "prepare", "--dry-run")
    assert "no such network" not in done.stderr
    assert queue.lsdflow("submit", queue.experiment, "--to", "predict", "--dry-run").returncode == 66


CHAIN = tuple(Submitted(*job) for job in JOBS)


def _tasks(**states: str) -> dict[str, list[Task]]:
    """COMPLETED but for the jobs named: j12='FAILED 74', several tasks parted by commas."""
    found = {job.job: [Task(job.job, job.job, "COMPLETED")] for job in CHAIN}
    for name, text in states.items():
        number = name.removeprefix("j")
        parts = [part.split() for part in text.split(",")]
        found[number] = [Task(number, number, p[0], code=int(p[1]) if len(p) > 1 else 0) for p in parts if p]
    return found


@pytest.mark.parametrize(
    ("tasks", "code"),
    [
        (_tasks(), 0),
        (_tasks(j16="PENDING"), None),
        (_tasks(j12="COMPLETED,FAILED 74"), 0),
        (_tasks(j11="FAILED 79", j13="FAILED 66", j14="CANCELLED", j15="CANCELLED", j16="CANCELLED"), 79),
        (_tasks(j12="FAILED 74", j14="FAILED 70", j16="FAILED 66"), 70),
        (_tasks(j13="FAILED 65", j14="CANCELLED", j16="CANCELLED"), 65),
        (_tasks(j11="CANCELLED", j12="CANCELLED", j13="CANCELLED"), 75),
        (_tasks(j14="TIMEOUT", j16="CANCELLED"), 75),
        (_tasks(j14="NODE_FAIL", j16="FORGOTTEN"), 70),
        (_tasks(j16=""), 70),
    ],
)
def test_the_code_of_a_chain_is_that_of_its_first_stage_that_was_not_verified(
    tasks: dict[str, list[Task]], code: int | None
) -> None:
    assert chain_code(CHAIN, tasks) == code


def test_what_slurm_forgets_while_it_is_followed_is_remembered() -> None:
    answers = iter(
        [_tasks(j14="RUNNING", j16="PENDING"), {"16": [Task("16", "16", "PENDING")]}, _tasks(j11="", j13="")]
    )
    following = Following(CHAIN, ask=lambda jobs: next(answers))
    assert following.to_the_end(sleep=lambda seconds: None) == 0


def test_slurm_may_be_silent_for_a_while() -> None:
    answers = iter([StoreUnreachable("squeue does not answer"), None, _tasks()])

    def ask(jobs: Sequence[Submitted]) -> dict[str, list[Task]]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer or _tasks(j16="RUNNING")

    pauses: list[float] = []
    assert Following(CHAIN, ask=ask).to_the_end(sleep=pauses.append) == 0
    assert len(pauses) == 2


def test_progress_names_the_pass_of_a_stage_that_has_several() -> None:
    facts = {"pass": "faces", "blocks": 18, "blocks_done": 3, "failed": 1}
    assert progress_text(facts) == "faces: 3 of 18 blocks done, 1 failed"
