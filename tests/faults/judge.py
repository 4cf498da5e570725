"""Judges histories of faults: a table of what was injected and what came of it; exit code 1 if anything went wrong.

judge.py [--summary FILE] HISTORY...     files of JSON lines, as the tests of this folder leave them
                                         (LSDFLOW_FAULT_HISTORY); --summary writes the table of a release as Markdown
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
Fault = Mapping[str, Any]

# What must be true of a fault, under the names that the tests use; and what must be empty or 0.
GOOD = ("whole", "resumed", "detected", "equal")
BAD = ("torn", "redone", "lost", "hung")
# How a violation is counted in the table of a release.
KINDS = {
    "lost": ("whole", "equal", "torn", "lost"),
    "done twice": ("redone",),
    "not noticed": ("detected",),
    "not resumed": ("resumed",),
    "hung": ("hung",),
}
FAULTS = {
    "F1": "SIGKILL of a worker at a random moment",
    "F2": "SIGKILL at eight named points of a block's commit",
    "F3": "SIGTERM or USR2",
    "F4": "SIGKILL of the coordinator",
    "F5": "two coordinators at once",
    "F6": "a worker that is stopped or cut off, and comes back late",
    "F7": "mongod killed and started again",
    "F8": "mongod away for longer than it is waited for",
    "F9": "the network cut",
    "F10": "no space left",
    "F11": "a disk that fails now and then",
    "F12": "data deleted, cut, changed",
    "F13": "half-made files and rows of a killed run",
    "F15": "two machines at the same work: the first one slept",
    "F17": "wrong clocks",
    "F18": "poisoned blocks",
    "F19": "15 % of the workers die",
    "F20": "training killed",
    "F21": "checkpoints damaged",
    "F23": "artefacts of other contracts",
    "F24": "a finished stage run again",
    "F25": "other parameters",
    "F26": "a late worker of other parameters",
    "hang": "commands that did not end",
}
STAGES = ("prepare", "predict", "watershed", "agglomerate", "segment", "evaluate")
LIBRARIES = ("daisy", "zarr", "pymongo", "numcodecs", "numba")


def violations_of(fault: Fault) -> list[str]:
    """Names of the requirements that a fault was followed by the breach of."""
    missed = [name for name in GOOD if fault.get(name) is False]
    return missed + [name for name in BAD if fault.get(name)]


def row_of(fault: Fault) -> str:
    """Row of the fault matrix."""
    return str(fault.get("row") or fault.get("kind"))


def by_row(faults: Iterable[Fault]) -> dict[str, list[Fault]]:
    """The faults of each row, in the order of the matrix."""
    rows: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        rows[row_of(fault)].append(fault)
    order = {row: number for number, row in enumerate(FAULTS)}
    return dict(sorted(rows.items(), key=lambda item: order.get(item[0], len(order))))


def table_of(faults: list[Fault]) -> list[str]:
    """The table in Markdown: for each row what was injected and what went wrong."""
    lines = [
        f"| row | fault | injected | on MongoDB | {' | '.join(KINDS)} | violations |",
        "|---" * (5 + len(KINDS)) + "|",
    ]
    for row, its in [*by_row(faults).items(), ("all", faults)]:
        wrong = [set(violations_of(fault)) for fault in its]
        kinds = [sum(bool(names & found) for found in wrong) for names in map(set, KINDS.values())]
        on_mongo = sum(fault.get("store") == "mongo" for fault in its)
        numbers = [len(its), on_mongo, *kinds, sum(map(bool, wrong))]
        lines.append(f"| {row} | {FAULTS.get(row, '')} | {' | '.join(map(str, numbers))} |")
    return lines


def summary_of(faults: list[Fault]) -> str:
    """The page of a release."""
    stages = Counter(str(fault.get("stage", "training")) for fault in faults)
    seeds = sorted({str(fault["base_seed"]) for fault in faults if "base_seed" in fault})
    wrong = sum(bool(violations_of(fault)) for fault in faults)
    # Of trainings, "seconds" is when they were killed, if it was after a time.
    seconds = sum(float(fault.get("seconds", 0)) for fault in faults if "base_seed" in fault)
    bound = f", so that fewer than {300 / len(faults):.2f} % go wrong (95 %)" if not wrong and faults else ""
    return "\n".join(
        [
            "# Faults of a release",
            "",
            "`make faults-release` (rows and requirements: [tests/faults](../tests/faults/README.md)). A fault is",
            'counted under "lost" if the result had other bits than that of the undisturbed run, or if something that',
            "was acknowledged was gone.",
            "",
            f"**{len(faults)} faults, {wrong} violations**{bound}. {time.strftime('%Y-%m-%d', time.gmtime())};",
            f"block stages {seconds / 60:.0f} min, seed {', '.join(seeds)} (`LSDFLOW_FAULT_SEED`).",
            "",
            *table_of(faults),
            "",
            "By stage: " + ", ".join(f"{stage} {number}" for stage, number in stages.most_common()) + ".",
            "",
            "Versions: " + ", ".join(versions()) + ".",
            "",
        ]
    )


def versions() -> list[str]:
    """What was tested."""
    found = [f"revision {_answer('git', '-C', str(REPOSITORY), 'rev-parse', '--short', 'HEAD')}"]
    found += [f"{name} {_version(f'lsdflow-{name}')}" for name in ("contract", "runtime", *STAGES)]
    found += [f"{name} {_version(name)}" for name in LIBRARIES]
    mongod = _answer(str(REPOSITORY / ".cache" / "mongod" / "mongod"), "--version").splitlines()[:1]
    return [
        *found,
        *("mongod " + line.removeprefix("db version v") for line in mongod),
        f"Python {platform.python_version()}",
    ]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not here"


def _answer(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main(arguments: list[str]) -> int:
    """Print the table, and write the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("histories", nargs="+", type=Path, metavar="HISTORY")
    parser.add_argument("--summary", type=Path)
    options = parser.parse_args(arguments)
    lines = [line for path in options.histories if path.exists() for line in path.read_text().splitlines()]
    faults: list[Fault] = [json.loads(line) for line in lines]
    print("\n".join(table_of(faults)))
    if options.summary:
        options.summary.write_text(summary_of(faults))
    return 1 if not faults or any(violations_of(fault) for fault in faults) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
