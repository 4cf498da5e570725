"""F1 to F4: SIGKILL of workers, of the coordinator, at points of a commit; signals to stop. Then the same command.

Required: the bits of the undisturbed serial run; what was done before the fault is not done again, but for the blocks
that were under way; nobody has to do anything but to repeat the command.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable

import psutil
import pytest
from harness import BLOCKS, STAGES, World, is_alive, marks, seeds, workers_of

SERIAL, DAISY = "compute.runner=serial", ("compute.runner=daisy", "compute.workers=2")
POINTS = {
    "before chunks": ("watershed", "segment"),
    "after chunks": ("watershed", "segment"),
    "before rows": ("watershed", "agglomerate"),
    "after rows": ("watershed", "agglomerate"),
    "before mark": STAGES,
    "after mark": STAGES,
    "before rename": STAGES,
    "after rename": STAGES,
}


def finish(world: World, row: str, stage: str, folder: object, before: dict[str, float], **facts: object) -> None:
    """The same command again; judge and note."""
    code = world.server.run(stage, folder, SERIAL)
    after = marks(folder, stage)
    redone = sum(after.get(block) != done for block, done in before.items())
    whole = world.is_whole(stage, folder)
    outcome = {"stage": stage, "done_before": len(before), "redone": redone, "resumed": code == 0, "whole": whole}
    world.note(row, **facts, **outcome)
    assert (code, whole) == (0, True)
    assert redone == 0, "finished blocks were done again"
    assert len(after) == BLOCKS
    shutil.rmtree(folder)


@pytest.mark.parametrize("point", POINTS)
def test_f2_killed_at_a_named_point_of_a_commit(world: World, point: str) -> None:
    for number, seed in enumerate(seeds(f"F2 {point}", 5, 50)):
        stage = POINTS[point][number % len(POINTS[point])]
        nth = random.Random(seed).randrange(1, BLOCKS + 1)
        folder = world.before(stage, f"f2-{point.replace(' ', '-')}-{number}")
        code = world.server.run(stage, folder, SERIAL, point=point, nth=nth)
        assert code == -signal.SIGKILL, f"{stage} did not come to {point!r} {nth} times: {code}"
        finish(world, "F2", stage, folder, marks(folder, stage), point=point, nth=nth, seed=seed)


def wait_for(what: str, true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.01)


def kill_a_worker(pid: int, chance: random.Random) -> bool:
    """SIGKILL one of the workers that a coordinator has now; False if it has none, or it ended by itself meanwhile."""
    try:
        chance.choice(psutil.Process(pid).children()).kill()
    except (psutil.NoSuchProcess, IndexError):
        return False
    return True


def test_f1_workers_killed_at_random_moments(world: World) -> None:
    """Three kills in each run."""
    for number, seed in enumerate(seeds("F1", 7, 167)):
        chance, stage = random.Random(seed), STAGES[number % len(STAGES)]
        folder = world.before(stage, f"f1-{number}")
        pid = world.server.start(stage, folder, *DAISY, point="slow", nth=30)
        moments = sorted(chance.sample(range(1, BLOCKS - 8), 3))
        for least in moments:
            wait_for("blocks", lambda f=folder, s=stage, n=least: len(marks(f, s)) >= n)
            wait_for("a worker to kill", lambda p=pid, c=chance: kill_a_worker(p, c))
        code = world.server.wait(pid)
        whole = world.is_whole(stage, folder)
        for least in moments:
            world.note("F1", stage=stage, seed=seed, after_blocks=least, resumed=code == 0, whole=whole)
        assert (code, whole) == (0, True)
        shutil.rmtree(folder)


@pytest.mark.parametrize("row", ["F3", "F4"])
def test_f3_f4_coordinator_told_to_stop_or_killed(world: World, row: str) -> None:
    for number, seed in enumerate(seeds(row, 10, 200)):
        chance, stage = random.Random(seed), STAGES[number % len(STAGES)]
        folder = world.before(stage, f"{row.lower()}-{number}")
        settings = DAISY if number % 2 else (SERIAL,)
        pid = world.server.start(stage, folder, *settings, point="slow", nth=15)
        least = chance.randrange(1, BLOCKS - 8)
        wait_for("blocks", lambda f=folder, s=stage, n=least: len(marks(f, s)) >= n)
        workers = [w.pid for w in workers_of(pid)]
        number_sent = signal.SIGKILL if row == "F4" else chance.choice([signal.SIGTERM, signal.SIGUSR2])
        sent = time.monotonic()
        os.kill(pid, number_sent)
        code = world.server.wait(pid)
        stopped_s = time.monotonic() - sent
        wait_for("orphans gone", lambda w=workers: not any(is_alive(p) for p in w))
        assert code == (-signal.SIGKILL if row == "F4" else 75)
        assert stopped_s < 30
        before = marks(folder, stage)
        facts = {"seed": seed, "signal": int(number_sent), "stopped_s": round(stopped_s, 2)}
        finish(world, row, stage, folder, before, **facts)
