"""A stage in several jobs: workers find the coordinator through a file on shared storage, and process blocks for it.

    runs/<stage>/coordinator.json         state and address of the coordinator
    runs/<stage>/sessions/<session>/      shared files of the workers of one pass (daisy_runner.Session)

    starting --> serving (first pass) --> serving (second pass) --> finished     (also after an error)
                    |
                    +--> paused: the coordinator was stopped and is expected to resume; workers wait

If a coordinator is killed, its file still says "serving" at an address without a server; the next one begins a new
session. A coordinator that was replaced while it was suspended does not change the file of its successor.

    a worker:   wait --> process blocks in a child process --> no block is left, or the coordinator was lost: wait again

The worker ends when the coordinator has finished, or with exit code 75 if there was none for compute.join_wait_s. The
child can be stopped at once if the coordinator is replaced. A crash, or a block that exceeds its time-out, ends only
the child.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lsdflow_command.console import form_log_lines, start_logging
from lsdflow_command.experiment_lock import stage_lock
from lsdflow_command.interruption import leave_terminal_to_coordinator
from lsdflow_command.processes import end_with_parent
from lsdflow_command.runfolder import log_to, run_of_this_process
from lsdflow_command.stage import load_stage
from lsdflow_contract.chain_link import SUBMISSION_VARIABLE
from lsdflow_contract.errors import BadData, ConfigError, InternalError, Interrupted, StageError
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.files import read_json, write_json
from lsdflow_runtime.engine.authenticated_proxy import (
    coordinator_proxy,
    is_listening,
    read_secret,
    remove_secret,
    worker_proxy,
    write_secret,
)
from lsdflow_runtime.engine.daisy_runner import SESSION_VARIABLE, Session, join_context, serve

if TYPE_CHECKING:
    from lsdflow_runtime.engine.block_task import BlockTask

LOG = logging.getLogger("lsdflow.cluster")
HOST_VARIABLE = "LSDFLOW_HOST"
# An address outside this machine. No packet is sent: the system only reports the source address it would use.
FAR_AWAY = ("192.0.2.1", 9)
POLL_SECONDS = 1.0
# If "finished" is older than the worker, it may be of an earlier run while the next one is starting.
OUTDATED_SECONDS = 60.0
# A worker without a block tries again after this time, because the block of a lost worker becomes available late.
REJOIN_SECONDS = 30.0
# More failures than one crashing block can cause (LOST_WORKER), so the cause is this machine.
FAILURES_IN_A_ROW = 20

State = Literal["starting", "serving", "paused", "finished"]


@dataclass(frozen=True)
class Coordinator:
    """The published facts of a coordinator: its state, and its address while it serves a session."""

    state: State
    id: str = ""
    submission: str = ""
    session: str = ""
    context: str = ""
    host: str = ""
    port: int = 0
    overrides: tuple[str, ...] = ()

    def is_reachable(self) -> bool:
        """True if a server accepts connections at its address."""
        return is_listening(self.host, self.port, timeout_s=2.0)


@dataclass(frozen=True)
class CoordinatorFile:
    """The file with the state and address of a stage's coordinator; `folder` also holds the sessions."""

    folder: Path

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.folder / "coordinator.json"

    def read(self) -> Coordinator | None:
        """The content of the file; None if it does not exist. BadData (65) if it cannot be read."""
        if not self.path.exists():
            return None
        try:
            found: dict[str, Any] = read_json(self.path)
            return Coordinator(**{**found, "overrides": tuple(found["overrides"])})
        except (KeyError, TypeError) as error:
            raise BadData("not the file of a coordinator", where=self.path, found=error, fix="delete it") from error

    def write(self, coordinator: Coordinator) -> None:
        """Replace the file."""
        write_json(self.path, asdict(coordinator))

    def write_if_own(self, coordinator: Coordinator) -> None:
        """Replace the file, unless it is of another coordinator, whose workers would leave."""
        found = self.read()
        if found is None or found.id == coordinator.id:
            self.write(coordinator)

    def session(self, id_: str) -> Session:
        """The session with this name."""
        return Session(self.folder / "sessions" / id_)

    def new_session(self, pass_key: str) -> Session:
        """A new session; the folders of earlier ones are removed."""
        shutil.rmtree(self.folder / "sessions", ignore_errors=True)
        return Session.begin(self.folder / "sessions" / uuid.uuid4().hex[:12], pass_key)


