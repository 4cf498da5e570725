"""How workers of other jobs find the coordinator of a stage: one small notice on shared storage.

runs/<stage>/join.json                       the notice: state, address, round
runs/<stage>/rounds/<round>/work             the key of the work: a stage may have several passes
runs/<stage>/rounds/<round>/key              opens the gate to the coordinator (gate.py), while blocks are handed out
runs/<stage>/rounds/<round>/fatal.json       an error that concerns every block, left by the worker that met it

starting --> open (round 1) --> open (round 2: predict in two passes) --> finished
               |                                                            also after an error: nothing is left to do
               +--> paused: the coordinator was stopped and will be back; workers wait
A coordinator that is killed leaves "open" behind with an address where nobody answers; the next one opens a new round.
One that was taken for dead and comes back finds another's notice, and leaves it.
"""

from __future__ import annotations

import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from lsdflow_contract.errors import BadData, ConfigError, Interrupted, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import read_json, write_json
from lsdflow_contract.manifest import JOB_VARIABLE
from lsdflow_runtime.stage_lock import stage_lock

State = Literal["starting", "open", "paused", "finished"]
HOST_VARIABLE = "LSDFLOW_HOST"
SUBMISSION_VARIABLE = "LSDFLOW_SUBMISSION"
# Any address outside this machine: no packet is sent, the system only tells which of ours it would be sent from.
FAR_AWAY = ("192.0.2.1", 9)


@dataclass(frozen=True)
class Notice:
    """What the coordinator tells: its state, and for an open round where it listens."""

    state: State
    submission: str = ""
    round: str = ""
    context: str = ""
    host: str = ""
    port: int = 0
    overrides: tuple[str, ...] = ()
    job: str = ""
    coordinator: str = ""

    def answers(self, timeout_s: float = 2.0) -> bool:
        """True if somebody listens at its address."""
        try:
            socket.create_connection((self.host, self.port), timeout_s).close()
        except OSError:
            return False
        return True


@dataclass(frozen=True)
class NoticeBoard:
    """The place of a stage's notice and rounds in an experiment."""

    folder: Path

    @classmethod
    def of(cls, stage: str, experiment: Experiment) -> NoticeBoard:
        """The board of a stage."""
        return cls(experiment.layout.stage_runs(stage))

    def post(self, notice: Notice) -> None:
        """Put up a notice in place of the one there."""
        write_json(self.folder / "join.json", asdict(notice))

    def post_if_own(self, notice: Notice) -> None:
        """Put up a notice unless that of another coordinator hangs there: its workers would leave it."""
        there = self.read()
        if there is None or there.coordinator == notice.coordinator:
            self.post(notice)

    def read(self) -> Notice | None:
        """The notice, or None if there is none. BadData if it cannot be understood."""
        path = self.folder / "join.json"
        if not path.exists():
            return None
        try:
            found: dict[str, Any] = read_json(path)
            return Notice(**{**found, "overrides": tuple(found["overrides"])})
        except (KeyError, TypeError) as error:
            raise BadData("not a notice of a coordinator", where=path, found=error, hint="delete it") from error

    def round_folder(self, round_: str) -> Path:
        """Folder of a round."""
        return self.folder / "rounds" / round_

    def open_round(self) -> Path:
        """Folder of a new round; folders of earlier rounds go."""
        shutil.rmtree(self.folder / "rounds", ignore_errors=True)
        folder = self.round_folder(uuid.uuid4().hex[:12])
        folder.mkdir(parents=True)
        return folder


@contextmanager
def coordinating(stage: str, experiment: Experiment) -> Iterator[None]:
    """Around a stage's run: be the only one; with runner = cluster tell the workers when it begins and how it ended.

    Raises NotOurs (73) if another coordinator is at work on the stage.
    """
    board = NoticeBoard.of(stage, experiment)
    with stage_lock(board.folder):
        if experiment.compute.runner == "cluster":
            with _told(board):
                yield
        else:
            yield


@contextmanager
def _told(board: NoticeBoard) -> Iterator[None]:
    submission, job = os.environ.get(SUBMISSION_VARIABLE, ""), os.environ.get(JOB_VARIABLE, "")
    notice = Notice("starting", submission=submission, job=job, coordinator=uuid.uuid4().hex)
    board.post(notice)
    try:
        yield
    except (Interrupted, KeyboardInterrupt):
        board.post_if_own(replace(notice, state="paused"))
        raise
    except BaseException:
        board.post_if_own(replace(notice, state="finished"))
        raise
    board.post_if_own(replace(notice, state="finished"))


def own_address() -> str:
    """The address that workers on other machines can reach: $LSDFLOW_HOST, or the one of the default route.

    Raises ConfigError (78) if only the loopback address is known: workers elsewhere could never connect.
    """
    if told := os.environ.get(HOST_VARIABLE):
        return told
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(FAR_AWAY)
            address = str(probe.getsockname()[0])
        except OSError:
            address = _address_of_own_name()
    if address.startswith("127."):
        raise ConfigError(
            "this machine knows only its loopback address",
            found=address,
            hint=f"set {HOST_VARIABLE} to the address that the workers can reach",
        )
    return address


def _address_of_own_name() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "127.0.0.1"


def leave_work(folder: Path, key: str) -> None:
    """Note the key of the work that the blocks of the round belong to."""
    (folder / "work").write_text(key)


def read_work(folder: Path) -> str:
    """The key of the work of a round."""
    return (folder / "work").read_text()


def leave_fatal(folder: Path, error: StageError) -> None:
    """Note an error that concerns every block, for the coordinator to raise."""
    write_json(folder / "fatal.json", error.as_dict())


def has_fatal(folder: Path) -> bool:
    """True after a worker met an error that concerns every block."""
    return (folder / "fatal.json").exists()
