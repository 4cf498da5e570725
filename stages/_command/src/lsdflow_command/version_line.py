"""What --version tells: the command, its version, the contract of its data, and which code it is if that is known."""

from __future__ import annotations

from importlib.metadata import version

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.source_revision import source_revision


def version_line(command: str, package: str) -> str:
    """`predict 0.1.0 (contract 1.6.1), revision 0123456789ab`; "-dirty" where the code of a clone was changed."""
    commit, *dirty = source_revision().split("-")
    revision = "-".join([commit[:12], *dirty])
    return f"{command} {version(package)} (contract {CONTRACT_VERSION}){f', revision {revision}' if revision else ''}"
