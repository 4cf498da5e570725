"""Workers by fork: daisy starts each worker as a new Python, which costs seconds of imports and tests nothing more.

A process that forks before any thread is there (the nursery) makes them instead: same program, same pipes, same
environment, same exit codes. What a fault of this folder wraps is wrapped in the workers too.

    coordinator --(environment, stdin, stdout, stderr, status)--> nursery --fork--> worker
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import selectors
import signal
import socket
import stat
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import daisy._subprocess_worker
import daisy._worker_processes

from lsdflow_runtime.engine import cluster

MESSAGE_BYTES = 1 << 18


def fork_daisy_workers() -> None:
    """From now on daisy's workers of this process are forked. Call it before the process has threads."""
    coordinator, nursery_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        coordinator.close()
        _nurse(nursery_end)
    nursery_end.close()

    class Forked(_ForkedProcess):
        nursery = coordinator

    replaced = SimpleNamespace(Popen=Forked, PIPE=-1)
    daisy._worker_processes.subprocess = replaced  # type: ignore[assignment]


def fork_joined_workers() -> None:
    """From now on the processes that do the blocks of a joined worker are forked; and it checks more often."""
    by_fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda _method=None: by_fork  # type: ignore[assignment]
    os.register_at_fork(after_in_child=_let_go_of_sockets)
    cluster.POLL_SECONDS, cluster.REJOIN_SECONDS = 0.1, 0.5


def _let_go_of_sockets() -> None:
    """A new Python would not hold the connections of its parent open."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.dup2(nothing, descriptor)


class _ForkedProcess:
    """What daisy uses of subprocess.Popen."""

    nursery: socket.socket

    def __init__(self, _command: list[str], *, stdin: int, stdout: Any, stderr: Any, env: dict[str, str]) -> None:
        payload, self._status = os.pipe(), os.pipe()
        given = [payload[0], stdout.fileno(), stderr.fileno(), self._status[1]]
        socket.send_fds(self.nursery, [json.dumps(env).encode()], given)
        os.close(payload[0])
        os.close(self._status[1])
        self.stdin: BinaryIO = os.fdopen(payload[1], "wb")

    def wait(self) -> int:
        """Exit code, or -signal."""
        status = os.read(self._status[0], 16)
        os.close(self._status[0])
        return int(status) if status else -signal.SIGKILL


def _nurse(requests: socket.socket) -> None:
    """Fork a worker for each request, report how each ends; end when the coordinator is gone."""
    selector = selectors.DefaultSelector()
    statuses: dict[int, int] = {}
    selector.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is requests:
                request, given, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 4)
                if not request:
                    os._exit(0)
                pid = os.fork()
                if not pid:
                    for held in (requests.fileno(), *statuses.values()):
                        os.close(held)
                    _work(json.loads(request), given)
                watched = os.pidfd_open(pid)
                selector.register(watched, selectors.EVENT_READ, pid)
                statuses[pid] = given.pop()
                for descriptor in given:
                    os.close(descriptor)
            else:
                selector.unregister(key.fileobj)
                os.close(int(key.fileobj))  # type: ignore[arg-type]
                code = os.waitstatus_to_exitcode(os.waitpid(key.data, 0)[1])
                with contextlib.suppress(BrokenPipeError), os.fdopen(statuses.pop(key.data), "w") as status:
                    status.write(str(code))


def _work(environment: dict[str, str], given: list[int]) -> None:
    for target, descriptor in enumerate(given[:3]):
        os.dup2(descriptor, target)
    for descriptor in given:
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = open(0)  # noqa: SIM115 - for the life of this process
    code = 1
    try:
        daisy._subprocess_worker._run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - this is the end of the process
        traceback.print_exc()
    finally:
        os._exit(code)
