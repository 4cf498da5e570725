"""F5: two coordinators of one stage at once: one works, the other is refused with 73, no block is done twice."""

from __future__ import annotations

import time

import pytest
from harness import BLOCKS, SERIAL, STAGES, World, count, store_of

PASSES = {"evaluate": 3}


@pytest.mark.parametrize("gap_s", [0.0, 0.1, 0.5])
def test_f5_of_two_coordinators_the_second_is_refused(world: World, gap_s: float) -> None:
    for number in range(count(3, 34)):
        stage = STAGES[number % len(STAGES)]
        folder = world.before(stage, f"f5-{gap_s}-{number}", store_of(number))
        first = world.server.start(stage, folder, SERIAL, harm={"slow": 30})
        time.sleep(gap_s)
        second = world.server.start(stage, folder, SERIAL, harm={"slow": 30})
        codes = sorted([world.server.wait(first), world.server.wait(second)])
        whole = world.is_whole(stage, folder)
        logs = [path.read_text() for path in (folder / "runs" / stage).glob("*/log.txt")]
        at_work = sum("blocks already done" in log for log in logs)
        outcome = world.outcome(folder, redone=at_work - 1, whole=whole, detected=codes == [0, 73])
        world.note("F5", stage=stage, gap_s=gap_s, codes=codes, **outcome)
        assert codes == [0, 73]
        assert whole
        assert len(world.marks(folder, stage)) == PASSES.get(stage, 1) * BLOCKS
        assert (len(logs), at_work) == (2, 1), "the refused one began no block"
        world.remove(folder)
