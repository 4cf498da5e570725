"""volara 1.0.5: a blockwise task of its own kind, with its record of finished blocks; two local workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from funlib.geometry import Coordinate, Roi
from volara.blockwise.blockwise import BlockwiseTask
from volara.logging import set_log_basedir
from work import BLOCKS, do_block, finish, root


class Row(BlockwiseTask):
    """64 blocks in a row."""

    fit: Literal["shrink"] = "shrink"
    read_write_conflict: Literal[False] = False

    @property
    def task_name(self) -> str:
        return "row"

    @property
    def write_roi(self) -> Roi:
        return Roi((0,), (BLOCKS,))

    @property
    def write_size(self) -> Coordinate:
        return Coordinate((1,))

    @property
    def context_size(self) -> Coordinate:
        return Coordinate((0,))

    def drop_artifacts(self) -> None:
        """Nothing to drop."""

    @contextmanager
    def process_block_func(self) -> Iterator[Any]:
        yield lambda block: do_block(block.write_roi.offset[0])


if __name__ == "__main__":
    os.chdir(root())
    set_log_basedir("volara_logs")
    finish(Row(num_workers=2).run_blockwise(multiprocessing=True))
