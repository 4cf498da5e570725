"""F1 to F4, F19: SIGKILL of workers, of the coordinator, at points of a commit; signals to stop. Then the same command.

Required: the bits of the undisturbed serial run; what was done before the fault is not done again, but for the blocks
that were under way; nobody has to do anything but to repeat the command.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
from harness import (
    BLOCKS,
    DAISY,
    PREDICT,
    SERIAL,
    STAGES,
    World,
    count,
    is_alive,
    seeds,
    slow_ms,
    store_of,
    wait_for,
    workers_of,
)

KILLED = (PREDICT, *STAGES)
# In CI the first three of each.
POINTS = {
    "before chunks": ("watershed", "segment", PREDICT),
    "after chunks": ("watershed", "segment", PREDICT),
    "before rows": ("watershed", "agglomerate", "evaluate"),
    "after rows": ("watershed", "agglomerate", "evaluate"),
    "before mark": KILLED,
    "after mark": ("segment", "evaluate", PREDICT, "watershed", "agglomerate"),
    "before rename": ("agglomerate", "segment", "evaluate", PREDICT, "watershed"),
    "after rename": (PREDICT, "watershed", "agglomerate", "segment", "evaluate"),
}
# Kills of one experiment before it may finish.
KILLS = 2


def finish(world: World, row: str, stage: str, folder: Path, faults: list[dict[str, object]]) -> None:
    """The same command again; judge and note every fault that hit the experiment before."""
    before = world.marks(folder, stage)
    code = world.server.run(stage, folder, SERIAL)
    after = world.marks(folder, stage)
    redone = sum(after.get(block) != done for block, done in before.items())
    whole = world.is_whole(stage, folder)
    for fault in faults:
        world.note(row, stage=stage, **fault, **world.outcome(folder, resumed=code == 0, whole=whole, redone=redone))
    assert (code, whole) == (0, True)
    assert redone == 0, "finished blocks were done again"
    assert {str(number) for number in range(BLOCKS)} <= set(after)
    world.remove(folder)


@pytest.mark.parametrize("point", POINTS)
def test_f2_killed_at_a_named_point_of_a_commit(world: World, point: str) -> None:
    for number in range(count(3, 25)):
        stage = POINTS[point][number % len(POINTS[point])]
        # With MongoDB, rows and marks are no files that are renamed.
        store = "files" if "rename" in point else store_of(number)
        folder, left, faults = world.before(stage, f"f2-{point}-{number}", store), BLOCKS, []
        for seed in seeds(f"F2 {point} {number}", KILLS, KILLS):
            nth = random.Random(seed).randrange(1, left // 2 + 1)
            before = world.marks(folder, stage)
            code = world.server.run(stage, folder, SERIAL, harm={point: nth})
            assert code == -signal.SIGKILL, f"{stage} did not come to {point!r} {nth} times: {code}"
            after = world.marks(folder, stage)
            redone = sum(after.get(block) != done for block, done in before.items())
            faults.append({"point": point, "nth": nth, "seed": seed, "done_before": len(after), "equal": redone == 0})
            left = BLOCKS - len(after)
        finish(world, "F2", stage, folder, faults)


def blocks_at_once(number: int) -> int:
    """How many blocks the workers of the nth fault of a row have at once: on GPUs several, on CPUs one."""
    return 3 if number % 2 == 0 else 1


def kill_a_worker(pid: int, chance: random.Random) -> bool:
    """SIGKILL one of the workers that a coordinator has now; False if it has none, or it ended by itself meanwhile."""
    try:
        (nursery,) = psutil.Process(pid).children()
        chance.choice(nursery.children()).kill()
    except (psutil.NoSuchProcess, IndexError, ValueError):
        return False
    return True


def test_f1_workers_killed_at_random_moments(world: World) -> None:
    """Three kills in each run."""
    for number, seed in enumerate(seeds("F1", 7, 167)):
        chance, stage = random.Random(seed), KILLED[number % len(KILLED)]
        folder, at_once = world.before(stage, f"f1-{number}", store_of(number)), blocks_at_once(number)
        pid = world.server.start(stage, folder, *DAISY, harm={"slow": slow_ms(BLOCKS), "at once": at_once})
        moments = sorted(chance.sample(range(1, BLOCKS - 8), 3))
        for least in moments:
            wait_for("blocks", lambda f=folder, s=stage, n=least: world.count_done(f, s) >= n)
            wait_for("a worker to kill", lambda p=pid, c=chance: kill_a_worker(p, c))
        code = world.server.wait(pid)
        whole = world.is_whole(stage, folder)
        for least in moments:
            outcome = world.outcome(folder, resumed=code == 0, whole=whole)
            world.note("F1", stage=stage, seed=seed, at_once=at_once, after_blocks=least, **outcome)
        assert (code, whole) == (0, True)
        world.remove(folder)


@pytest.mark.parametrize("row", ["F3", "F4"])
def test_f3_f4_coordinator_stopped_or_killed(world: World, row: str) -> None:
    for number in range(count(5, 100)):
        stage = KILLED[number % len(KILLED)]
        folder, faults = world.before(stage, f"{row}-{number}", store_of(number)), []
        for seed in seeds(f"{row} {number}", KILLS, KILLS):
            chance, done = random.Random(seed), world.count_done(folder, stage)
            settings = DAISY if chance.random() < 0.5 else (SERIAL,)
            harm = {"slow": slow_ms(BLOCKS - done), "at once": blocks_at_once(number)}
            pid = world.server.start(stage, folder, *settings, harm=harm)
            least = done + chance.randrange(1, (BLOCKS - done) // 2)
            wait_for("blocks", lambda f=folder, s=stage, n=least: world.count_done(f, s) >= n)
            sent = signal.SIGKILL if row == "F4" else chance.choice([signal.SIGTERM, signal.SIGUSR2])
            faults.append({"seed": seed, "signal": int(sent), "runner": settings[0], **stop(world, pid, sent)})
        finish(world, row, stage, folder, faults)


def stop(world: World, pid: int, number: signal.Signals) -> dict[str, object]:
    """Signal a coordinator; it ends as it must, and so do its workers. The seconds until then."""
    workers = [worker.pid for worker in workers_of(pid)]
    sent = time.monotonic()
    os.kill(pid, number)
    code = world.server.wait(pid)
    stopped_s = time.monotonic() - sent
    wait_for("orphans gone", lambda: not any(is_alive(worker) for worker in workers))
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 75)
    assert stopped_s < 30
    return {"stopped_s": round(stopped_s, 2), "orphans_s": round(time.monotonic() - sent, 2)}


def test_f19_workers_that_die_at_one_block_in_seven_leave_the_same_bits(world: World) -> None:
    for number, seed in enumerate(seeds("F19", 1, 20)):
        stage = KILLED[number % len(KILLED)]
        folder = world.before(stage, f"f19-{number}", store_of(number))
        began, died = time.monotonic(), folder.with_suffix(".deaths")
        harm = {"deaths": [seed, str(died)], "at once": blocks_at_once(number)}
        code = world.server.run(stage, folder, *DAISY, harm=harm)
        took_s, deaths = time.monotonic() - began, died.stat().st_size
        whole = world.is_whole(stage, folder)
        facts = {"seed": seed, "took_s": round(took_s, 2), "deaths": deaths}
        world.note("F19", stage=stage, **facts, **world.outcome(folder, resumed=code == 0, whole=whole))
        assert (code, whole) == (0, True)
        assert deaths > 0
        world.remove(folder)
