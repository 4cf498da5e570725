"""The read-only HTTP server of the viewer: neuroglancer's client, its state, volumes on disk, and relabelled chunks.

    /TOKEN/                              redirects to the viewer with the state
    /TOKEN/v/view/...                    neuroglancer from its wheel, at the path that this client requires
    /TOKEN/events/view                   a stream without events; its end shows the client that the server ended
    /TOKEN/state.json                    layers, their geometry, position
    /TOKEN/volumes/NAME/...              files of one array, also by ranges of bytes
    /TOKEN/thresholds/MERGE_FUNCTION/... the array (with an export: the image) of all thresholds, made on request

The page and the data have the same origin. There are no cross-origin headers, so other sites have no access.
"""

from __future__ import annotations

import json
import logging
import mimetypes
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO

from lsdflow_contract.errors import StageError, UsageError
from lsdflow_contract.geometry import Nm3
from lsdflow_view.addresses import Doorkeeper, address_of, doorkeeper
from lsdflow_view.gallery import Gallery
from lsdflow_view.ranges import NoSuchRange, wanted_range
from lsdflow_view.served_files import file_in, parts_of

LOG = logging.getLogger("lsdflow.view")
PIECE_BYTES = 1 << 20
IDLE_S = 60.0
ASK_AGAIN_S = 15.0
EVERY_ANSWER = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",
}


@dataclass(frozen=True)
class Site:
    """The served content: a gallery and the folder of the client, opened at a position."""

    gallery: Gallery
    client: Path
    position_nm: Nm3 | None = None

    def find(self, parts: Sequence[str], address: str) -> Path | bytes | None:
        """The file or the content for a path after the token; None if there is none."""
        match tuple(parts):
            case ("state.json",):
                return json.dumps(self.gallery.state(address, self.position_nm)).encode()
            case ("v", "view", *rest):
                return file_in(self.client, rest or ["index.html"])
            case ("volumes", name, *rest) if name in self.gallery.folders:
                return file_in(self.gallery.folders[name], rest)
            case ("thresholds", name, *rest):
                return self.gallery.thresholds_file(name, rest)
        return None


class ViewServer(ThreadingHTTPServer):
    """An HTTP server on one address, with a thread for each connection."""

    daemon_threads = True

    def __init__(self, site: Site, host: str = "127.0.0.1", port: int = 0) -> None:
        self.site = site
        self.host = host
        self.ending = threading.Event()
        address = address_of(host)
        self.door: Doorkeeper = doorkeeper(host, address)
        try:
            super().__init__((address, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(
                "cannot listen there", where=f"{host}:{port}", found=error, fix="another --port"
            ) from error

    @property
    def url(self) -> str:
        """The address of the viewer, including the token."""
        return f"http://{self.host}:{self.server_address[1]}/{self.door.token}/"

    def shutdown(self) -> None:
        """End the event streams, then stop."""
        self.ending.set()
        super().shutdown()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that the browser closed; report all other errors."""
        del request
        ended = isinstance(sys.exception(), ConnectionError | TimeoutError)
        LOG.log(logging.DEBUG if ended else logging.ERROR, "a request of %s ended", client_address, exc_info=True)


def client_folder() -> Path:
    """The folder of neuroglancer's built client."""
    return Path(str(files("neuroglancer") / "static" / "client"))


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    protocol_version = "HTTP/1.1"
    server_version = "lsdflow-view"
    sys_version = ""
    timeout = IDLE_S

    def do_GET(self) -> None:
        """Answer a GET request with content."""
        self._answer()

    def do_HEAD(self) -> None:
        """Answer a HEAD request without content."""
        self._answer()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        """Log requests with --debug only, and without the token."""
        LOG.debug("%s", (format % args).replace(self.server.door.token, "TOKEN"))

    def _answer(self) -> None:
        parts = parts_of(self.path)
        if self._host() is None:
            self._tell(HTTPStatus.FORBIDDEN, "this server is not known by that name")
        elif not parts or not self.server.door.knows_token(parts[0]):
            self._tell(HTTPStatus.NOT_FOUND, "nothing here: use the whole address that lsdflow view printed")
        elif len(parts) == 1:
            self._to_viewer()
        elif parts[1:] == ("events", "view"):
            self._stay_connected()
        else:
            self._send_found(parts[1:])

    def _send_found(self, parts: tuple[str, ...]) -> None:
        try:
            found = self.server.site.find(parts, self._address())
        except StageError as error:
            LOG.warning("%s: %s", "/".join(parts), error.message())
            self._tell(HTTPStatus.INTERNAL_SERVER_ERROR, error.message())
            return
        if found is None:
            self._tell(HTTPStatus.NOT_FOUND, "no such file")
        elif isinstance(found, bytes):
            self._begin(HTTPStatus.OK, _type_of(parts[-1]), len(found))
            self._write(found)
        else:
            self._send_file(found)

    def _send_file(self, path: Path) -> None:
        try:
            with path.open("rb") as file:
                self._send_part(file, path.stat().st_size, _type_of(path.name))
        except NoSuchRange:
            self._tell(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "no such range")
        except PermissionError:
            self._tell(HTTPStatus.FORBIDDEN, "the file may not be read")

    def _send_part(self, file: BinaryIO, size: int, kind: str) -> None:
        part = wanted_range(self.headers.get("Range"), size)
        begin, end = part or (0, size)
        told = {"Content-Range": f"bytes {begin}-{end - 1}/{size}"} if part else {}
        self._begin(HTTPStatus.PARTIAL_CONTENT if part else HTTPStatus.OK, kind, end - begin, told)
        file.seek(begin)
        while begin < end and (piece := file.read(min(PIECE_BYTES, end - begin))):
            self._write(piece)
            begin += len(piece)
        self.close_connection = self.close_connection or begin < end  # the file became shorter meanwhile

    def _to_viewer(self) -> None:
        address = self._address()
        told = {"Location": f"{address}/v/view/#!{address}/state.json"}
        self._begin(HTTPStatus.FOUND, "text/plain", 0, told)

    def _stay_connected(self) -> None:
        """Keep the event stream open; a regular comment in it detects when the page has gone."""
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        for name, value in {**EVERY_ANSWER, "Content-Type": "text/event-stream", "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        while self.command != "HEAD":
            self.wfile.write(b":\n\n")
            if self.server.ending.wait(ASK_AGAIN_S):
                return

    def _address(self) -> str:
        """The server's address as the browser sees it; through a tunnel the port may differ."""
        return f"http://{self._host()}/{self.server.door.token}"

    def _host(self) -> str | None:
        return self.server.door.known_host(self.headers.get("Host"))

    def _tell(self, status: HTTPStatus, text: str) -> None:
        content = f"{text}\n".encode()
        self._begin(status, "text/plain; charset=utf-8", len(content))
        self._write(content)

    def _begin(self, status: HTTPStatus, kind: str, size: int, told: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**EVERY_ANSWER, **(told or {})}.items():
            self.send_header(name, value)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def _write(self, content: bytes) -> None:
        if self.command != "HEAD":
            self.wfile.write(content)


def _type_of(name: str) -> str:
    known = {".js": "text/javascript", ".wasm": "application/wasm", ".html": "text/html; charset=utf-8"}
    suffix = Path(name).suffix
    return known.get(suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
