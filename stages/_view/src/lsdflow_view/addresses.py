"""The address the server listens on (loopback or one named interface), and the token that every request must carry."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

from lsdflow_contract.errors import UsageError

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1"})
TOKEN_BYTES = 24


@dataclass(frozen=True)
class Doorkeeper:
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


def doorkeeper(host: str, address: str) -> Doorkeeper:
    """A host check with a new token, for a server that was started for `host` and listens on `address`."""
    return Doorkeeper(secrets.token_urlsafe(TOKEN_BYTES), LOOPBACK_NAMES | {host.lower(), address.lower()})


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
