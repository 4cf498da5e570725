"""profile_steps: torch.profiler records some steps of a run as a Chrome trace and as a table in the log.

Open the trace with chrome://tracing or Perfetto.  A step lasts until the next one begins, so it includes the wait for
its patches, a validation or a checkpoint.
"""

from __future__ import annotations

import gzip
import logging
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from torch.profiler import ProfilerActivity, profile, schedule

from lsdflow_contract.files import TEMPORARY_SUFFIX, storage_errors, write_atomically

LOG = logging.getLogger("lsdflow.training")
# The first steps of a run allocate memory and choose kernels, so they are not representative.
WARM_UP_STEPS = 2
ROWS = 15


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
        if recorded:
            path = folder / "profile" / f"steps_{recorded[0]}_to_{recorded[-1]}_rank{rank}.json.gz"
            _write_trace(path, profiled)
            _log_table(path, profiled, device, rank)

    def stepped(iteration: int) -> None:
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
    """Write the trace, complete or not at all; torch writes plain JSON to a path, which is then gzipped."""
    plain = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    with storage_errors(path):
        plain.parent.mkdir(parents=True, exist_ok=True)
        try:
            profiled.export_chrome_trace(str(plain))
            with plain.open("rb") as trace:
                write_atomically(path, lambda file: _gzip(trace, file))
        finally:
            plain.unlink(missing_ok=True)


def _gzip(source: BinaryIO, target: BinaryIO) -> None:
    with gzip.GzipFile(filename="", mode="wb", fileobj=target) as packed:
        shutil.copyfileobj(source, packed)


def _log_table(path: Path, profiled: profile, device: str, rank: int) -> None:
    """Log the table of the first process; the others are similar and have their traces."""
    if rank == 0:
        by = "self_device_time_total" if device.startswith("cuda") else "self_cpu_time_total"
        table = profiled.key_averages().table(sort_by=by, row_limit=ROWS, max_name_column_width=50)
        LOG.info("%s: the %d most expensive operations\n%s", path, ROWS, table)
