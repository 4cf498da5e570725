"""The same faults for lsdflow, daisy alone, and volara: a table of what each does, in Markdown.

    compare.py --environment NAME=PYTHON ... [--cases F1 F19]     NAME: daisy1, daisy2, volara, lsdflow
    `make faults-baselines` makes the environments from the locks here; docs/fault_baselines.md holds such a table.

Each case runs COUNT times. Compared are: did the run end; what did it report to its caller; are all 64 results there;
which blocks were done more than once without need.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

HERE = Path(__file__).parent
BLOCKS, COUNT, LIMIT_S = 64, 3, 60.0
# name of a column -> environment, program, arguments
PEERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "launch and return, daisy 1.2.3": ("daisy1", "with_daisy.py", ("launch",)),
    "daisy 1.2.3": ("daisy1", "with_daisy.py", ()),
    "daisy 2.0.0": ("daisy2", "with_daisy.py", ()),
    "volara 1.0.5": ("volara", "with_volara.py", ()),
    "lsdflow": ("lsdflow", "with_lsdflow.py", ()),
}


@dataclass
class Run:
    """A folder with the runs of one case."""

    command: list[str]
    folder: Path

    def start(self, **more: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join((str(HERE), str(HERE / "peers")))
        environment = {**os.environ, "BASELINE_ROOT": str(self.folder), "PYTHONPATH": path, **more}
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(self.command, env=environment, stdout=log, stderr=log, start_new_session=True)

    def done(self) -> int:
        return len(list((self.folder / "out").iterdir()))

    def executed(self) -> Counter[int]:
        path = self.folder / "executed"
        return Counter(int(line.split()[0]) for line in path.read_text().splitlines()) if path.exists() else Counter()


def end(process: subprocess.Popen[bytes]) -> str:
    """How a run ended: its exit code, or that it did not."""
    try:
        return str(process.wait(LIMIT_S))
    except subprocess.TimeoutExpired:
        kill_all(process)
        return "hangs"


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """End a run with everything it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for_blocks(run: Run, process: subprocess.Popen[bytes], least: int) -> None:
    until = time.monotonic() + LIMIT_S
    while run.done() < least and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)


def summary(run: Run, code: str, needless: int | None = None) -> str:
    """What a caller gets, against what is there."""
    lost = BLOCKS - run.done()
    outcome = {"hangs": "**hangs**", "0": "success"}.get(code, f"exit {code}")
    if code == "0" and lost:
        outcome = "**success**"
    twice = sum(n - 1 for n in run.executed().values() if n > 1) if needless is None else needless
    parts = [outcome, *([f"{lost} of {BLOCKS} blocks missing"] if lost else [])]
    return ", ".join([*parts, *([f"{twice} done again"] if twice else [])])


def worker_killed(run: Run, chance: random.Random) -> str:
    """SIGKILL of one worker in the middle."""
    process = run.start()
    wait_for_blocks(run, process, chance.randrange(5, 40))
    line = (run.folder / "executed").read_text().splitlines()[-1] if run.done() else ""
    if line:
        psutil.Process(int(line.split()[1])).kill()
    code = end(process)
    kill_all(process)
    return summary(run, code)


def coordinator_killed(run: Run, chance: random.Random) -> str:
    """SIGKILL of the coordinator in the middle, then the same command."""
    first = run.start()
    wait_for_blocks(run, first, chance.randrange(5, 40))
    first.kill()
    first.wait()
    time.sleep(1)
    second = run.start()
    code = end(second)
    for process in (first, second):
        kill_all(process)
    return summary(run, code)


def two_coordinators(run: Run, _chance: random.Random) -> str:
    """The same command twice, two seconds apart."""
    first = run.start()
    wait_for_blocks(run, first, 1)
    time.sleep(0.5)
    second = run.start()
    codes = [end(second), end(first)]
    for process in (first, second):
        kill_all(process)
    return f"{summary(run, codes[1])}; the second: {'success' if codes[0] == '0' else 'exit ' + codes[0]}"


