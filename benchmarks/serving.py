"""One side of a comparison, in a process of its own: prepares once, then computes each time it is started.

    python own.py|peers.py NAME FOLDER      stdin: one line per run;  stdout: {"seconds", "peak_rss_mib", ...} per run

So that imports and compiling are no part of the times, and both sides can take turns. The result of the last run is
left in FOLDER/result-NAME.npy. Needs nothing but numpy: peers run it in their own environments.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

Work = Callable[[], Any]
# A file system in memory.
MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Timed:
    """A result and its seconds, of work that has to be timed within."""

    result: Any
    seconds: float

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.result, dtype=dtype, copy=copy)


def serve(sides: Mapping[str, Callable[[Path], Work]], modules: tuple[str, ...]) -> None:
    """Prepare the side that the command line names, say its versions, and run it once per line of standard input."""
    name, folder = sys.argv[1], Path(sys.argv[2])
    # What libraries print, in Python or C++, goes to standard error: standard output is the protocol.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    work = sides[name](folder)
    say(output, {"versions": {m: version_of(m) for m in modules if m in sys.modules}})
    result: Any = None
    for _ in sys.stdin:
        result = None
        begin = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - begin
        if isinstance(result, Timed):
            result, seconds = result.result, result.seconds
        np.save(folder / f"result-{name}.npy", np.asarray(result))
        say(output, {"seconds": seconds, "peak_rss_mib": peak_rss_mib()})


def say(output: TextIO, answer: Mapping[str, Any]) -> None:
    """One line of JSON."""
    output.write(json.dumps(answer) + "\n")
    output.flush()


def peak_rss_mib() -> float:
    """Highest resident memory of this process; getrusage would count what the parent had when it started us."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def version_of(module: str) -> str:
    """Version of the package that a module comes from."""
    return importlib.metadata.version(importlib.metadata.packages_distributions()[module][0])
