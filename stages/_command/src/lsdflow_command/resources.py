"""Resource use of processes as reported by the kernel and torch: memory, CPU time, bytes read and written, GPU.

It is measured here because SLURM's accounting is switched off on many clusters. A value that cannot be read is 0.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the name: user and system time of the process and of its ended children.
_TIMES = slice(11, 15)


@dataclass(frozen=True)
class Usage:
    """CPU seconds, and bytes of read and write calls (rchar, wchar), including those of ended children."""

    cpu_s: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.cpu_s + other.cpu_s,
            self.read_bytes + other.read_bytes,
            self.written_bytes + other.written_bytes,
        )

    def __sub__(self, other: Usage) -> Usage:
        return self + Usage(-other.cpu_s, -other.read_bytes, -other.written_bytes)


@dataclass(frozen=True)
class Memory:
    """Bytes of memory of a process: present use, and peak use since it began (resident, and virtual)."""

    resident: int = 0
    peak_resident: int = 0
    peak_virtual: int = 0


def usage(pid: int | str = "self") -> Usage:
    """The CPU time and bytes of a process so far."""
    with suppress(OSError, ValueError, IndexError):
        times = _content(pid, "stat").rpartition(b")")[2].split()[_TIMES]
        read, written = _numbers(_content(pid, "io"), b"rchar", b"wchar")
        return Usage(sum(map(int, times)) / _TICKS_PER_SECOND, read, written)
    return Usage()


def memory(pid: int | str = "self") -> Memory:
    """The memory of a process."""
    with suppress(OSError, ValueError, IndexError):
        now, peak, virtual = _numbers(_content(pid, "status"), b"\nVmRSS", b"\nVmHWM", b"\nVmPeak")
        return Memory(now << 10, peak << 10, virtual << 10)
    return Memory()


def workers_of(pid: int | str = "self") -> list[int]:
    """All descendants of a process."""
    found: list[int] = []
    for child in _children(pid):
        found += [child, *workers_of(child)]
    return found


def gpu_in_use() -> tuple[str, int]:
    """Name of the GPU of this process, and the bytes that torch has reserved there; "" and 0 without a GPU.

    Neither torch nor CUDA is loaded for this: the values are read only if they are already in use.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not hasattr(cuda, "is_initialized") or not cuda.is_initialized():
        return "", 0
    device = cuda.current_device()
    return f"{device}: {cuda.get_device_name(device)}", int(cuda.memory_reserved(device))


def _content(pid: int | str, name: str) -> bytes:
    """A file of the kernel about a process; without Path or decoding for speed, because it is read at every block."""
    with open(f"{_PROC}/{pid}/{name}", "rb") as file:  # noqa: PTH123
        return file.read()


def _numbers(content: bytes, *names: bytes) -> list[int]:
    """The numbers after `name:`; 0 if missing (an ended process has no memory)."""
    parts = (content.partition(name + b":")[2] for name in names)
    return [int(part.split(None, 1)[0]) if part else 0 for part in parts]


def _children(pid: int | str) -> Sequence[int]:
    return [int(word) for text in _lists_of_children(pid) for word in text.split()]


def _lists_of_children(pid: int | str) -> Iterator[str]:
    try:
        threads = list((_PROC / str(pid) / "task").iterdir())
    except OSError:
        return
    for thread in threads:
        with suppress(OSError):
            yield (thread / "children").read_text()


def resources_taken() -> dict[str, Any]:
    """Resources of this process and its ended children; memory is that of the largest of these processes."""
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
