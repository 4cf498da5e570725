"""The numbers that Prometheus gets, without a Prometheus: counters, buckets, labels, of attempts that are known."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lsdflow_command import progress as progress_module
from lsdflow_command.attempts import FOLDER, Attempt
from lsdflow_command.metrics import BLOCK_SECONDS, LABELS, BlockCounts, StageMetrics
from lsdflow_command.monitoring import monitored
from lsdflow_command.progress import Progress

from .conftest import make_experiment

Series = dict[str, list[tuple[dict[str, str], float]]]


def attempt(block: int, outcome: str, seconds: float = 1.0, begin: float = 0.0, pid: int = 1, gpu: int = 0) -> Attempt:
    return Attempt(block, begin, "key", "", outcome, seconds, host="n1", pid=pid, gpu_bytes=gpu)


def counted(*attempts: Attempt) -> BlockCounts:
    counts = BlockCounts()
    for found in attempts:
        counts.add(found)
    return counts


def samples_of(metrics: StageMetrics) -> Series:
    """Samples by name."""
    found: Series = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_every_attempt_after_a_failure_is_a_retry_also_of_a_block_that_is_done_again() -> None:
    counts = counted(attempt(1, "failed"), attempt(1, "failed"), attempt(1, "done"), attempt(1, "done"))
    assert (counts.retries, counts.failed, counts.attempts) == (3, set(), {"done": 2, "failed": 2})
    # what was stopped had not failed
    assert counted(attempt(1, "stopped"), attempt(1, "done")).retries == 0
    assert counted(attempt(1, "done"), attempt(1, "failed")).failed == {("key", 1)}


def test_buckets_count_all_that_took_no_longer_and_only_what_was_done() -> None:
    found = dict(counted(*(attempt(n, "done", s) for n, s in enumerate((0.02, 0.1, 0.2, 5000)))).buckets())
    assert [found[bound] for bound in ("0.01", "0.03", "0.1", "0.3", "1000.0", "+Inf")] == [0, 1, 2, 3, 3, 4]
    assert len(found) == len(BLOCK_SECONDS) + 1
    failed = counted(attempt(1, "failed", 5.0))
    assert (failed.buckets()[-1][1], failed.seconds_sum) == (0, 0)


def test_memory_of_gpus_is_that_of_workers_that_were_heard_of() -> None:
    counts = counted(
        attempt(1, "done", 1, begin=10, pid=1, gpu=100),
        attempt(2, "done", 1, begin=100, pid=2, gpu=7),
        attempt(3, "done", 1, begin=110, pid=2, gpu=5),
    )
    assert (counts.gpu_bytes(50), counts.gpu_bytes(0), counts.gpu_bytes(500)) == (5, 105, 0)


def test_a_run_reports_only_its_own_attempts_with_its_labels(tmp_path: Path) -> None:
    experiment = make_experiment(tmp_path / "a", every_s=0)
    file = experiment.layout.stage_runs("watched") / FOLDER / "20260101T000000-1-n1.tsv"
    file.parent.mkdir(parents=True)
    line = "{block}\t1.0\tkey\t\tdone\t2.0\t1.0\t1\t1\t1\t1\t\t0\t\n"
    file.write_text(line.format(block=1))
    with monitored("watched", experiment) as monitor, Progress("watched", 3, "block", already=1) as progress:
        with file.open("a") as more:
            more.write(line.format(block=2))
        progress.advance()
        found = samples_of(StageMetrics(monitor))
    own = {"experiment": "a", "stage": "watched", "host": socket.gethostname(), "pid": str(os.getpid())}
    assert set(own) == set(LABELS)
    assert found["lsdflow_block_attempts_total"] == [({**own, "outcome": "done"}, 1), ({**own, "outcome": "failed"}, 0)]
    assert found["lsdflow_block_seconds_sum"] == [(own, 2.0)]
    assert [found[f"lsdflow_work_{name}"] for name in ("planned", "done")] == [
        [({**own, "unit": "block"}, value)] for value in (3, 2)
    ]
    for name in ("lsdflow_resident_bytes", "lsdflow_gpu_reserved_bytes"):
        assert [labels["of"] for labels, _ in found[name]] == ["process", "workers"]
    assert found["lsdflow_stage_running"] == [(own, 1)]
    assert "lsdflow_stage_exit_code" not in found


def test_what_an_earlier_run_did_is_no_speed_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with Progress("watched", 100, "block", already=40) as progress:
        assert progress.eta_s() is None
        progress.advance(20)
        now[0] += 10
        assert (progress.rate(), progress.eta_s()) == (2.0, 20.0)
        progress.advance(40)
        assert progress.eta_s() is None


def test_work_that_ends_by_the_clock_is_not_said_to_last_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with Progress("trained", 1000, "iteration", seconds=30) as progress:
        progress.advance(10)
        now[0] += 10
        assert progress.eta_s() == 20.0
        progress.advance(985)
        assert progress.eta_s() == pytest.approx(5 / 99.5)
