"""What finished blocks have taken, from their done marks: the base of a plan for those that are left."""

from __future__ import annotations

from typing import Any

import numpy as np

from lsdflow_runtime.block_task import BlockTask

# Records that a mean is made of: spread over all that there are.
SAMPLED_RECORDS = 1000


def taken_by_blocks(task: BlockTask) -> dict[str, Any]:
    """What finished blocks have taken, of at most a thousand records; empty if none is finished."""
    done = sorted(task.marks.done())
    sample = done[:: max(1, -(-len(done) // SAMPLED_RECORDS))]
    records = [task.marks.record(number) for number in sample]
    if not records:
        return {}
    return {
        "records": len(records),
        "seconds_per_block": float(np.mean([r["seconds"] for r in records])),
        "peak_rss_mib": max(r["peak_rss_mib"] for r in records),
        "hosts": sorted({str(r.get("host", "")) for r in records})[:10],
    }
