"""A running viewer, and requests to it as they are: no client library makes them tidy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

from lsdflow_view.layers import ViewerLayers
from lsdflow_view.server import Site, ViewServer, client_folder


@dataclass(frozen=True)
class Served:
    """A running server and the folder that it shows."""

    server: ViewServer
    root: Path

    def ask(self, target: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content of exactly this target."""
        connection = HTTPConnection("127.0.0.1", self.server.server_address[1], timeout=120)
        connection.putrequest(method, target, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), content

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """A path behind the token."""
        return self.ask(f"/{self.server.check.token}/{path}", method, **headers)


@contextmanager
def serving(layers: ViewerLayers, root: Path) -> Iterator[Served]:
    """A server that shows these layers, until the end of the block."""
    with ViewServer(Site(layers, client_folder())) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield Served(server, root)
        server.shutdown()
        thread.join(10)
