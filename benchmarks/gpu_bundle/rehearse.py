"""The rehearsal: its parts one after another, each in a process of its own that ends with its share of the time.

    rehearse.py [--seconds 780] [--results FOLDER] [--parts tests,stage] [--ablation] [--device cpu] [--tiny]

`./run.sh rehearse` calls it.

FOLDER/results.md    tables; a row is there as soon as it is known; at the end: what took how long, what was not done
FOLDER/rehearse.log  what the parts and their commands said
FOLDER/*.tar         the trained networks

The last part gets the time that the others leave. A part that still runs near its limit gets SIGTERM, then SIGKILL for
all processes that it has started, and the next one begins. This process never touches the device, so no
memory of it is in use while another part is measured. Needs psutil.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

HERE = Path(__file__).resolve().parent
WHOLE_S = 780.0  # the seconds that the shares are made for
RESERVE_S = 45.0  # of the last part: between the time that its trainings may take and that at which it has to end
GRACE = 0.1  # share of a limit, at most LONGEST_GRACE_S: between being asked to stop and being killed
LONGEST_GRACE_S = 12.0
AT_THE_END_S = 2.0
FREE_CORES = 8  # with fewer, what runs beside the first part would slow it down


@dataclass(frozen=True)
class Part:
    """A program and its share of WHOLE_S; without one, it gets all that is left."""

    name: str
    command: tuple[str, ...]
    seconds: float | None = None


@dataclass(frozen=True)
class Outcome:
    """How a part ended, and the names of what it did not do."""

    part: Part
    limit_s: float
    seconds: float
    how: str
    not_done: tuple[str, ...]


def parts(options: argparse.Namespace) -> list[Part]:
    """What makes all that the others need, then the five, the most valuable first."""
    shares = {"tests": 90.0, "network": 60.0, "stage": 120.0, "training": 60.0, "quality": None}
    more = ["--device", options.device, "--data", str(options.data), "--results", str(options.results)]
    more += [*(["--tiny"] if options.tiny else []), *(["--ablation"] if options.ablation else [])]
    programs = {name: (sys.executable, str(HERE / f"part_{name}.py"), *more) for name in shares}
    made = Part("experiments", (sys.executable, str(HERE / "experiments.py"), *more))
    chosen = options.parts.split(",") if options.parts else shares
    if unknown := [name for name in chosen if name not in shares]:
        raise SystemExit(f"--parts: {', '.join(unknown)} is none of {', '.join(shares)}")
    return [made, *(Part(name, programs[name], shares[name]) for name in chosen)]


def main() -> int:
    """Run the parts; 1 if one of them failed or was ended."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], prog="run.sh rehearse")
    parser.add_argument("--seconds", type=float, default=WHOLE_S, help="in all (default 780)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the results (default results)")
    parser.add_argument("--parts", default="", help="some of the parts, separated by commas (default all)")
    parser.add_argument("--ablation", action="store_true", help="quality: train the networks of the ablation")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a toy, to try it on any machine")
    parser.add_argument("--data", type=Path, default=HERE.parents[1] / "data", help=argparse.SUPPRESS)
    parser.add_argument("--spent", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    begun = time.time() - options.spent
    options.results = options.results.resolve()
    os.environ["GPU_BUNDLE_COMMAND"] = f"./run.sh rehearse --seconds {options.seconds:g}"
    machine = subprocess.run(
        [sys.executable, str(HERE.parent / "gpu_machine.py"), options.device],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if machine.returncode:
        return machine.returncode
    beside, *others = parts(options)
    outcomes = rehearse(others, begun + options.seconds, options.seconds, options.results, machine.stdout, beside)
    return int(any(outcome.how != "done" for outcome in outcomes))


def rehearse(
    parts: Sequence[Part], until: float, seconds: float, results: Path, machine: str = "", beside: Part | None = None
) -> list[Outcome]:
    """Run the parts until a time; their tables and a summary go to `results`.

    seconds: of the whole. Each part has a share of WHOLE_S; if all are limited, they share what there is.
    beside: a program that runs beside the first parts.
    """
    until -= AT_THE_END_S
    shares = [part.seconds for part in parts if part.seconds is not None]
    scale = seconds / (sum(shares) if len(shares) == len(parts) else WHOLE_S)
    results.mkdir(parents=True, exist_ok=True)
    for name in ("results.md", "rehearse.log"):
        (results / name).write_text("")
    say(results, machine)
    outcomes = []
    with TemporaryDirectory(prefix="lsdflow-rehearsal-") as scratch:
        made = None
        if beside is not None and len(os.sched_getaffinity(0)) >= FREE_CORES:
            made = start(beside, until, results, Path(scratch), scale * RESERVE_S)
        for part in parts:
            limit = max(0.0, until - time.time())
            limit = limit if part.seconds is None else min(limit, scale * part.seconds)
            outcomes.append(run(part, limit, results, Path(scratch), scale * RESERVE_S))
        if made is not None:
            wait(made, time.time(), 0.0)
    say(results, summary(outcomes))
    return outcomes


def start(part: Part, until: float, results: Path, scratch: Path, reserve: float) -> subprocess.Popen[bytes]:
    """Start a part. What it prints goes to the tables, its planned and finished rows to a file."""
    rows = scratch / f"{part.name}.rows"
    rows.touch()
    asked = [f"--until={until}", f"--reserve={reserve}", f"--scratch={scratch}", f"--rows={rows}"]
    with (results / "results.md").open("a") as tables, (results / "rehearse.log").open("a") as log:
        return subprocess.Popen(
            [*part.command, *asked], stdout=tables, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )


def run(part: Part, limit: float, results: Path, scratch: Path, reserve: float) -> Outcome:
    """A part within its limit."""
    grace = min(LONGEST_GRACE_S, GRACE * limit)
    begun = time.time()
    say(results, f"\n## {part.name}\n{memory_in_use()}")
    where = (results / "results.md").stat().st_size
    how = "no time left"
    if limit > grace:
        how = wait(start(part, begun + limit - grace, results, scratch, reserve), begun + limit, grace)
    sys.stdout.write((results / "results.md").read_bytes()[where:].decode())
    rows = scratch / f"{part.name}.rows"
    lines = [line.partition(" ") for line in rows.read_text().splitlines()] if rows.exists() else []
    done = {name for word, _, name in lines if word == "done"}
    planned = dict.fromkeys(name for word, _, name in lines if word == "planned")
    return Outcome(part, limit, time.time() - begun, how, tuple(name for name in planned if name not in done))


def memory_in_use() -> str:
    """A line that says how much of the memory of the GPUs is in use; empty without nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"\nDevice memory in use before it: {', '.join(found.splitlines())}\n"


def wait(process: subprocess.Popen[bytes], until: float, grace: float) -> str:
    """Wait for a part, and return how it ended. Near `until` it gets SIGTERM, then all that it started SIGKILL."""
    code = None
    started: list[psutil.Process] = []
    try:
        code = process.wait(max(0.0, until - grace - time.time()))
    except subprocess.TimeoutExpired:
        with suppress(psutil.Error):
            own = psutil.Process(process.pid)
            started = [own, *own.children(recursive=True)]
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        _, started = psutil.wait_procs(started, max(0.0, until - time.time()))
    for left in started:
        with suppress(psutil.Error):
            left.kill()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if code is None:
        return "ended at its limit"
    return "done" if code == 0 else f"failed (exit code {code}, see rehearse.log)"


def summary(outcomes: Sequence[Outcome]) -> str:
    """What took how long, and what was not done."""
    lines = ["\n## What took how long\n", "| part | seconds | limit | |", "|---|---|---|---|"]
    lines += [f"| {o.part.name} | {o.seconds:.0f} | {o.limit_s:.0f} | {o.how} |" for o in outcomes]
    left = [f"- {o.part.name}: {name}" for o in outcomes for name in o.not_done or _unknown(o)]
    return "\n".join([*lines, "", "## Not done\n", *(left or ["Everything was done."]), ""])


def _unknown(outcome: Outcome) -> tuple[str, ...]:
    """A part that ended before it said what it does did nothing."""
    return () if outcome.how == "done" else (f"what it had not done yet: {outcome.how}",)


def say(results: Path, text: str) -> None:
    """To the tables, and to whoever looks on."""
    with (results / "results.md").open("a") as tables:
        tables.write(text)
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
