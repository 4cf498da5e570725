"""How fast trainings run as users start them: iterations per second, and the share of the time waiting for data.

Each is the command train-lsd in a process of its own, forked from this one, which has loaded its libraries and has not
touched the device.
"""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from experiments import FIB_SEM, UNENDING, given, training
from gpu_machine import Busy, formatted, print_head
from part import STOPPING_S, Part, settings

from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest

STAGE = "train-lsd"
START_S = 6.0  # of a training, until its first iteration
# Name, profile, options.
TRAININGS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("tiny", "tiny", {}),
    ("general: 16 maps, x4", "general", {}),
    ("published: 12 maps, x6", "standard", {}),
)
COLUMNS = (
    "network",
    "iterations",
    "it/s",
    "it/s after the first row of loss.csv",
    "waiting for data %",
    "GPU busy %",
    "",
)


def main() -> int:
    """Print the table; 1 if a training failed."""
    part = Part(__doc__)
    part.plan(*(name for name, _, _ in TRAININGS))
    toml = training(part, FIB_SEM)
    import lsdflow_training.trainer  # noqa: F401  before the processes part

    print_head("training: an LSD network, FIB-SEM", COLUMNS)
    names = [name for name, _, _ in TRAININGS]
    return max(part.attempt(name, partial(train, part, toml, number)) for number, name in enumerate(names))


def train(part: Part, toml: Path, number: int) -> int:
    """One training for its share of what is left, and its row; 1 if it failed."""
    name, profile, options = TRAININGS[number]
    seconds = max(1.0, part.left_s / (len(TRAININGS) - number) - START_S)
    options = {**UNENDING, "max_minutes": round(seconds / 60, 4), **options}
    words = {"experiment.mode": '"acrlsd"', "experiment.profile": f'"{profile}"', **given(part, STAGE, options)}
    command = ["run", "--experiment", str(toml), *settings(words)]
    print("$", STAGE, *command, file=sys.stderr, flush=True)
    with Busy(part.device) as busy:
        code = in_a_fork(part, command)
    if code != 0:
        part.row(name, [name, f"exit code {code}" if code is not None else "ended at its limit"], done=False)
        return 1
    manifest = read_manifest(ExperimentLayout(toml.parent), STAGE)
    facts = manifest.facts
    table = next((toml.parent / "results" / STAGE).glob(f"{manifest.key[:8]}*/loss.csv"))
    wait = facts.get("data_wait_share")
    cells = [
        *(name, facts["iteration"], f"{facts['it_per_s']:.3g}", steady(table)),
        *("" if wait is None else f"{100 * wait:.1f}", formatted(busy.percent, ".0f"), ""),
    ]
    part.row(name, cells)
    print(f"manifest, {name}: `{json.dumps(facts)}`", file=sys.stderr, flush=True)
    return 0


def in_a_fork(part: Part, command: list[str]) -> int | None:
    """The exit code of the command; None if it was ended because there was no time left."""
    process = multiprocessing.get_context("fork").Process(target=run, args=(command,))
    process.start()
    process.join(max(0.0, part.left_s - STOPPING_S))
    code = process.exitcode
    if code is None:
        process.terminate()
        process.join(STOPPING_S)
        process.kill()
    return code


def run(command: list[str]) -> None:
    """The command, in this process."""
    from lsdflow_train_lsd.cli import app

    os.dup2(2, 1)  # the tables are on stdout
    sys.argv = [STAGE, *command]
    app()


def steady(table: Path) -> str:
    """Iterations per second between the first and the last row; rates in the table are those since the start."""
    with table.open() as file:
        given = [row for row in csv.DictReader(file) if row["it_per_s"]]  # none in rows of a validation
    rows = [(int(row["iteration"]), float(row["it_per_s"])) for row in given]
    if len(rows) < 2:
        return ""
    (first, early), (last, late) = rows[0], rows[-1]
    return f"{(last - first) / (last / late - first / early):.3g}"


if __name__ == "__main__":
    sys.exit(main())
