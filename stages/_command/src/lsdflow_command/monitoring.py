"""Metrics of a running stage: a file that is written regularly, and a small HTTP server, each if configured.

    compute.metrics_every_s   metrics/<stage>-<host>-<pid>.prom, by rename, for the textfile collector of Prometheus'
                              node_exporter; first after that many seconds, so a short run writes none
    compute.metrics_address   HTTP for a Prometheus that scrapes the stage itself: a port on loopback, or on an
                              interface named by the user; never on all interfaces

Neither may disturb the run: if a file cannot be written or a port is in use, this is logged. At its end a run writes
its last file, marked as ended; the next run of the stage removes it, and the files of dead processes. The metrics
themselves are in metrics.py.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lsdflow_command.attempts import AttemptReader
from lsdflow_command.processes import has_ended
from lsdflow_command.progress import MONITOR, Monitor
from lsdflow_contract.errors import ConfigError, StageError
from lsdflow_contract.experiment import Experiment

if TYPE_CHECKING:
    from lsdflow_command.metrics import StageMetrics

LOG = logging.getLogger("lsdflow.metrics")
# If a process of another machine has not written its file for this time, it has died.
FORGOTTEN_SECONDS = 3600.0
# There may be many workers of other jobs, and all write to one folder.
WORKERS_WRITE_SECONDS = 60.0
# How long the end of a run waits for a file that is being written, because storage that hangs must not block it.
LAST_WRITE_SECONDS = 10.0
# A process that is forked during an import could wait forever for its lock; so forks wait for the import.
_IMPORTING = threading.Lock()
VARIABLE = "LSDFLOW_METRICS_ADDRESS"
LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:([^\s:/]+):)?(\d{1,5})")


@contextlib.contextmanager
def monitored(
    stage: str, experiment: Experiment, *, is_worker: bool = False, run_pid: int | None = None
) -> Iterator[Monitor]:
    """Report the metrics of the run within the `with` block, as [compute] sets.

    run_pid: the process of the run, if it is another one.
    """
    address = address_of(experiment.compute.metrics_address, os.environ)
    every_s = experiment.compute.metrics_every_s
    runs = experiment.layout.stage_runs(stage)
    attempts = AttemptReader() if is_worker else AttemptReader.from_now(runs)
    monitor = Monitor(stage, experiment, attempts, run_pid or os.getpid())
    token = MONITOR.set(monitor)
    with contextlib.ExitStack() as out:
        if every_s > 0:
            out.enter_context(_written(monitor, max(every_s, WORKERS_WRITE_SECONDS) if is_worker else every_s))
        if address is not None and not is_worker:
            _serve(monitor, address)
        try:
            yield monitor
            monitor.exit_code = 0
        except BaseException as error:
            monitor.exit_code = error.exit_code if isinstance(error, StageError) else 70
            raise
        finally:
            monitor.stop_serving()
            MONITOR.reset(token)


def hand_over() -> None:
    """Stop reporting, because a process that this one starts for the same run reports everything."""
    if (monitor := MONITOR.get()) is not None:
        monitor.handed_over = True
        monitor.stop_serving()


def metrics_file(monitor: Monitor) -> Path:
    """The file of this process for the metrics of its run."""
    name = f"{monitor.stage}-{socket.gethostname()}-{os.getpid()}.prom"
    return monitor.experiment.layout.metrics / name


@contextlib.contextmanager
def _written(monitor: Monitor, every_s: float) -> Iterator[None]:
    file = _MetricsFile(metrics_file(monitor), monitor)
    stop = threading.Event()

    def write_again_and_again() -> None:
        while not stop.wait(every_s):
            file.write()

    thread = threading.Thread(target=write_again_and_again, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=LAST_WRITE_SECONDS)
        if file.begun and not thread.is_alive():
            file.write()


@dataclass
class _MetricsFile:
    path: Path
    monitor: Monitor
    begun: bool = False
    failing: bool = False

    def write(self) -> None:
        """Replace the file. A failure is logged once, and again only after a success."""
        if self.monitor.handed_over:
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)
            return
        partial = self.path.with_name(f".{self.path.name}.partial")
        try:
            content = _metrics_of(self.monitor).text()
            if not self.begun:
                _remove_left_behind(self.path.parent, self.monitor.stage)
                self.path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_bytes(content)
            partial.replace(self.path)
            self.begun, self.failing = True, False
        except Exception as error:  # noqa: BLE001 - the run continues after any error
            if not self.failing:
                LOG.warning("metrics cannot be written, the run continues: %s", error)
            self.failing = True
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)


def _serve(monitor: Monitor, address: Address) -> None:
    try:
        metrics = _metrics_of(monitor)
        monitor.port, monitor.stop_serving = metrics.serve(address.host, address.port)
    except Exception as error:  # noqa: BLE001 - a port in use must not stop the run
        LOG.warning("metrics are not served at %s, the run continues: %s", address, error)
        return
    LOG.info("metrics: http://%s/metrics", Address(address.host, monitor.port))


def _metrics_of(monitor: Monitor) -> StageMetrics:
    """The collector, imported here so that only runs with metrics pay for the import."""
    _forks_wait_for_imports()
    with _IMPORTING:
        from lsdflow_command.metrics import StageMetrics

        found: StageMetrics = monitor.metrics or StageMetrics(monitor)
        monitor.metrics = found
    return found


@functools.cache
def _forks_wait_for_imports() -> None:
    os.register_at_fork(
        before=_IMPORTING.acquire, after_in_parent=_IMPORTING.release, after_in_child=_IMPORTING.release
    )


def _remove_left_behind(folder: Path, stage: str) -> None:
    """Remove files of this stage whose processes have ended, because Prometheus would collect them forever."""
    for path in [*folder.glob(f"{stage}-*.prom"), *folder.glob(f".{stage}-*.prom.partial")]:
        name = path.name.removeprefix(".").removesuffix(".partial").removesuffix(".prom")
        host, _, pid = name.removeprefix(f"{stage}-").rpartition("-")
        with contextlib.suppress(OSError, ValueError):
            if has_ended(host, int(pid)) or time.time() - path.stat().st_mtime > FORGOTTEN_SECONDS:
                path.unlink()


@dataclass(frozen=True)
class Address:
    """A host (name or IPv4 address of an interface) and a port; port 0 means any free port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def address_of(option: str | None, environment: Mapping[str, str]) -> Address | None:
    """The address in compute.metrics_address, else in the environment; None if neither is set.

    ConfigError (78) for an invalid address, and for the address of all interfaces.
    """
    text = option if option is not None else environment.get(VARIABLE, "")
    if not text:
        return None
    where = "compute.metrics_address" if option is not None else f"${VARIABLE}"
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found[2]) > 65_535:
        raise ConfigError("not an address of metrics", where=where, wanted="PORT or INTERFACE:PORT", found=text)
    host = found[1] or LOOPBACK
    if _is_everywhere(host):
        fix = f"name one interface, or the port alone for {LOOPBACK}"
        raise ConfigError("metrics are not served on all interfaces", where=where, found=text, fix=fix)
    return Address(host, int(found[2]))


def _is_everywhere(host: str) -> bool:
    try:
        return not any(socket.inet_aton(host))  # it also accepts 0 and 0x0, like the server
    except OSError:
        return False
