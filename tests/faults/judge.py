"""Judges histories of faults: a table of what was injected and what came of it; exit code 1 if anything went wrong.

judge.py HISTORY...     files of JSON lines, as the tests of this folder leave them (LSDFLOW_FAULT_HISTORY)
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

# What must be true of a fault, under the names that the tests use; and what must be empty or 0.
GOOD = ("whole", "resumed", "detected", "equal")
BAD = ("torn", "redone", "hung")


def violations_of(fault: Mapping[str, Any]) -> list[str]:
    """Names of the requirements that a fault was followed by the breach of."""
    missed = [name for name in GOOD if fault.get(name) is False]
    return missed + [name for name in BAD if fault.get(name)]


def table_of(faults: Iterable[Mapping[str, Any]]) -> list[tuple[str, int, int]]:
    """Row of the fault matrix, faults injected, faults with violations."""
    injected: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for fault in faults:
        row = str(fault.get("row") or fault.get("kind"))
        injected[row][0] += 1
        injected[row][1] += bool(violations_of(fault))
    return [
        (row, *injected[row]) for row in sorted(injected, key=lambda row: int(row[1:] if row[1:].isdigit() else 99))
    ]


def main(paths: list[str]) -> int:
    """Print the table."""
    faults = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    rows = table_of(faults)
    print("| row | injected | violations |\n|---|---|---|")
    for row, injected, wrong in rows:
        print(f"| {row} | {injected} | {wrong} |")
    print(f"| all | {len(faults)} | {sum(wrong for _, _, wrong in rows)} |")
    return 1 if not faults or any(wrong for _, _, wrong in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