@contextmanager
def sole_coordinator(stage: str, experiment: Experiment) -> Iterator[None]:
    """Coordinate a stage within the block; with runner = "cluster", the coordinator file is kept up to date.

    Raises OutputConflict (73) if another coordinator runs the stage, or another command the experiment.
    """
    file = CoordinatorFile(experiment.layout.stage_runs(stage))
    with stage_lock(experiment.layout, stage):
        if experiment.compute.runner != "cluster":
            yield
            return
        submission = os.environ.get(SUBMISSION_VARIABLE, "")
        coordinator = Coordinator("starting", id=uuid.uuid4().hex, submission=submission)
        file.write(coordinator)
        state: State = "finished"
        try:
            yield
        except (Interrupted, KeyboardInterrupt):
            state = "paused"
            raise
        finally:
            file.write_if_own(replace(coordinator, state=state))


def serve_workers_of_other_jobs(task: BlockTask, done: Collection[int]) -> None:
    """Let workers of other jobs process the blocks that are not done.

    daisy starts one process of this program, which processes no blocks, but writes the coordinator file and runs the
    proxy while daisy listens. Raises the StageError of a worker if it concerns every block.
    """
    file = CoordinatorFile(task.layout.stage_runs(task.stage))
    session = file.new_session(task.key)
    write_secret(session.folder)
    # The process that daisy starts gets the stage's name, not the task with its open inputs and store.
    stage, host, run = task.stage, own_address(), run_of_this_process()
    serving = replace(
        file.read() or Coordinator("starting"),
        state="serving",
        session=session.id,
        host=host,
        overrides=task.overrides,
    )

    def run_proxy(*, context: Any) -> None:
        """Run the authenticated proxy, and publish its port in the file of the run."""

        def opened(port: int) -> None:
            """Publish the port, at which workers can connect from now on."""
            file.write(replace(serving, context=context.to_env(), port=port))

        leave_terminal_to_coordinator()
        start_logging()
        if run is not None:
            log_to(run, stage)
        asyncio.run(coordinator_proxy(host, int(context["port"]), read_secret(session.folder), opened))

    LOG.info("%s: %d blocks; waiting for workers at %s", task.stage, len(task.plan) - len(done), host)
    try:
        serve(task, done, session, run_proxy, workers=1)
    finally:
        remove_secret(session.folder)


def own_address() -> str:
    """The address that workers on other machines can reach: $LSDFLOW_HOST, or the one of the default route.

    Raises ConfigError (78) if only the loopback address is known, because other machines cannot connect to it.
    """
    if host := os.environ.get(HOST_VARIABLE):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(FAR_AWAY)
            address = str(probe.getsockname()[0])
        except OSError:
            address = _address_of_host_name()
    if address.startswith("127."):
        raise ConfigError(
            "this machine knows only its loopback address",
            found=address,
            fix=f"set {HOST_VARIABLE} to the address that the workers can reach",
        )
    return address


def _address_of_host_name() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def join_coordinator(stage: str, experiment: Experiment) -> None:
    """Process blocks of a stage for its coordinators until the stage has finished.

    Raises Interrupted (75) if there was no coordinator for compute.join_wait_s, InternalError (70) if the child process
    fails repeatedly.
    """
    file = CoordinatorFile(experiment.layout.stage_runs(stage))
    _Worker(stage, experiment.path, experiment.compute.join_wait_s, file).run()


