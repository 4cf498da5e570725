"""What a run took, for its outcome: processor time, memory, bytes through read and write calls, the GPU."""

from __future__ import annotations

import resource
from typing import Any

from lsdflow_command.watching.resources import gpu_in_use, memory, usage


def resources_taken() -> dict[str, Any]:
    """Of this process and its children that ended; memory is that of the largest process, this one or a child."""
    used, (gpu, gpu_bytes) = usage(), gpu_in_use()
    largest_child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    return {
        "cpu_s": round(used.cpu_s, 2),
        "peak_resident_bytes": max(memory().peak_resident, largest_child),
        "read_bytes": used.read_bytes,
        "written_bytes": used.written_bytes,
        "gpu": gpu,
        "gpu_bytes": gpu_bytes,
    }
