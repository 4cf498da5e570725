"""The table of where the time of the data pipeline goes."""

from __future__ import annotations

import time

import pytest

gp = pytest.importorskip("gunpowder")

from lsdflow_training.timing import NodeTimes  # noqa: E402


class Slow(gp.BatchFilter):
    """A node whose name is in the table."""


def _batch(node: gp.BatchFilter, method: str, seconds: float) -> gp.profiling.ProfilingStats:
    timing = gp.profiling.Timing(node, method)
    timing.start()
    time.sleep(seconds)
    timing.stop()
    stats = gp.profiling.ProfilingStats()
    stats.add(timing)
    return stats


def test_times_of_all_batches_are_added_by_node_and_method() -> None:
    times, node = NodeTimes(), Slow()
    for method in ("prepare", "process", "process"):
        times.add(_batch(node, method, 0.02))
    assert times.batches == 3
    assert set(times.seconds) == {("Slow", "prepare"), ("Slow", "process")}
    assert times.seconds["Slow", "prepare"] >= 0.02
    assert times.seconds["Slow", "process"] >= 0.04


@pytest.mark.proves("TLS-21")
def test_the_table_has_milliseconds_per_batch_and_the_slowest_node_first() -> None:
    times = NodeTimes()
    times.batches = 4
    times.seconds.update({("Fast", "process"): 0.01, ("Slow", "process"): 2.0, ("Slow", "prepare"): 0.4})
    rows = [line.split() for line in times.table().splitlines()]
    assert rows == [
        ["Slow", "process", "500.0", "ms"],
        ["Slow", "prepare", "100.0", "ms"],
        ["Fast", "process", "2.5", "ms"],
    ]


def test_without_a_batch_the_table_is_empty() -> None:
    assert NodeTimes().table() == ""