@dataclass
class _Worker:
    stage: str
    experiment_file: Path
    wait_s: float
    file: CoordinatorFile
    submission: str = field(default_factory=lambda: os.environ.get(SUBMISSION_VARIABLE, ""))
    started: float = field(default_factory=time.monotonic)
    last_contact: float = field(default_factory=time.monotonic)
    # The session in which no block was left, and the time of that.
    exhausted: tuple[str, float] = ("", 0.0)
    failures: int = 0

    def run(self) -> None:
        """Wait for a coordinator, process blocks, and wait again, until it has finished. Raises as join_coordinator."""
        at_start = self._coordinator()
        while True:
            found = self._coordinator()
            if found is not None and found.state == "finished" and not (found == at_start and self._may_be_outdated()):
                LOG.info("%s: the coordinator has finished", self.stage)
                return
            if found is not None and found.state == "serving" and found.is_reachable():
                self.last_contact = time.monotonic()
                session, since = self.exhausted
                if found.session != session or time.monotonic() - since >= REJOIN_SECONDS:
                    self._work_for(found)
                    continue
            self._wait()

    def _coordinator(self) -> Coordinator | None:
        """The coordinator, unless it belongs to another submission than this worker."""
        found = self.file.read()
        return None if found is not None and self.submission not in ("", found.submission) else found

    def _may_be_outdated(self) -> bool:
        return not self.submission and time.monotonic() - self.started < OUTDATED_SECONDS

    def _wait(self) -> None:
        if time.monotonic() - self.last_contact > self.wait_s:
            raise Interrupted(
                f"no coordinator of {self.stage} answered for {self.wait_s:.0f} s",
                where=self.file.path,
                fix=f"start it: {self.stage} run --set compute.runner=cluster",
            )
        time.sleep(POLL_SECONDS)

    def _work_for(self, coordinator: Coordinator) -> None:
        """Run a child process until it ends, or until the coordinator no longer serves this session."""
        LOG.info("%s: joining the coordinator at %s:%d", self.stage, coordinator.host, coordinator.port)
        session = self.file.session(coordinator.session)
        arguments = (self.stage, self.experiment_file, coordinator, session)
        child = multiprocessing.get_context("spawn").Process(target=_process_session, args=arguments, daemon=True)
        child.start()
        try:
            while child.is_alive() and self._is_served(session):
                child.join(POLL_SECONDS)
            child.join(2 * POLL_SECONDS)
        finally:
            child.kill()
            child.join()
        self.last_contact = time.monotonic()
        if child.exitcode == 0:
            self.exhausted = (session.id, time.monotonic())
        if child.exitcode == 0 or not coordinator.is_reachable():
            self.failures = 0
            return
        self.failures += 1
        LOG.warning("%s: the worker process ended with code %s", self.stage, child.exitcode)
        if self.failures >= FAILURES_IN_A_ROW:
            raise InternalError(
                f"the worker process died {self.failures} times in a row",
                where=os.uname().nodename,
                found=f"exit code {child.exitcode}",
                fix="the lines above say why; other workers process the blocks",
            )
        time.sleep(POLL_SECONDS)

    def _is_served(self, session: Session) -> bool:
        found = self._coordinator()
        return found is not None and (found.state, found.session) == ("serving", session.id)


def _process_session(stage: str, experiment: Path, coordinator: Coordinator, session: Session) -> None:
    """Body of the child process: process the blocks of one session."""
    end_with_parent()
    leave_terminal_to_coordinator()
    start_logging()
    os.environ[SESSION_VARIABLE] = str(session.folder)
    try:
        secret = read_secret(session.folder)
    except FileNotFoundError:
        # Not a failure of this machine: no block is left, and the coordinator has not written its next state yet.
        LOG.info("%s: this session has ended", stage)
        return
    try:
        with worker_proxy(coordinator.host, coordinator.port, secret) as port:
            join_context(coordinator.context, os.getpid(), port)
            loaded = load_experiment(experiment, coordinator.overrides)
            form_log_lines(loaded.compute.log_format, stage)
            load_stage(stage).worker(loaded)
    except StageError as error:
        LOG.error("error: %s", error.message())
        sys.exit(error.exit_code)
    except (RuntimeError, ConnectionError) as error:
        LOG.warning("the connection to the coordinator was lost: %s", error)
        sys.exit(Interrupted.exit_code)
