"""`lsdflow trace`: a row per run and per attempt at a block, whatever became of them."""

from __future__ import annotations

import csv
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lsdflow_command.attempts import FOLDER, AttemptLog, AttemptReader
from lsdflow_command.metrics import BlockCounts
from lsdflow_command.runfolder import run_folder
from lsdflow_contract.errors import BadData, Interrupted
from lsdflow_contract.experiment import Experiment
from lsdflow_launch.trace import COLUMNS

from .conftest import make_experiment

# The columns of Nextflow's default trace file.
NEXTFLOW = "task_id hash native_id name status exit submit duration realtime %cpu peak_rss peak_vmem rchar wchar"
KEY = "0123456789abcdef"


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    """An experiment whose watershed has been at three blocks."""
    return make_experiment(tmp_path / "traced", every_s=0)


def _runs(experiment: Experiment) -> Path:
    return experiment.layout.stage_runs("watershed")


def _attempt(log: AttemptLog, block: int, error: BaseException | None = None) -> None:
    with log.attempt(block):
        if error is not None:
            raise error
        Path(os.devnull).write_bytes(b"x" * 5000)


def _trace(experiment: Experiment) -> dict[str, int]:
    words = [sys.executable, "-c", "from lsdflow_launch.cli import main; main()", "trace", "--json"]
    done = subprocess.run([*words, experiment.layout.root], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert [row["task_id"] for row in rows] == [str(n) for n in range(1, len(rows) + 1)]
    return rows


def test_blocks_that_were_done_failed_retried_stopped_and_lost_have_their_rows(experiment: Experiment) -> None:
    with AttemptLog(_runs(experiment), KEY) as log:
        _attempt(log, 0)
        for block, error in ((1, ValueError("no\ttabs")), (2, Interrupted("stop"))):
            with pytest.raises(type(error)):
                _attempt(log, block, error)
        _attempt(log, 1)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    lost = log.path.with_name(log.path.name.replace(f"-{os.getpid()}-", f"-{ended.pid}-"))
    lost.write_text(f"2\t1800000000.000\t{KEY[:12]}\tjob 7")
    assert _trace(experiment) == {"trace.tsv": 0, "runs/watershed/trace.tsv": 5}
    rows = _rows(_runs(experiment) / "trace.tsv")
    cells = [(row["block"], row["attempt"], row["status"], row["exit"], row["error"]) for row in rows]
    assert cells == [
        ("0", "1", "COMPLETED", "0", "-"),
        ("1", "1", "FAILED", "-", "ValueError"),
        ("2", "1", "ABORTED", "-", "Interrupted"),
        ("1", "2", "COMPLETED", "0", "-"),
        ("2", "2", "ABORTED", "-", "-"),
    ]
    assert rows[-1]["native_id"] == "job 7"
    assert int(rows[0]["wchar"]) >= 5000
    assert int(rows[0]["peak_rss"]) > 10e6
    assert int(rows[0]["complete"]) == pytest.approx(int(rows[0]["start"]) + int(rows[0]["realtime"]), abs=2)
    assert {row["host"] for row in rows} == {os.uname().nodename}


def test_a_block_under_way_is_running_and_counted_when_it_has_ended(experiment: Experiment) -> None:
    reader = AttemptReader.from_now(_runs(experiment))
    with AttemptLog(_runs(experiment), KEY) as log:
        with log.attempt(3):
            assert reader.ended() == []
            assert [attempt.block for attempt in reader.without_end()] == [3]
            _trace(experiment)
            assert [row["status"] for row in _rows(_runs(experiment) / "trace.tsv")] == ["RUNNING"]
        assert [attempt.outcome for attempt in reader.ended()] == ["done"]
        assert (reader.ended(), reader.without_end()) == ([], [])


def test_a_block_that_failed_and_was_done_by_another_process_counts_as_done(experiment: Experiment) -> None:
    """In the order of time, not in that of the processes' files."""
    folder = _runs(experiment) / FOLDER
    folder.mkdir(parents=True)
    line = "7\t{start}\t" + KEY[:12] + "\t\t{outcome}\t1.0\t0\t0\t0\t0\t0\t\t0\t\n"
    (folder / "20260101T000000-1-a.tsv").write_text(line.format(start=1800000002.0, outcome="done"))
    (folder / "20260101T000000-2-b.tsv").write_text(line.format(start=1800000000.0, outcome="failed"))
    counts = BlockCounts()
    for attempt in AttemptReader(_runs(experiment)).ended():
        counts.add(attempt)
    assert (counts.failed, counts.retries, counts.attempts) == (set(), 1, {"done": 1, "failed": 1})


def test_every_run_of_a_stage_has_its_row_with_what_it_took(experiment: Experiment) -> None:
    with run_folder("prepare", experiment, {}):
        Path(os.devnull).write_bytes(b"x" * 5000)
    with pytest.raises(BadData), run_folder("watershed", experiment, {}):
        raise BadData("wrong\nhere")
    assert _trace(experiment) == {"trace.tsv": 2}
    rows = _rows(experiment.layout.root / "trace.tsv")
    cells = [(row["name"], row["attempt"], row["status"], row["exit"], row["error"], row["block"]) for row in rows]
    assert cells == [("prepare", "1", "COMPLETED", "0", "-", "-"), ("watershed", "1", "FAILED", "65", "BadData", "-")]
    assert int(rows[0]["wchar"]) >= 5000
    assert int(rows[0]["peak_rss"]) > 10e6
    assert int(rows[0]["start"]) <= int(rows[1]["start"])


def test_the_columns_are_nextflows_in_their_order_and_then_the_additional_ones() -> None:
    assert [name for name in COLUMNS if name in NEXTFLOW.split()] == NEXTFLOW.split()
    assert COLUMNS[-5:] == ("block", "attempt", "host", "gpu", "error")


def test_attempts_that_cannot_be_noted_do_not_stop_the_work(
    experiment: Experiment, caplog: pytest.LogCaptureFixture
) -> None:
    _runs(experiment).mkdir(parents=True)
    (_runs(experiment) / FOLDER).write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING), AttemptLog(_runs(experiment), KEY) as log:
        _attempt(log, 0)
        _attempt(log, 1)
    assert [record.message.split(":")[0] for record in caplog.records] == ["what the blocks take is no longer noted"]