def stopped(run: Run, chance: random.Random) -> str:
    """SIGTERM to the coordinator in the middle, then the same command."""
    first = run.start()
    wait_for_blocks(run, first, chance.randrange(5, 40))
    first.terminate()
    ended = end(first)
    kill_all(first)
    second = run.start()
    code = end(second)
    kill_all(second)
    return f"{'hangs' if ended == 'hangs' else 'ends'}; then {summary(run, code)}"


def faulty_block(name: str) -> Callable[[Run, random.Random], str]:
    """One block always fails in the way of that name; a time-out of 5 s is set where it can be."""

    def case(run: Run, _chance: random.Random) -> str:
        (run.folder / name).touch()
        process = run.start()
        code = end(process)
        kill_all(process)
        return summary(run, code, needless=0)

    return case


def workers_die(run: Run, _chance: random.Random) -> str:
    """Ten of the 64 blocks kill their worker once."""
    (run.folder / "deaths").touch()
    process = run.start()
    code = end(process)
    kill_all(process)
    return summary(run, code, needless=max(0, sum(run.executed().values()) - BLOCKS - 10))


def other_parameters(run: Run, _chance: random.Random) -> str:
    """A finished run, then one with another parameter in the same folder."""
    first = run.start()
    end(first)
    kill_all(first)
    second = run.start(BASELINE_FACTOR="3")
    code = end(second)
    kill_all(second)
    stale = sum(p.read_text() != str(3 * int(p.name)) for p in (run.folder / "out").iterdir())
    outcome = summary(run, code, needless=0)
    return f"**{outcome}**, {stale} results of the old parameter" if stale else outcome


def undisturbed(run: Run, _chance: random.Random) -> str:
    """Nothing happens."""
    process = run.start()
    code = end(process)
    kill_all(process)
    return summary(run, code)


CASES: tuple[tuple[str, Callable[[Run, random.Random], str]], ...] = (
    ("nothing", undisturbed),
    ("F1: a worker is killed (SIGKILL)", worker_killed),
    ("F3: stopped (SIGTERM), same command again", stopped),
    ("F4: the coordinator is killed, same command again", coordinator_killed),
    ("F5: two coordinators at once", two_coordinators),
    ("F18: a block always raises", faulty_block("raise")),
    ("F18: a block crashes its process", faulty_block("crash")),
    ("F18: a block never ends (time-out 5 s)", faulty_block("hang")),
    ("F19: 15 % of the blocks kill their worker once", workers_die),
    ("F25: another parameter in the same folder", other_parameters),
)


def outcomes(case: Callable[[Run, random.Random], str], command: list[str], count: int) -> str:
    """The outcomes of a case, each with how often it came."""
    found: Counter[str] = Counter()
    for number in range(count):
        folder = Path(tempfile.mkdtemp(prefix="baseline-"))
        (folder / "out").mkdir()
        found[case(Run(command, folder), random.Random(number))] += 1
        shutil.rmtree(folder, ignore_errors=True)
    return "<br>".join(f"{text} ({n}x)" if len(found) > 1 else text for text, n in found.most_common())


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--cases", nargs="+", default=[name for name, _ in CASES], help="beginnings of their names")
    options = parser.parse_args(arguments)
    pythons = dict(pair.split("=", maxsplit=1) for pair in options.environment)
    print(f"| fault | {' | '.join(PEERS)} |\n|---|{'---|' * len(PEERS)}")
    for name, case in (c for c in CASES if c[0].startswith(tuple(options.cases))):
        cells = []
        for environment, program, more in PEERS.values():
            command = [pythons[environment], str(HERE / "peers" / program), *more]
            cells.append(outcomes(case, command, options.count))
            print(f"{name}: {program} {more}: {cells[-1]}", file=sys.stderr, flush=True)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
