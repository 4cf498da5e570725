"""One process at a time makes a run of a sweep, on whatever machine: a claim file on shared storage.

The stages have leases of their own: two that both believe to hold a claim leave the same bits. What the claim saves is
the work of the second one, also where a stage has no lease.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lsdflow_command.lease_file import EXPIRY_SECONDS, Holder, LeaseFile, Renewal
from lsdflow_contract.errors import NotOurs

LOG = logging.getLogger("lsdflow.sweep")


class AtWorkElsewhere(NotOurs):
    """Another process holds the claim."""


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the claim of an experiment folder for the time of the block. AtWorkElsewhere (73) if it is held."""
    claim = claim_of(folder)
    holder = claim.take(lambda found, age_s: _refusal(claim, found, age_s))
    renewal = Renewal(claim, holder, lambda: LOG.warning("another process took over: %s", claim.path))
    renewal.start()
    try:
        yield
    finally:
        renewal.stop()
        renewal.join()
        claim.release(holder)


def claim_of(folder: Path) -> LeaseFile:
    """The claim file of an experiment folder."""
    return LeaseFile(folder / "runs" / "sweep" / "claim")


def _refusal(claim: LeaseFile, found: Holder, age_s: float) -> NotOurs:
    return AtWorkElsewhere(
        "another process works on this run",
        where=claim.path,
        found=f"{found.host}, process {found.pid}; last sign of life {age_s:.0f} s ago",
        hint=f"wait until it ends; if it is dead, run again in {EXPIRY_SECONDS:.0f} s",
    )
