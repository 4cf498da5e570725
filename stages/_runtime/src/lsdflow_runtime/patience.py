"""A storage that fails for a moment fails no block: the block is done again after a pause, a longer one each time.

Network file systems lose handles when a server fails over (ESTALE), and say EIO or ETIMEDOUT while it is away. Blocks
are pure and committed whole, so doing one again is safe. What lasts longer than the pauses is an error, and so is at
once what no pause mends: a full disk, a missing right, damaged data.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable

from lsdflow_command.interruption import end_if_asked
from lsdflow_contract.errors import StageError

LOG = logging.getLogger("lsdflow.blocks")
PASSING = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENXIO, errno.EREMOTEIO)
PAUSES_S = (1.0, 5.0, 20.0)


def is_passing(error: BaseException | None) -> bool:
    """True for an error of the operating system that may be gone in a moment, and for one of ours that it caused."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in PASSING:
            return True
        error = error.__cause__
    return False


def with_patience(do_block: Callable[[int], None], number: int) -> None:
    """Do a block, and again after each of PAUSES_S while its storage fails. Raises its last error."""
    for pause_s in PAUSES_S:
        try:
            return do_block(number)
        except (StageError, OSError) as error:
            if not is_passing(error):
                raise
            what = str(error).splitlines()[0]
            LOG.warning("block %d: %s; again in %g s", number, what, pause_s, extra={"block": number})
        end_if_asked()
        time.sleep(pause_s)
        end_if_asked()
    return do_block(number)
