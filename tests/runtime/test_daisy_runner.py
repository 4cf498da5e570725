"""daisy gets the blocks of a plan: their read and write ROIs, and none that is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import daisy
import daisy.logging
import pytest

from lsdflow_contract.geometry import Box
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.engine.daisy_runner import Session, daisy_task

# No multiple of the block, another number of blocks along each axis, a corner that is not 0.
PLAN = BlockPlan(Box((-5, 3, 7), (20, 30, 9)), (8, 7, 5), (2, 0, 3))


def test_the_number_of_a_block_is_found_from_its_first_voxel() -> None:
    assert PLAN.grid_shape == (3, 5, 2)
    assert [PLAN.number_at(block.write.begin_vox) for block in PLAN.blocks()] == list(range(len(PLAN)))


@pytest.mark.parametrize("done", [(), (0, 7, 29), range(29), range(30)])
def test_daisy_distributes_each_block_that_is_not_done_with_its_rois(tmp_path: Path, done: Any) -> None:
    seen = {}

    def process(block: Any) -> None:
        boxes = [Box(tuple(roi.begin), tuple(roi.shape)) for roi in (block.read_roi, block.write_roi)]
        assert seen.setdefault(PLAN.number_at(block.write_roi.begin), boxes) is boxes, "a worker got it twice"

    daisy.logging.set_log_basedir(tmp_path)
    task = daisy_task(PLAN, done, process, name="pass", workers=1, timeout_s=60)
    assert daisy.run_blockwise(task, multiprocessing=False, progress=False, summary=False)
    assert seen == {block.number: [block.read, block.write] for block in PLAN.blocks() if block.number not in done}


def test_notes_of_blocks_under_way_are_summed_until_the_blocks_end(tmp_path: Path) -> None:
    session = Session.begin(tmp_path / "session", "key")
    assert session.under_way() == 0
    session.note(3, 0.25)
    session.note(12, 0.5)
    session.note(3, 0.75)
    (session.folder / "4.part").write_text("")  # being written
    assert session.under_way() == 1.25
    session.forget(12)
    session.forget(99)
    assert session.under_way() == 0.75
