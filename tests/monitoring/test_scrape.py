"""What a real Prometheus has of a stage that is at work is the truth: by HTTP, and from its files by node_exporter."""

from __future__ import annotations

import json
import re
import socket
import subprocess
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lsdflow_command.attempts import AttemptReader

from .conftest import BLOCKS, REPOSITORY, Watched, eventually

JOBS = ("stage", "files")


@pytest.mark.proves("MON-03")
@pytest.mark.parametrize("job", JOBS)
def test_blocks_in_prometheus_are_those_of_the_done_marks(watched: Watched, job: str) -> None:
    store = watched.experiment.layout.store
    marks = [path for path in store.rglob("done/*.json") if not path.name.startswith(".")]
    attempts = AttemptReader(watched.experiment.layout.stage_runs("watched")).ended()
    of = f'{{job="{job}",stage="watched"}}'
    assert len(marks) == watched.value(f"lsdflow_work_done{of}") == BLOCKS - 1
    assert watched.value(f"lsdflow_work_planned{of}") == BLOCKS
    assert watched.value(f"lsdflow_blocks_failed{of}") == 0, "what failed once is done by now"
    assert watched.value(f"lsdflow_block_retries_total{of}") == 1
    for outcome in ("done", "failed"):
        counted = sum(attempt.outcome == outcome for attempt in attempts)
        value = watched.value(f'lsdflow_block_attempts_total{{job="{job}",stage="watched",outcome="{outcome}"}}')
        assert value == counted == {"done": BLOCKS - 1, "failed": 1}[outcome]
    seconds = sum(attempt.seconds for attempt in attempts if attempt.outcome == "done")
    assert watched.value(f"lsdflow_block_seconds_sum{of}") == pytest.approx(seconds)
    assert watched.value(f"lsdflow_block_seconds_count{of}") == BLOCKS - 1


def test_labels_name_the_run_and_never_a_block(watched: Watched) -> None:
    (series,) = watched.ask('lsdflow_work_done{job="stage"}')
    labels = {"experiment": "watched", "stage": "watched", "host": socket.gethostname(), "pid": str(watched.stage.pid)}
    assert {**labels, "unit": "block"}.items() <= series["metric"].items()
    for found in watched.ask('{__name__=~"lsdflow_.+"}'):
        assert not {"block", "block_id", "number"} & set(found["metric"])


def test_memory_is_that_of_the_process_and_of_its_workers(watched: Watched) -> None:
    resident = {
        of: watched.value(f'lsdflow_resident_bytes{{job="stage",of="{of}"}}') or 0 for of in ("process", "workers")
    }
    status = Path(f"/proc/{watched.stage.pid}/status").read_text()
    now = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))) * 1024
    assert resident["process"] == pytest.approx(now, rel=0.2)
    # one worker waits with its block; the other has left if it found no more
    assert watched.value('lsdflow_workers{job="stage"}') >= 1
    assert resident["workers"] > 30e6
    assert watched.value('lsdflow_cpu_seconds_total{job="stage"}') > 0
    assert watched.value('lsdflow_written_bytes_total{job="stage"}') > 1000


def test_iterations_and_the_parts_of_the_loss_are_reported(watched: Watched) -> None:
    assert watched.value('lsdflow_work_done{stage="train-acrlsd",unit="iteration"}') == 40
    assert watched.value('lsdflow_loss{stage="train-acrlsd"}') == 0.75
    for name, value in (("learning_rate", 5e-5), ("patches_per_iteration", 2), ("validation_loss", 0.9)):
        assert watched.value(f'lsdflow_{name}{{stage="train-acrlsd"}}') == value
    parts = {found["metric"]["part"]: float(found["value"][1]) for found in watched.ask("lsdflow_loss_part")}
    assert parts == {"affs": 0.5, "lsds": 0.25}


def test_files_and_http_are_what_promtool_and_the_client_library_take(watched: Watched, programs: Path) -> None:
    files = list(watched.experiment.layout.metrics.glob("*.prom"))
    assert {path.name.rsplit("-", 2)[0] for path in files} == {"watched", "train-acrlsd"}
    for path in files:
        text = path.read_text()
        names = {family.name for family in text_string_to_metric_families(text)}
        assert {"lsdflow_stage_running", "lsdflow_work_done"} <= names
        done = subprocess.run(
            [programs / "promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    unread = 'max(node_textfile_scrape_error{job="files"})'
    eventually("node_exporter is scraped", lambda: watched.value(unread) is not None)
    assert watched.value(unread) == 0


def test_log_lines_of_the_run_are_json_each_with_the_fields(watched: Watched) -> None:
    lines = [json.loads(line) for line in watched.log.read_text().splitlines()]
    assert len(lines) >= 2
    for line in lines:
        assert {"time", "level", "stage", "host", "job", "block", "message"} <= set(line)
        assert (line["stage"], line["host"]) == ("watched", socket.gethostname())
    (events,) = watched.experiment.layout.stage_runs("watched").glob("*/events.jsonl")
    assert [json.loads(line)["message"] for line in events.read_text().splitlines()][-1:] == [lines[-1]["message"]]


DASHBOARD = REPOSITORY / "compose/monitoring/grafana/dashboards/stages.json"
EXPRESSIONS = [
    (panel["title"], target["expr"])
    for panel in json.loads(DASHBOARD.read_text())["panels"]
    for target in panel["targets"]
    # of runs that ended: asked by the last test of this file
    if "exit_code" not in target["expr"]
]


@pytest.mark.proves("MON-04")
@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_every_panel_of_the_dashboard_has_something_to_show(watched: Watched, title: str, expression: str) -> None:
    assert len(EXPRESSIONS) >= 20
    for name, value in {"$experiment": ".*", "$stage": ".*", "$__rate_interval": "1m"}.items():
        expression = expression.replace(name, value)
    assert "$" not in expression
    # rates want two scrapes, and the first may have been the last thing that happened
    assert eventually(title, partial(watched.ask, expression), seconds=10)


def test_the_alarms_of_the_documentation_are_expressions_and_quiet_while_all_is_well(watched: Watched) -> None:
    alarms = re.findall(r"`((?:deriv|lsdflow)[^`]* (?:==|>) [^`]*)`", (REPOSITORY / "docs/monitoring.md").read_text())
    assert len(alarms) == 3
    assert watched.ask(alarms[0]) == watched.ask(alarms[2]) == []
    assert {found["metric"]["stage"] for found in watched.ask(alarms[1].replace("30m", "2s"))} >= {"train-acrlsd"}


def test_the_last_word_of_a_run_says_that_it_ended_and_how(watched: Watched) -> None:
    """The last of this file: it lets the stage end."""
    (watched.experiment.layout.root / "go").touch()
    assert watched.stage.wait(60) == 0
    of = '{job="files",stage="watched"}'
    eventually("Prometheus has read the last word", lambda: watched.value(f"lsdflow_stage_exit_code{of}") == 0)
    assert watched.value(f"lsdflow_stage_running{of}") == 0
    assert watched.value(f"lsdflow_work_done{of}") == BLOCKS
    assert watched.value(f'lsdflow_resident_bytes{of[:-1]},of="process"}}') is None
