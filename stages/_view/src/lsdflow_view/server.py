"""The read-only HTTP server of the viewer: neuroglancer's client, its state, volumes on disk, and relabelled chunks.

    /TOKEN/                              redirects to the viewer with the state
    /TOKEN/v/view/...                    neuroglancer from its wheel, at the path that this client requires
    /TOKEN/events/view                   a stream without events; its end shows the client that the server ended
    /TOKEN/state.json                    layers, their geometry, position
    /TOKEN/volumes/NAME/...              files of one array, also by ranges of bytes
    /TOKEN/thresholds/MERGE_FUNCTION/... the array (with an export: the image) of all thresholds, made on request
    /TOKEN/meshes/SEGMENT                meshes of the segmentation, made on request

The server listens on loopback or on one named interface. Every request must name a known host and carry the token. The
page and the data of an experiment have the same origin, and there are no cross-origin headers, so other sites have no
access. An export may be read from other origins, as another neuroglancer does, by who knows the token. Dots, links or
encoded characters in a path cannot lead out of the served folders.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import logging
import mimetypes
import re
import secrets
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

from lsdflow_contract.errors import StageError, UsageError
from lsdflow_view.layers import ViewerLayers

LOG = logging.getLogger("lsdflow.view")
READ_BYTES = 1 << 20
IDLE_S = 60.0
HEARTBEAT_S = 15.0
COMMON_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",
}
# For exports: a page of another origin that knows the token may read, also ranges of files.
CROSS_ORIGIN_HEADERS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "GET, HEAD",
    "Access-Control-Allow-Headers": "Range",
    "Access-Control-Allow-Private-Network": "true",
    "Access-Control-Expose-Headers": "Content-Range",
    "Cross-Origin-Resource-Policy": "cross-origin",
}
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1"})
TOKEN_BYTES = 24
FORBIDDEN_PARTS = {"", ".", ".."}
_ONE_RANGE = re.compile(r"^bytes=(\d{0,18})-(\d{0,18})$", re.ASCII)


@dataclass(frozen=True)
class HostCheck:
    """Accepts a request if its Host header names this server and if it carries the token.

    The check of the host refuses pages of other sites, even if their domain resolves to this server.
    """

    token: str
    hosts: frozenset[str]

    def known_host(self, header: str | None) -> str | None:
        """Host and port as the request names them (a tunnel may use another port); None if the host is unknown."""
        try:
            named = urlsplit(f"//{header or ''}")
            port = f":{named.port}" if named.port else ""
        except ValueError:
            return None
        return f"{named.hostname}{port}" if named.hostname in self.hosts else None

    def knows_token(self, given: str) -> bool:
        """True if `given` is the token; compared in constant time."""
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())


def host_check(host: str, address: str) -> HostCheck:
    """A host check with a new token, for a server that was started for `host` and listens on `address`."""
    return HostCheck(secrets.token_urlsafe(TOKEN_BYTES), LOOPBACK_NAMES | {host.lower(), address.lower()})


def address_of(host: str) -> str:
    """The IPv4 address of a host or interface. UsageError for "all interfaces" and for a name that is not a host."""
    try:
        address = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0] if host else ""
        named = bool(host) and not ipaddress.ip_address(address).is_unspecified
    except (OSError, UnicodeError, ValueError) as error:
        raise UsageError("no such host", where="--host", found=f"{host}: {error}") from error
    if not named:
        raise UsageError(
            "the server does not listen on all interfaces",
            where="--host",
            wanted="this machine (127.0.0.1, the default) or the name of one interface",
            found=host or "nothing",
        )
    return str(address)


def parts_of(target: str) -> tuple[str, ...] | None:
    """The decoded parts of the path of a request, without its query; None if one of them is not a plain name.

    Each part is decoded once, after the path is split, so an encoded slash stays within a part and is refused.
    """
    path = target.partition("?")[0].partition("#")[0]
    if not path.startswith("/"):
        return None
    *folders, last = (unquote(part) for part in path[1:].split("/"))
    parts = (*folders, *([last] if last else []))
    plain = all(p not in FORBIDDEN_PARTS and not set(p) & {"/", "\\", "\0"} for p in parts)
    return parts if plain else None


def file_in(folder: Path, parts: Sequence[str]) -> Path | None:
    """The file below `folder` with this name; None if it does not exist or if a link leads out of the folder."""
    try:
        root = folder.resolve(strict=True)
        found = root.joinpath(*parts).resolve(strict=True)
    except (OSError, ValueError, RuntimeError):
        return None
    return found if found.is_relative_to(root) and found.is_file() else None


class NoSuchRange(ValueError):
    """The range begins after the end of the file."""


def wanted_range(header: str | None, size: int) -> tuple[int, int] | None:
    """First and one past the last byte that `bytes=a-b`, `bytes=a-` or `bytes=-n` names in a file of `size` bytes.

    None for the whole file: no header, several ranges, or an unknown form (a server may then send the whole file).
    Raises NoSuchRange if the range holds no byte of the file.
    """
    match = _ONE_RANGE.match(header.strip()) if header else None
    if match is None or match.groups() == ("", ""):
        return None
    first, last = match.groups()
    begin = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if first and last and int(last) < int(first):
        return None
    if begin >= size:
        raise NoSuchRange(header)
    return begin, end


@dataclass(frozen=True)
class Site:
    """The served content: the layers and the folder of the client."""

    layers: ViewerLayers
    client: Path

    def find(self, parts: Sequence[str], address: str) -> Path | bytes | None:
        """The file or the content for a path after the token; None if there is none."""
        match tuple(parts):
            case ("state.json",):
                return json.dumps(self.layers.state(address)).encode()
            case ("v", "view", *rest):
                return file_in(self.client, rest or ["index.html"])
            case ("volumes", name, *rest) if name in self.layers.folders:
                return file_in(self.layers.folders[name], rest)
            case ("thresholds", name, *rest):
                return self.layers.thresholds_file(name, rest)
            case ("meshes", name):
                return self.layers.meshes.file(name)
        return None


class ViewServer(ThreadingHTTPServer):
    """An HTTP server on one address, with a thread for each connection."""

    daemon_threads = True

    def __init__(self, site: Site, host: str = "127.0.0.1", port: int = 0) -> None:
        self.site = site
        self.host = host
        self.ending = threading.Event()
        address = address_of(host)
        self.check: HostCheck = host_check(host, address)
        try:
            super().__init__((address, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(
                "cannot listen there", where=f"{host}:{port}", found=error, fix="another --port"
            ) from error

    @property
    def url(self) -> str:
        """The address of the viewer, including the token."""
        return f"http://{self.host}:{self.server_address[1]}/{self.check.token}/"

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

    def do_OPTIONS(self) -> None:
        """Answer what a browser asks before it reads an export from a page of another origin."""
        if self._cross_origin():
            self._begin(HTTPStatus.NO_CONTENT, "text/plain", 0)
        else:
            self.send_error(HTTPStatus.NOT_IMPLEMENTED)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the base class
        """Log requests with --debug only, and without the token."""
        LOG.debug("%s", (format % args).replace(self.server.check.token, "TOKEN"))

    def _answer(self) -> None:
        parts = parts_of(self.path)
        if self._host() is None:
            self._send_text(HTTPStatus.FORBIDDEN, "this server is not known by that name")
        elif not parts or not self._knows_token():
            self._send_text(HTTPStatus.NOT_FOUND, "nothing here: use the whole address that lsdflow view printed")
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
            self._send_text(HTTPStatus.INTERNAL_SERVER_ERROR, error.message())
            return
        if found is None:
            self._send_text(HTTPStatus.NOT_FOUND, "no such file")
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
            self._send_text(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "no such range")
        except PermissionError:
            self._send_text(HTTPStatus.FORBIDDEN, "the file may not be read")

    def _send_part(self, file: BinaryIO, size: int, kind: str) -> None:
        part = wanted_range(self.headers.get("Range"), size)
        begin, end = part or (0, size)
        headers = {"Content-Range": f"bytes {begin}-{end - 1}/{size}"} if part else {}
        self._begin(HTTPStatus.PARTIAL_CONTENT if part else HTTPStatus.OK, kind, end - begin, headers)
        file.seek(begin)
        while begin < end and (content := file.read(min(READ_BYTES, end - begin))):
            self._write(content)
            begin += len(content)
        self.close_connection = self.close_connection or begin < end  # the file became shorter meanwhile

    def _to_viewer(self) -> None:
        address = self._address()
        headers = {"Location": f"{address}/v/view/#!{address}/state.json"}
        self._begin(HTTPStatus.FOUND, "text/plain", 0, headers)

    def _stay_connected(self) -> None:
        """Keep the event stream open; a regular comment in it detects when the page has gone."""
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        for name, value in {**COMMON_HEADERS, "Content-Type": "text/event-stream", "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        while self.command != "HEAD":
            self.wfile.write(b":\n\n")
            if self.server.ending.wait(HEARTBEAT_S):
                return

    def _address(self) -> str:
        """The server's address as the browser sees it; through a tunnel the port may differ."""
        return f"http://{self._host()}/{self.server.check.token}"

    def _knows_token(self) -> bool:
        return self.server.check.knows_token((parts_of(self.path) or ("",))[0])

    def _cross_origin(self) -> dict[str, str]:
        """The headers that let pages of other origins read an export; none for experiments, and without the token."""
        open_to_others = self.server.site.layers.is_export and self._knows_token() and self._host()
        return CROSS_ORIGIN_HEADERS if open_to_others else {}

    def _host(self) -> str | None:
        return self.server.check.known_host(self.headers.get("Host"))

    def _send_text(self, status: HTTPStatus, text: str) -> None:
        content = f"{text}\n".encode()
        self._begin(status, "text/plain; charset=utf-8", len(content))
        self._write(content)

    def _begin(self, status: HTTPStatus, kind: str, size: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**COMMON_HEADERS, **self._cross_origin(), **(headers or {})}.items():
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
