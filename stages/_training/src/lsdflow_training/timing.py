"""Where the time of a training goes: nodes of the data pipeline, waiting for patches, operations of some steps.

profile_steps: torch.profiler records some steps of a run as a Chrome trace and as a table in the log. Open the trace
with chrome://tracing or Perfetto. A step lasts until the next one begins, so it includes the wait for its patches, a
validation or a checkpoint.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType

import gunpowder as gp
from torch.profiler import ProfilerActivity, profile, schedule

from lsdflow_contract.files import storage_errors, write_atomically
from lsdflow_training.curves import Curves

LOG = logging.getLogger("lsdflow.training")
FIRST_STEPS = 100  # after which waiting may be warned about
TOO_MUCH = 0.1  # share of the time spent waiting for data at which a warning is logged
# The first steps of a run allocate memory and choose kernels, so they are not representative.
WARM_UP_STEPS = 2
ROWS = 15  # of the logged table of a profile


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


class DataWait:
    """Used as `with wait: take the next batches`.  Counts from the second step of a run on, because the first one
    starts what makes batches.

    warn: log a warning once, after the first steps, if the share is too large.
    """

    def __init__(self, warn: bool = True, clock: Callable[[], float] = time.monotonic) -> None:
        self._warn, self._clock = warn, clock
        self._steps = 0
        self._began = self._entered = self._waited = 0.0

    def __enter__(self) -> None:
        self._entered = self._clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = self._clock()
        self._steps += 1
        if self._steps == 1:
            self._began = now
            return
        self._waited += now - self._entered
        share = self.share
        if self._warn and self._steps > FIRST_STEPS and share is not None and share > TOO_MUCH:
            self._warn = False
            LOG.warning(
                '%.0f %% of the time goes by waiting for patches; the table "data pipeline" shows what costs. Faster: '
                'pipeline = "gpu" on a GPU; with pipeline = "gunpowder", more num_workers (and cores for them)',
                100 * share,
            )

    @property
    def share(self) -> float | None:
        """Time spent waiting as a share of all time, 0 to 1; None before the second step."""
        gone = self._clock() - self._began
        return self._waited / gone if self._steps > 1 and gone > 0 else None

    def log(self, curves: Curves, iteration: int) -> None:
        """Add the current share to the curves and the log."""
        share = self.share
        if share is not None:
            curves.add_data_wait(iteration, share)
            LOG.info("%.1f %% of the time waiting for patches", 100 * share)


@contextmanager
def step_profile(steps: int, folder: Path, device: str, rank: int = 0) -> Iterator[Callable[[int], None]]:
    """A function to call after each step, with its iteration; records `steps` steps, or fewer if the run is shorter.

    Writes profile/steps_<first>_to_<last>_rank<rank>.json.gz in `folder`.  With 0 steps it does nothing.
    """
    if steps == 0:
        yield lambda _: None
        return
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.startswith("cuda") else [])
    recorded: list[int] = []
    seen = 0

    def write(profiled: profile) -> None:
        """Write the trace and log the most expensive operations."""
        if recorded:
            path = folder / "profile" / f"steps_{recorded[0]}_to_{recorded[-1]}_rank{rank}.json.gz"
            _write_trace(path, profiled)
            _log_table(path, profiled, device, rank)

    def stepped(iteration: int) -> None:
        """Count a step; after the warm-up record it, until `steps` are recorded."""
        nonlocal seen
        seen += 1
        if WARM_UP_STEPS < seen <= WARM_UP_STEPS + steps:
            recorded.append(iteration)
        if seen <= WARM_UP_STEPS + steps:
            profiled.step()

    when = schedule(wait=0, warmup=WARM_UP_STEPS, active=steps, repeat=1)
    with profile(activities=activities, schedule=when, on_trace_ready=write) as profiled:
        yield stepped


def _write_trace(path: Path, profiled: profile) -> None:
    """Write the trace, complete or not at all; torch compresses it."""
    with storage_errors(path), TemporaryDirectory() as folder:
        packed = Path(folder) / path.name
        profiled.export_chrome_trace(str(packed))
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, lambda file: file.write(packed.read_bytes()))


def _log_table(path: Path, profiled: profile, device: str, rank: int) -> None:
    """Log the table of the first process; the others are similar and have their traces."""
    if rank == 0:
        by = "self_device_time_total" if device.startswith("cuda") else "self_cpu_time_total"
        table = profiled.key_averages().table(sort_by=by, row_limit=ROWS, max_name_column_width=50)
        LOG.info("%s: the %d most expensive operations\n%s", path, ROWS, table)
