"""What attempts at blocks read and held, by the work they were for: bytes, and the memory of a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lsdflow_command.attempts import DONE, FOLDER, KEY_LETTERS, AttemptReader

# Attempts at 10^6 blocks are some 100 MB: nobody waits for them to be read.
MOST_BYTES = 50_000_000


@dataclass(frozen=True)
class Taken:
    """Of the attempts that did their block: how many, what each read on average, the most that one held of a GPU."""

    blocks: int
    read_bytes: float
    gpu_bytes: int


def taken_by_attempts(runs: Path) -> dict[str, Taken]:
    """By the first letters of the work's key; empty where there are none, or too many to be read."""
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
    """Of a work; None if nothing is known of it."""
    return found.get(key[:KEY_LETTERS])
