"""What a stage left about itself, as plain values: its runs and what they took, its blocks, its settings, its log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

FINISHED, FAILED, STOPPED, UNENDED, NOT_STARTED = "finished", "failed", "stopped", "unended", "not started"


class BlockState(IntEnum):
    """What became of a block; of several blocks the highest is shown."""

    DONE = 0
    RETRIED = 1
    MISSING = 2
    FAILED = 3


@dataclass(frozen=True)
class Taken:
    """What a run took, its processes together; memory is that of the largest process. None: not recorded."""

    cpu_s: float | None = None
    peak_resident_bytes: int | None = None
    read_bytes: int | None = None
    written_bytes: int | None = None
    gpu: str = ""
    gpu_bytes: int | None = None


@dataclass(frozen=True)
class StageRun:
    """One run of a stage; `seconds` and `exit_code` None: it left no outcome, so it runs or was killed."""

    stage: str
    name: str
    started: float
    seconds: float | None
    exit_code: int | None
    what: str = ""
    host: str = ""
    job: str = ""
    command: str = ""
    taken: Taken = Taken()


@dataclass(frozen=True, eq=False)
class BlockMap:
    """The blocks of a stage on their grid: states (z, y, x) of BlockState, seconds (z, y, x), NaN where not known."""

    states: NDArray[np.uint8]
    seconds: NDArray[np.float64]
    block_shape_vox: tuple[int, int, int]

    def count(self, state: BlockState) -> int:
        """Blocks in a state."""
        return int((self.states == state).sum())


@dataclass(frozen=True)
class StageRecord:
    """Everything of one stage. `settings`: its resolved table as (key, value), `outputs`: (name, path)."""

    stage: str
    state: str
    runs: tuple[StageRun, ...] = ()
    blocks: BlockMap | None = None
    key: str = ""
    identity: str = ""
    contract: str = ""
    config_hash: str = ""
    inputs: tuple[tuple[str, str], ...] = ()
    outputs: tuple[tuple[str, str], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    taken_in_blocks: Taken = Taken()
    jobs: tuple[str, ...] = ()
    log: str = ""
    log_path: str = ""

    @property
    def last(self) -> StageRun | None:
        """The newest run."""
        return self.runs[-1] if self.runs else None

    @property
    def taken(self) -> Taken:
        """What its blocks took, wherever they were made, else its runs: sums, and the largest process of all."""
        in_blocks = self.taken_in_blocks
        return in_blocks if in_blocks != Taken() else together([run.taken for run in self.runs])


def together(taken: list[Taken]) -> Taken:
    """Sums over runs, the largest peak; None where no run has recorded it."""
    cpu_s = [t.cpu_s for t in taken if t.cpu_s is not None]
    peaks = [t.peak_resident_bytes for t in taken if t.peak_resident_bytes is not None]
    read = [t.read_bytes for t in taken if t.read_bytes is not None]
    written = [t.written_bytes for t in taken if t.written_bytes is not None]
    gpu = [t.gpu_bytes for t in taken if t.gpu_bytes is not None]
    return Taken(
        cpu_s=sum(cpu_s) if cpu_s else None,
        peak_resident_bytes=max(peaks, default=None),
        read_bytes=sum(read) if read else None,
        written_bytes=sum(written) if written else None,
        gpu=next((t.gpu for t in reversed(taken) if t.gpu), ""),
        gpu_bytes=max(gpu, default=None),
    )
