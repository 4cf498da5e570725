"""daisy alone, 1.2.3 or 2.0.0 (the environment decides): worker functions that stay until there are no more blocks.

with_daisy.py launch: the pattern of the original scripts. The worker function submits a job and returns; the job waits
in a queue for some seconds and then connects.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import daisy
from work import BLOCKS, do_block, finish, is_done, root

QUEUE_SECONDS = 3.0
TIMEOUT_SECONDS = 5


def take_blocks() -> None:
    """A worker's loop."""
    client = daisy.Client()
    while True:
        with client.acquire_block() as block:
            if block is None:
                return
            do_block(block.write_roi.offset[0])


def launch() -> None:
    """As `sbatch` does: return at once."""
    subprocess.Popen([sys.executable, __file__, "job"], env=dict(os.environ))


def main(role: str) -> None:
    """Run all blocks; two workers."""
    if role == "job":
        time.sleep(QUEUE_SECONDS)
        take_blocks()
        return
    os.chdir(root())
    unit = daisy.Roi((0,), (1,))
    task = daisy.Task(
        "row",
        total_roi=daisy.Roi((0,), (BLOCKS,)),
        read_roi=unit,
        write_roi=unit,
        process_function=launch if role == "launch" else take_blocks,
        check_function=lambda block: is_done(block.write_roi.offset[0]),
        read_write_conflict=False,
        num_workers=2,
        max_retries=2,
        timeout=TIMEOUT_SECONDS,
    )
    finish(daisy.run_blockwise([task]))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
