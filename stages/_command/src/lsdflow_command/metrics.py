"""The Prometheus metrics of a running stage, collected on request, so that the run itself counts nothing.

    done, planned, rate, ETA   from Progress, which counts all units
    blocks                     from the attempts that workers on all machines record (attempts.py)
    loss, learning rate        also from Progress, in a training
    memory, time, bytes        from /proc, of this process and those below it; of the GPU from torch if it is in use

Labels: experiment, stage, host and pid (a series per run); never a block.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from lsdflow_command.attempts import DONE, FAILED, Attempt
from lsdflow_command.resources import Usage, gpu_in_use, memory, usage, workers_of

if TYPE_CHECKING:
    from lsdflow_command.progress import Monitor, Progress

LABELS = ("experiment", "stage", "host", "pid")
BLOCK_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
PROCESS, WORKERS = "process", "workers"
# Values that trainings report in addition to their loss (Progress.gauges).
GAUGES = {
    "learning_rate": "Learning rate of the last iteration.",
    "patches_per_iteration": "Patches that an iteration learns from, of all processes.",
    "validation_loss": "The newest validation loss.",
}


class BlockCounts:
    """The outcomes of attempts at blocks since the run began."""

    def __init__(self) -> None:
        self.attempts = {DONE: 0, FAILED: 0}
        self.retries = 0
        self.seconds = [0] * (len(BLOCK_SECONDS) + 1)
        self.seconds_sum = 0.0
        self._gpu: dict[tuple[str, int], tuple[float, int]] = {}
        self.failed: set[tuple[str, int]] = set()
        self._failed_once: set[tuple[str, int]] = set()

    def add(self, attempt: Attempt) -> None:
        """Count an attempt that has ended."""
        block = (attempt.key, attempt.block)
        self.attempts[attempt.outcome] = self.attempts.get(attempt.outcome, 0) + 1
        self.retries += block in self._failed_once
        self._gpu[attempt.host, attempt.pid] = (attempt.started + attempt.seconds, attempt.gpu_bytes)
        if attempt.outcome == DONE:
            self.failed.discard(block)
            self.seconds[bisect_left(BLOCK_SECONDS, attempt.seconds)] += 1
            self.seconds_sum += attempt.seconds
        elif attempt.outcome == FAILED:
            self.failed.add(block)
            self._failed_once.add(block)

    def gpu_bytes(self, since: float) -> int:
        """GPU bytes reserved by torch at the last attempt of each worker that ended one after `since`."""
        return sum(reserved for ended, reserved in self._gpu.values() if ended >= since)

    def buckets(self) -> list[tuple[str, float]]:
        """Pairs of an upper bound and the number of blocks within it."""
        bounds, total, found = [*map(str, BLOCK_SECONDS), "+Inf"], 0, []
        for bound, count in zip(bounds, self.seconds, strict=True):
            total += count
            found.append((bound, float(total)))
        return found


class StageMetrics(Collector):
    """The metrics of one run; see the module's docstring."""

    def __init__(self, monitor: Monitor) -> None:
        self.monitor = monitor
        self.registry = CollectorRegistry(auto_describe=False)
        self.blocks = BlockCounts()
        self._asked_by_one = threading.Lock()
        name = monitor.experiment.common.name
        self.labels = (name, monitor.stage, socket.gethostname(), str(os.getpid()))
        self.registry.register(self)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def serve(self, host: str, port: int) -> tuple[int, Callable[[], None]]:
        """Serve the metrics by HTTP from a thread; returns the port and a function to stop. OSError if it is in use."""
        server, _ = start_http_server(port, addr=host, registry=self.registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()

        return int(server.server_port), stop

    def describe(self) -> list[Metric]:
        """An empty list, because the metrics depend on the stage."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All metrics with their present values."""
        with self._asked_by_one:
            found = [*self._stage(), *self._work(), *self._blocks(), *self._resources()]
        return iter(found)

    def _stage(self) -> Iterator[Metric]:
        running = self.monitor.exit_code is None
        yield self._gauge(
            "lsdflow_stage_running", "1 while the stage runs, 0 in the last word of a run.", float(running)
        )
        text = "When the run began, in seconds since 1970."
        yield self._gauge("lsdflow_stage_started_timestamp_seconds", text, self.monitor.started)
        text = "When these metrics were written, in seconds since 1970; an old time means that the run was killed."
        yield self._gauge("lsdflow_stage_told_timestamp_seconds", text, time.time())
        if not running:
            yield self._gauge(
                "lsdflow_stage_exit_code", "Exit code of the run that ended.", float(self.monitor.exit_code or 0)
            )

    def _work(self) -> Iterator[Metric]:
        progress = self.monitor.progress
        if progress is None:
            return
        unit = (progress.unit,)
        about = "Units of work of the stage (blocks, iterations, voxels)"
        yield self._gauge("lsdflow_work_planned", f"{about}.", float(progress.total), unit, "unit")
        yield self._gauge("lsdflow_work_done", f"{about} that are done.", float(progress.done), unit, "unit")
        yield self._gauge("lsdflow_work_per_second", f"{about} per second of this run.", progress.rate(), unit, "unit")
        if (eta_s := progress.eta_s()) is not None:
            yield self._gauge("lsdflow_work_eta_seconds", "Time until the work is done.", eta_s, unit, "unit")
        yield from self._losses(progress)
        for name, value in progress.gauges.items():
            yield self._gauge(f"lsdflow_{name}", GAUGES[name], value)

    def _losses(self, progress: Progress) -> Iterator[Metric]:
        if "loss" in progress.facts:
            yield self._gauge("lsdflow_loss", "Training loss of the last iteration.", progress.facts["loss"])
        if progress.parts:
            family = GaugeMetricFamily("lsdflow_loss_part", "Parts of the training loss.", labels=[*LABELS, "part"])
            for part, value in progress.parts.items():
                family.add_metric([*self.labels, part], value)
            yield family

    def _blocks(self) -> Iterator[Metric]:
        for attempt in self.monitor.attempts.ended():
            self.blocks.add(attempt)
        counts, labels = self.blocks, [*LABELS, "outcome"]
        if self.monitor.progress is None or self.monitor.progress.unit != "block":
            return
        attempts = CounterMetricFamily(
            "lsdflow_block_attempts", "Attempts at blocks in this run, by what became of them.", labels=labels
        )
        for outcome, count in counts.attempts.items():
            attempts.add_metric([*self.labels, outcome], count)
        yield attempts
        retries = CounterMetricFamily(
            "lsdflow_block_retries", "Attempts at blocks that had failed before.", labels=LABELS
        )
        retries.add_metric(self.labels, counts.retries)
        yield retries
        yield self._gauge("lsdflow_blocks_failed", "Blocks that failed and are not done.", float(len(counts.failed)))
        seconds = HistogramMetricFamily("lsdflow_block_seconds", "Seconds that blocks took.", labels=LABELS)
        seconds.add_metric(self.labels, counts.buckets(), counts.seconds_sum)
        yield seconds

    def _resources(self) -> Iterator[Metric]:
        run = self.monitor.run_pid
        below = workers_of(run) if self.monitor.exit_code is None else []
        used = sum((usage(pid) for pid in below), start=usage(run))
        yield from self._used(used)
        if self.monitor.exit_code is not None:
            return
        resident = {PROCESS: memory(run).resident, WORKERS: sum(memory(pid).resident for pid in below)}
        yield self._by_whom("lsdflow_resident_bytes", "Memory of the process, and of all below it.", resident)
        yield self._gauge("lsdflow_workers", "Processes below the process.", float(len(below)))
        heard_of = time.time() - self.monitor.experiment.compute.block_timeout_s  # others were lost
        reserved = {PROCESS: gpu_in_use()[1], WORKERS: self.blocks.gpu_bytes(heard_of)}
        yield self._by_whom("lsdflow_gpu_reserved_bytes", "Memory that torch has reserved on GPUs.", reserved)

    def _used(self, used: Usage) -> Iterator[Metric]:
        for name, text, value in (
            ("lsdflow_cpu_seconds", "Processor time", used.cpu_s),
            ("lsdflow_read_bytes", "Bytes read, also from the page cache,", used.read_bytes),
            ("lsdflow_written_bytes", "Bytes written", used.written_bytes),
        ):
            family = CounterMetricFamily(name, f"{text} by the process and all below it.", labels=LABELS)
            family.add_metric(self.labels, value)
            yield family

    def _by_whom(self, name: str, text: str, values: dict[str, int]) -> Metric:
        family = GaugeMetricFamily(name, text, labels=[*LABELS, "of"])
        for who, value in values.items():
            family.add_metric([*self.labels, who], value)
        return family

    def _gauge(self, name: str, text: str, value: float, more: tuple[str, ...] = (), label: str = "") -> Metric:
        family = GaugeMetricFamily(name, text, labels=[*LABELS, *([label] if label else [])])
        family.add_metric([*self.labels, *more], value)
        return family
