"""A claim file on shared storage: only one process at a time, on any machine, computes a run of a sweep.

If two processes hold a claim by mistake, they write identical results, because results are written only once. The
claim saves the second one the computation, also for a stage that has no lock of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lsdflow_command.lock_file import EXPIRY_SECONDS, Holder, LockFile
from lsdflow_contract.errors import OutputConflict

LOG = logging.getLogger("lsdflow.sweep")


class AtWorkElsewhere(OutputConflict):
    """Another process holds the claim."""


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Hold the claim of an experiment folder within the `with` block. Raises AtWorkElsewhere (73) if it is held."""
    claim = claim_of(folder)
    with claim.held(
        lambda found, age_s: _refusal(claim, found, age_s),
        lost=lambda: LOG.warning("another process took over: %s", claim.path),
    ):
        yield


def claim_of(folder: Path) -> LockFile:
    """Return the claim file of an experiment folder."""
    return LockFile(folder / "runs" / "sweep" / "claim")


def _refusal(claim: LockFile, found: Holder, age_s: float) -> OutputConflict:
    return AtWorkElsewhere(
        "another process works on this run",
        where=claim.path,
        found=f"{found.host}, process {found.pid}; last sign of life {age_s:.0f} s ago",
        fix=f"wait until it ends; if it is dead, run again in {EXPIRY_SECONDS:.0f} s",
    )
