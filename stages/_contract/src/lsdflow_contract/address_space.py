"""Refuses a small limit of the address space before numpy is loaded: lsdflow_contract is imported first everywhere.

Under such a limit (`ulimit -v`, `ulimit -d`, h_vmem of SGE) the libraries cannot be loaded, or OpenBLAS cannot start
its threads and tries again for ever, in compiled code that no signal ends.
"""

from __future__ import annotations

import json
import os
import resource
import sys

from lsdflow_contract.errors import ConfigError

# The libraries of a stage, and the arrays of a small block.
LIBRARIES_BYTES = 2 << 30
# Each OpenBLAS (numpy and scipy have their own) reserves a buffer and a stack for each thread.
BYTES_PER_THREAD = 96 << 20
MOST_THREADS = 64
LIMITS = {resource.RLIMIT_AS: "ulimit -v, h_vmem", resource.RLIMIT_DATA: "ulimit -d, h_data"}


def refuse_small_address_space() -> None:
    """End the process with exit code 78 if a limit is too small for the libraries; nothing if numpy is loaded."""
    if "numpy" in sys.modules:
        return
    threads = _threads()
    wanted = LIBRARIES_BYTES + threads * BYTES_PER_THREAD
    for number, name in LIMITS.items():
        limit, _ = resource.getrlimit(number)
        if limit != resource.RLIM_INFINITY and limit < wanted:
            error = ConfigError(
                "the limit of the address space is too small to load the libraries",
                where=name,
                wanted=f"{_gib(wanted)} ({_gib(LIBRARIES_BYTES)}, and {BYTES_PER_THREAD >> 20} MiB for each of "
                f"{threads} threads of OpenBLAS), or no limit; a GPU needs no limit",
                found=_gib(limit),
                fix="raise it (qsub -l h_vmem=8G), limit the resident memory instead, or set OPENBLAS_NUM_THREADS=1",
            )
            if "--json" in sys.argv:
                sys.stdout.write(f"{json.dumps(error.as_dict())}\n")
            else:
                sys.stderr.write(f"error: {error.message()}\n")
            sys.exit(error.exit_code)


def _threads() -> int:
    """The threads that OpenBLAS starts: by its variables, else one for each core of this process."""
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        text = os.environ.get(name, "")
        if text.isdecimal() and int(text) > 0:
            return min(int(text), MOST_THREADS)
    return min(len(os.sched_getaffinity(0)), MOST_THREADS)


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
