"""Records of all attempts at blocks: outcome, time, memory and bytes.

    runs/<stage>/attempts/<time>.<thread>-<pid>-<host>.tsv   one file per thread with blocks, one line per attempt

The first columns of a line are written when the attempt begins, the others when it ends. So if a process was lost, the
last line of its file is incomplete. No result depends on these files, and a run continues without them (for example on
a full disk). They are read by the report, by the metrics, and by workers that search for slow blocks.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from lsdflow_command.resources import gpu_in_use, memory, usage
from lsdflow_contract.errors import Interrupted
from lsdflow_contract.manifest import JOB_VARIABLE

LOG = logging.getLogger("lsdflow.blocks")
FOLDER = "attempts"
DONE, FAILED, STOPPED = "done", "failed", "stopped"
# Letters of a key that distinguish the passes of a stage.
KEY_LETTERS = 12
_BEGUN = 4


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a block. outcome: done, failed, stopped (by a signal), or "" if it has not ended."""

    block: int
    started: float
    key: str
    job: str
    outcome: str = ""
    seconds: float = 0.0
    cpu_s: float = 0.0
    peak_resident_bytes: int = 0
    peak_virtual_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    gpu: str = ""
    gpu_bytes: int = 0
    error: str = ""
    host: str = ""
    pid: int = 0


class AttemptLog:
    """The file of a thread of this process for the pass with a key; created at its first attempt."""

    def __init__(self, runs: Path, key: str, thread: int = 0) -> None:
        name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}.{thread}-{os.getpid()}-{socket.gethostname()}.tsv"
        self.path, self.key = runs / FOLDER / name, key[:KEY_LETTERS]
        self.job = " ".join(os.environ.get(JOB_VARIABLE, "").split())
        self._file: int | None = None
        self._given_up = False

    def __enter__(self) -> AttemptLog:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)

    @contextmanager
    def attempt(self, block: int) -> Iterator[None]:
        """Record the resources and the outcome of the attempt at a block."""
        # Read both clocks before writing, so that begin + seconds is never later than the next begin.
        before, started, began = usage(), time.time(), time.perf_counter()
        self._write(f"{block}\t{started:.6f}\t{self.key}\t{self.job}")
        outcome, error = DONE, ""
        try:
            yield
        except BaseException as found:
            outcome = STOPPED if isinstance(found, Interrupted | KeyboardInterrupt) else FAILED
            error = type(found).__name__
            raise
        finally:
            used, peak, (gpu, gpu_bytes) = usage() - before, memory(), gpu_in_use()
            measured = (
                *(f"{time.perf_counter() - began:.6f}", f"{used.cpu_s:.2f}", peak.peak_resident, peak.peak_virtual),
                *(used.read_bytes, used.written_bytes, gpu, gpu_bytes),
            )
            self._write("".join(f"\t{value}" for value in (outcome, *measured, error)) + "\n")

    def _write(self, text: str) -> None:
        if self._given_up:
            return
        try:
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.write(self._file, text.encode())
        except OSError as error:
            self._given_up = True
            LOG.warning("what the blocks take is no longer noted: %s", error)


@dataclass
class AttemptReader:
    """The attempts of a stage; repeated calls return only new ones. Without a folder there are none."""

    runs: Path | None = None
    _read: dict[Path, int] = field(default_factory=dict)

    @classmethod
    def from_now(cls, runs: Path) -> AttemptReader:
        """A reader of lines that are written from now on."""
        return cls(runs, {path: path.stat().st_size for path in _files(runs)})

    def ended(self) -> list[Attempt]:
        """Attempts that ended since the last call, in the order in which they ended."""
        found: list[Attempt] = []
        for path in _files(self.runs):
            lines, self._read[path] = _whole_lines(path, self._read.get(path, 0))
            found += [attempt for line in lines if (attempt := _parsed(line, path)) is not None]
        return sorted(found, key=lambda attempt: attempt.started + attempt.seconds)

    def without_end(self) -> list[Attempt]:
        """Attempts in progress, or of lost processes: the incomplete last line of each file that `ended` has read."""
        return [attempt for _, attempt in self.under_way()]

    def under_way(self) -> list[tuple[Path, Attempt]]:
        """The attempts of `without_end` and the file of each, which a live process touches."""
        tails = ((path, path.read_bytes()[read:].decode(errors="replace")) for path, read in self._read.items())
        return [
            (path, found) for path, tail in tails if "\n" not in tail and (found := _parsed(tail, path)) is not None
        ]


def _files(runs: Path | None) -> Sequence[Path]:
    return [] if runs is None else sorted((runs / FOLDER).glob("*.tsv"))


def _whole_lines(path: Path, begin: int) -> tuple[list[str], int]:
    """The complete lines from byte `begin` on, and the byte at which they end."""
    with path.open("rb") as file:
        file.seek(begin)
        whole, end, _ = file.read().rpartition(b"\n")
    return whole.decode(errors="replace").split("\n") if end else [], begin + len(whole) + len(end)


def _parsed(line: str, path: Path) -> Attempt | None:
    """The attempt in a line; None for a damaged line."""
    words = line.split("\t")
    _, pid, host = path.stem.split("-", 2)
    try:
        begun = Attempt(int(words[0]), float(words[1]), words[2], words[3], host=host, pid=int(pid))
        if len(words) <= _BEGUN:
            return begun
        outcome, seconds, cpu_s, resident, virtual, read, written, gpu, gpu_bytes, error = words[_BEGUN:]
        return replace(
            begun,
            outcome=outcome,
            seconds=float(seconds),
            cpu_s=float(cpu_s),
            peak_resident_bytes=int(resident),
            peak_virtual_bytes=int(virtual),
            read_bytes=int(read),
            written_bytes=int(written),
            gpu=gpu,
            gpu_bytes=int(gpu_bytes),
            error=error,
        )
    except (ValueError, IndexError):
        return None
