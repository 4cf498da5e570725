"""Times of the data pipeline: seconds per node and batch."""

from __future__ import annotations

from collections import defaultdict

import gunpowder as gp


class NodeTimes:
    """Sums of the times that gunpowder measures, by node and method."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], float] = defaultdict(float)
        self.batches = 0

    def add(self, stats: gp.ProfilingStats) -> None:
        """Add the timings of one batch."""
        self.batches += 1
        for (node, method), summary in stats.get_timing_summaries().items():
            self.seconds[node, method or ""] += float(sum(summary.times))

    def table(self) -> str:
        """Lines "node method milliseconds per batch", the slowest first."""
        rows = sorted(self.seconds.items(), key=lambda item: -item[1])
        per_batch = max(self.batches, 1)
        return "\n".join(f"{node:<24}{method:<10}{1e3 * s / per_batch:9.1f} ms" for (node, method), s in rows)
