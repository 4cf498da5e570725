"""A TCP proxy that can be cut: the network between two processes."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Literal

Cut = Literal["silent", "closed"]


class Proxy:
    """Passes bytes between its own port and `target` on this machine.

    A silent cut holds all bytes back until it heals, as a network that loses packets does; a closed one ends all
    connections and refuses new ones.
    """

    def __init__(self, target: int) -> None:
        self._target, self._open = target, threading.Event()
        self._open.set()
        self._ends: list[socket.socket] = []
        self._listener = self._listen(0)
        self.port = int(self._listener.getsockname()[1])

    def cut(self, kind: Cut) -> None:
        """Let nothing through from now on."""
        if kind == "silent":
            self._open.clear()
        else:
            self.close()

    def heal(self) -> None:
        """Let everything through again."""
        if self._listener.fileno() < 0:
            self._listener = self._listen(self.port)
        self._open.set()

    def close(self) -> None:
        """End all that goes through the proxy, and listen no more."""
        ends, self._ends = [self._listener, *self._ends], []
        for end in ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._open.set()

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                near, _ = listener.accept()
                self._open.wait()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target))
                except OSError:
                    near.close()
                    continue
                self._ends += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                self._open.wait()
                sink.sendall(piece)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
