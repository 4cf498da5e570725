"""How many workers of an export fit into free memory."""

from __future__ import annotations

import logging

LOG = logging.getLogger("lsdflow.export")


def fitting_workers(wanted: int, each_bytes: int, free_bytes: int, what: str) -> int:
    """As many of the `wanted` workers as `free_bytes` hold if each needs `each_bytes`; at least 1.

    what: what the workers do, for the warning if fewer are used.
    """
    fitting = max(1, min(wanted, free_bytes // max(1, each_bytes)))
    if fitting < wanted:
        one, free = each_bytes / 2**30, free_bytes / 2**30
        LOG.info("%s: %d of %d workers: one may need %.1f GiB, %.1f GiB are free", what, fitting, wanted, one, free)
    return fitting
