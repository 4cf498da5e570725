"""Transient errors: one table with the conditions and the number of retries.

    condition      recognised by                             retries
    STORAGE        codes of the operating system             3, after 1, 5 and 20 s
    DATABASE       codes of MongoDB, lost connections        until [store] retry_s has passed, after 0.1, 0.2, ... 5 s
    BLOCK          the block function raises anything else   2, at once
    LOST_WORKER    a worker ends during a block              9, by other workers

Blocks are pure and committed as a whole, and every operation on the database can be repeated, so retries are safe. A
condition that lasts longer is an error. Conditions that a pause does not change are errors at once: a full disk, a
missing permission, damaged data.

The idea of a table of conditions is that of zetta_utils (mazepa/transient_errors.py).
"""

from __future__ import annotations

import errno
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lsdflow_command.interruption import end_if_asked
from lsdflow_contract.errors import StageError

LOG = logging.getLogger("lsdflow.blocks")
UNLIMITED = sys.maxsize


@dataclass(frozen=True)
class Transient:
    """A transient condition.

    Attributes:
        codes: of the operating system, or of the server.
        attempts: total number, including the first; UNLIMITED: until the caller's time is over.
        first_pause_s, factor, longest_pause_s: the pauses between attempts.
    """

    codes: frozenset[int] = frozenset()
    attempts: int = UNLIMITED
    first_pause_s: float = 0.0
    factor: float = 1.0
    longest_pause_s: float = 0.0

    def pauses_s(self) -> Iterator[float]:
        """The pause before each further attempt, seconds."""
        pause_s = self.first_pause_s
        for _ in range(1, self.attempts):
            yield pause_s
            pause_s = min(self.factor * pause_s, self.longest_pause_s)


# Network file systems lose handles when a server fails over (ESTALE), and return EIO or ETIMEDOUT while it is down.
STORAGE = Transient(
    codes=frozenset({errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENXIO, errno.EREMOTEIO}),
    attempts=4,
    first_pause_s=1.0,
    factor=5.0,
    longest_pause_s=20.0,
)
# A server that stops, starts, elects a primary, or gets too many requests at once (16500: Cosmos DB).
DATABASE = Transient(
    codes=frozenset({6, 7, 64, 89, 91, 112, 133, 134, 189, 262, 317, 9001, 10107, 11600, 11602, 13435, 13436, 16500}),
    first_pause_s=0.1,
    factor=2.0,
    longest_pause_s=5.0,
)
BLOCK = Transient(attempts=3)
# Spot nodes and crashes: if one attempt in six is lost, about one block in 10^8 fails.
LOST_WORKER = Transient(attempts=10)


def is_of_storage(error: BaseException | None) -> bool:
    """True for a transient error of the operating system, and for a StageError that it caused."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in STORAGE.codes:
            return True
        error = error.__cause__
    return False


def try_block(do_block: Callable[[int], None], number: int) -> None:
    """Process a block, and retry it after each pause of STORAGE while its storage fails. Raises the last error."""
    for pause_s in STORAGE.pauses_s():
        try:
            return do_block(number)
        except (StageError, OSError) as error:
            if not is_of_storage(error):
                raise
            what = str(error).splitlines()[0]
            LOG.warning("block %d: %s; again in %g s", number, what, pause_s, extra={"block": number})
        end_if_asked()
        time.sleep(pause_s)
        end_if_asked()
    return do_block(number)
