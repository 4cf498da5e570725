"""A stage that is at work, a real node_exporter, and a real Prometheus that scrapes both; all on loopback.

stage (10 blocks, one fails once, the last waits) --HTTP--> Prometheus <--HTTP-- node_exporter <--files-- stage
                                                                                         <--files-- a training
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lsdflow_command.monitoring import monitored
from lsdflow_command.progress import Progress
from lsdflow_contract.experiment import Experiment, load_experiment

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
# Where install_prometheus.sh of this folder puts them; the Makefile runs it.
PROGRAMS = REPOSITORY / ".cache" / "prometheus" / "usr" / "bin"
BLOCKS = 10


@pytest.fixture(scope="session")
def programs() -> Path:
    """Folder of prometheus, promtool and prometheus-node-exporter."""
    done = subprocess.run(
        [HERE / "install_prometheus.sh", PROGRAMS.parents[1]], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return PROGRAMS


def free_port() -> int:
    """A port of loopback that nobody has now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def eventually(what: str, ask: Callable[[], Any], seconds: float = 600) -> Any:
    """Ask until the answer is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := ask():
            return answer
        time.sleep(0.1)
    raise AssertionError(f"never: {what}")


@contextmanager
def started(*words: str | Path, log: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its output in a file. After the test it is killed, and all below it; so it is if pytest dies."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "--", *map(str, words)],
            stdout=output,
            stderr=output,
            env={**os.environ, **more},
            process_group=0,
        )
    try:
        yield process
    finally:
        # also where it has ended: what it started may be at work
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


@dataclass(frozen=True)
class Watched:
    """The stage at work, and how Prometheus is asked."""

    experiment: Experiment
    stage: subprocess.Popen[bytes]
    log: Path
    prometheus: str

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now."""
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.prometheus}/api/v1/query?{query}", timeout=60) as answer:
            content = json.load(answer)
        assert content["status"] == "success", content
        return list(content["data"]["result"])

    def value(self, expression: str) -> float | None:
        """The value of an expression with one series; None without any."""
        found = self.ask(expression)
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None


@pytest.fixture(scope="module")
def watched(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """Everything of the module's docstring, once the stage waits for its last block and Prometheus has seen it."""
    scratch = tmp_path_factory.mktemp("monitoring")
    experiment = make_experiment(scratch / "watched", every_s=0.2)
    words = (sys.executable, "-m", "lsdflow_watched.cli", "run", "-e", experiment.path, "--set", "compute.workers=2")
    python = {"PYTHONPATH": str(HERE / "stage"), "LSDFLOW_METRICS_ADDRESS": "0", "LSDFLOW_LOG": "json"}
    exporter, prometheus = free_port(), free_port()
    collector = ("--collector.disable-defaults", "--collector.textfile")
    with (
        started(*words, log=scratch / "stage.log", **python) as stage,
        _training(experiment),
        started(
            *(programs / "prometheus-node-exporter", *collector, f"--web.listen-address=127.0.0.1:{exporter}"),
            f"--collector.textfile.directory={experiment.layout.metrics}",
            log=scratch / "exporter.log",
        ),
    ):
        served = eventually("the stage serves", lambda: _served_at(scratch / "stage.log"))
        config = scratch / "prometheus.yml"
        config.write_text(_config({"stage": served, "files": f"127.0.0.1:{exporter}"}))
        server = (programs / "prometheus", f"--config.file={config}", f"--storage.tsdb.path={scratch / 'tsdb'}")
        with started(*server, f"--web.listen-address=127.0.0.1:{prometheus}", log=scratch / "prometheus.log"):
            found = Watched(experiment, stage, scratch / "stage.log", f"http://127.0.0.1:{prometheus}")
            eventually("Prometheus answers", lambda: _is_ready(found.prometheus))
            for name in ('lsdflow_work_done{stage="watched"}', 'lsdflow_block_attempts_total{outcome="done"}'):
                done = f"min({name}) == 9 and count({name}) == 2"
                eventually("Prometheus has seen nine blocks done, from both", partial(found.value, done))
            yield found


def make_experiment(folder: Path, every_s: float) -> Experiment:
    """An experiment whose metrics are written so often."""
    folder.mkdir()
    tables = f'[experiment]\nname = "{folder.name}"\n[compute]\nmetrics_every_s = {every_s}\n'
    (folder / "experiment.toml").write_text(tables)
    return load_experiment(folder)


@contextmanager
def _training(experiment: Experiment) -> Iterator[None]:
    """What a training reports: its iterations and the parts of its loss (tests/training asks a real one)."""
    with (
        monitored("train-acrlsd", experiment),
        Progress("train-acrlsd", 100, "iteration") as progress,
    ):
        progress.gauges.update(learning_rate=5e-5, patches_per_iteration=2, validation_loss=0.9)
        progress.advance(40, {"affs": 0.5, "lsds": 0.25}, loss=0.75)
        yield


def _config(targets: dict[str, str]) -> str:
    jobs = [
        {"job_name": job, "honor_labels": True, "static_configs": [{"targets": [address]}]}
        for job, address in targets.items()
    ]
    return json.dumps({"global": {"scrape_interval": "250ms", "scrape_timeout": "250ms"}, "scrape_configs": jobs})


def _served_at(log: Path) -> str:
    found = re.search(r"metrics: http://(127\.0\.0\.1:\d+)/metrics", log.read_text())
    return found[1] if found else ""


def _is_ready(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/-/ready", timeout=60) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
