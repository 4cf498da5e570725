"""Bytes read and GPU memory used by the attempts at blocks, by pass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lsdflow_command.attempts import DONE, FOLDER, KEY_LETTERS, AttemptReader

# The attempts at 10^6 blocks fill some 100 MB, which would take too long to read.
MOST_BYTES = 50_000_000


@dataclass(frozen=True)
class Taken:
    """Of the successful attempts: their number, the mean bytes read by each, and the largest GPU memory of one."""

    blocks: int
    read_bytes: float
    gpu_bytes: int


def taken_by_attempts(runs: Path) -> dict[str, Taken]:
    """Return the use of each pass by the first letters of its key; empty without attempts, or if they are too many."""
    paths = list((runs / FOLDER).glob("*.tsv"))
    if sum(path.stat().st_size for path in paths) > MOST_BYTES:
        return {}
    done = [attempt for attempt in AttemptReader(runs).ended() if attempt.outcome == DONE]
    found = {}
    for key in dict.fromkeys(attempt.key for attempt in done):
        ours = [attempt for attempt in done if attempt.key == key]
        mean = sum(attempt.read_bytes for attempt in ours) / len(ours)
        found[key] = Taken(len(ours), mean, max(attempt.gpu_bytes for attempt in ours))
    return found


def of_key(found: dict[str, Taken], key: str) -> Taken | None:
    """Return the use of the pass with this key; None if it is not known."""
    return found.get(key[:KEY_LETTERS])