def test_attempts_are_numbered_as_they_began_and_each_figure_is_in_its_column(experiment: Experiment) -> None:
    """A block of a worker that hangs is given to another one, which is done with it first."""
    folder = _runs(experiment) / FOLDER
    folder.mkdir(parents=True)
    line = "7\t{start}\t" + KEY[:12] + "\t\tdone\t{seconds}\t1.5\t11\t22\t33\t44\tA100\t55\t\n"
    (folder / "20260101T000000-1-slow.tsv").write_text(line.format(start=1800000000.0, seconds=100.0))
    (folder / "20260101T000000-2-quick.tsv").write_text(line.format(start=1800000050.0, seconds=3.0))
    _trace(experiment)
    rows = _rows(_runs(experiment) / "trace.tsv")
    assert [(row["host"], row["attempt"]) for row in rows] == [("slow", "1"), ("quick", "2")]
    figures = [rows[1][name] for name in ("peak_rss", "peak_vmem", "rchar", "wchar", "%cpu", "realtime", "gpu")]
    assert figures == ["11", "22", "33", "44", "50.0", "3000", "A100"]
    assert [rows[1][name] for name in ("submit", "start", "complete")] == [
        "1800000050000",
        "1800000050000",
        "1800000053000",
    ]


def _begun_elsewhere(experiment: Experiment, *names: str) -> None:
    """Attempts at block 7 without an end, of machines that cannot be asked."""
    folder = _runs(experiment) / FOLDER
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        text = f"7\t180000000{number}.0\t{KEY[:12]}\t"
        (folder / f"20260101T000000-{number}-{name}.tsv").write_text(text)


def _statuses(experiment: Experiment) -> list[str]:
    _trace(experiment)
    return [row["status"] for row in _rows(_runs(experiment) / "trace.tsv")]


def test_an_attempt_of_a_lost_machine_does_not_run_for_ever(experiment: Experiment) -> None:
    _begun_elsewhere(experiment, "lost", "next")
    assert _statuses(experiment) == ["ABORTED", "RUNNING"], "another worker got the block"
    run = _runs(experiment) / "20260101T000000-5"
    run.mkdir()
    (run / "config.resolved.json").write_text("{}")
    assert _statuses(experiment) == ["ABORTED", "RUNNING"], "nobody knows how that run ended, or whether"
    (run / "outcome.json").write_text(json.dumps({"exit_code": 79, "seconds": 20.0, "started": 1800000000.0}))
    assert _statuses(experiment) == ["ABORTED", "ABORTED"]


def test_a_run_that_was_stopped_is_no_failure_and_its_figures_are_those_of_its_outcome(experiment: Experiment) -> None:
    folder = _runs(experiment) / "20260101T000000-5"
    folder.mkdir(parents=True)
    (folder / "config.resolved.json").write_text("{}")
    taken = {"cpu_s": 30.0, "peak_resident_bytes": 11, "read_bytes": 33, "written_bytes": 44}
    outcome = {"exit_code": 75, "seconds": 20.0, "started": 1800000000.0, "resources": taken, "host": "n1", "job": "8"}
    (folder / "outcome.json").write_text(json.dumps(outcome))
    _trace(experiment)
    (row,) = _rows(experiment.layout.root / "trace.tsv")
    assert (row["status"], row["exit"], row["%cpu"]) == ("ABORTED", "75", "150.0")
    assert [row[name] for name in ("peak_rss", "rchar", "wchar", "native_id", "host")] == ["11", "33", "44", "8", "n1"]
    assert (row["start"], row["complete"]) == ("1800000000000", "1800000020000")
