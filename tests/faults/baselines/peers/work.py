"""The work that every peer does: 64 blocks, each a file. Faults on request, by files in the folder. No packages needed.

executed            a line for each block that was begun: its number, the process
out/<block>         the block's result; a peer may ask for it as its own check of what is done
raise, hang, crash  block 5 raises, never ends, or crashes its process
deaths              every seventh block kills its process the first time
$BASELINE_FACTOR    a parameter: what the results are multiples of
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

BLOCKS, FAULTY = 64, 5
BLOCK_SECONDS = 0.1


def root() -> Path:
    """The folder of this run."""
    return Path(os.environ["BASELINE_ROOT"])


def do_block(number: int) -> None:
    """Do a block and leave its result."""
    folder = root()
    first = not any(line.split()[0] == str(number) for line in begun(folder))
    with (folder / "executed").open("a") as log:
        log.write(f"{number} {os.getpid()}\n")
    if number == FAULTY and (folder / "raise").exists():
        raise ValueError("a block that always fails")
    if number == FAULTY and (folder / "hang").exists():
        time.sleep(3600)
    if number == FAULTY and (folder / "crash").exists():
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(BLOCK_SECONDS)
    if first and number % 7 == 0 and (folder / "deaths").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    (folder / "out" / str(number)).write_text(str(factor() * number))


def begun(folder: Path) -> list[str]:
    """Lines of what was begun so far."""
    path = folder / "executed"
    return path.read_text().splitlines() if path.exists() else []


def factor() -> int:
    """The parameter of this run."""
    return int(os.environ.get("BASELINE_FACTOR", "2"))


def is_done(number: int) -> bool:
    """The check that a user of the peer would write."""
    return (root() / "out" / str(number)).exists()


def finish(succeeded: object) -> None:
    """What the peer's own call returned: the user's program would use it."""
    (root() / "returned").write_text(str(bool(succeeded)))
    sys.exit(0 if succeeded else 1)
