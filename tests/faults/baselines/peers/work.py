"""The work that every peer does: 64 blocks, each a file. Faults on request, by files in the folder. No packages needed.

executed      a line for each block that was begun: its number, the process
out/<block>   the block's result; a peer may ask for it as its own check of what is done
raise, hang   block 5 raises, or never ends
"""

from __future__ import annotations

import os
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
    with (folder / "executed").open("a") as log:
        log.write(f"{number} {os.getpid()}\n")
    if number == FAULTY and (folder / "raise").exists():
        raise ValueError("a block that always fails")
    if number == FAULTY and (folder / "hang").exists():
        time.sleep(3600)
    time.sleep(BLOCK_SECONDS)
    (folder / "out" / str(number)).write_text(str(2 * number))


def is_done(number: int) -> bool:
    """The check that a user of the peer would write."""
    return (root() / "out" / str(number)).exists()


def tell(succeeded: object) -> None:
    """What the peer's own call returned: the user's program would go on with it."""
    (root() / "returned").write_text(str(bool(succeeded)))
    sys.exit(0 if succeeded else 1)
