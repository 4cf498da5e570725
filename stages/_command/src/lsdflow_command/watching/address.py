"""Where metrics are served: a port on loopback, or on an interface that the user names; never on all of them."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from lsdflow_contract.errors import ConfigError

VARIABLE = "LSDFLOW_METRICS_ADDRESS"
LOOPBACK = "127.0.0.1"
_ADDRESS = re.compile(r"(?:([^\s:/]+):)?(\d{1,5})")


@dataclass(frozen=True)
class Address:
    """A host (name or IPv4 address of an interface) and a port; port 0 is any that is free."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def address_of(option: str | None, environment: Mapping[str, str]) -> Address | None:
    """The address of compute.metrics_address, else of the environment; None if neither says one.

    ConfigError (78) for what is no address, and for the address that means all interfaces.
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
        hint = f"name one interface, or the port alone for {LOOPBACK}"
        raise ConfigError("metrics are not served on all interfaces", where=where, found=text, hint=hint)
    return Address(host, int(found[2]))


def _is_everywhere(host: str) -> bool:
    try:
        return not any(socket.inet_aton(host))  # it also reads 0 and 0x0, as the server would
    except OSError:
        return False
