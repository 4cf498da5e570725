"""What a table was measured on, tables whose rows appear as they are measured, and how busy the GPU was."""

from __future__ import annotations

import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import torch


def describe(device: str) -> str:
    """One line of Markdown: device, driver, versions, cores, and the command."""
    name = torch.cuda.get_device_name() if device.startswith("cuda") else device
    driver = f", driver {_driver()}" if device.startswith("cuda") else ""
    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    cores = len(os.sched_getaffinity(0))
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return f"{name}{driver}, {versions}, {cores} CPU cores; `{os.environ.get('GPU_BUNDLE_COMMAND', command)}`"


def require_device(device: str) -> None:
    """End the program with one line if this device is not there."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit(
            f"{Path(sys.argv[0]).name}: there is no CUDA device here, and its figures come from nothing else"
        )


def print_head(title: str, columns: Sequence[str]) -> None:
    """The head of a table."""
    print(f"\n### {title}\n")
    print_row(columns)
    print_row(["---"] * len(columns))


def print_row(cells: Sequence[Any]) -> None:
    """A row, at once: what was measured stays when the program is ended."""
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


class Busy:
    """Used as `with Busy(device) as busy: ...`; then mean utilisation in percent and the most memory in GiB.

    nvidia-smi reports five times a second; without it, or on a CPU, all are None.
    """

    def __init__(self, device: str) -> None:
        self._measures = device.startswith("cuda") and shutil.which("nvidia-smi") is not None
        self._process: subprocess.Popen[bytes] | None = None
        self._file: IO[bytes] | None = None
        self._seen: list[tuple[float, float]] = []
        self.percent: float | None = None
        self.gib: float | None = None

    def between(self, begin: float, end: float) -> float | None:
        """Mean utilisation in percent between two times, in seconds since 1970."""
        percents = [percent for time, percent in self._seen if begin <= time <= end]
        return statistics.mean(percents) if percents else None

    def __enter__(self) -> Busy:
        if self._measures:
            self._file = TemporaryFile()
            query = [
                "--query-gpu=timestamp,utilization.gpu,memory.used",
                "--format=csv,noheader,nounits",
                "-lms",
                "200",
            ]
            self._process = subprocess.Popen(
                ["nvidia-smi", *query], stdout=self._file, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
            )
        return self

    def __exit__(self, *_error: object) -> None:
        if self._process is None or self._file is None:
            return
        self._process.terminate()
        self._process.wait()
        self._file.seek(0)
        rows = [line.split(b",") for line in self._file.read().splitlines()]
        self._file.close()
        rows = [row for row in rows if len(row) == 3 and row[1].strip().isdigit() and row[2].strip().isdigit()]
        if rows:
            self._seen = [(_seconds(row[0].decode()), float(row[1])) for row in rows]
            self.percent = statistics.mean(percent for _, percent in self._seen)
            self.gib = max(float(row[2]) for row in rows) / 1024


def formatted(value: float | None, form: str) -> str:
    """A number, or nothing where there is none."""
    return "" if value is None else format(value, form)


def _seconds(timestamp: str) -> float:
    """A time as nvidia-smi prints it, in this machine's time zone: seconds since 1970."""
    return datetime.strptime(timestamp.strip(), "%Y/%m/%d %H:%M:%S.%f").timestamp()


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=30).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


if __name__ == "__main__":
    require_device(sys.argv[1])
    print(describe(sys.argv[1]))
