"""F2, F4 in a stage of several passes: agglomerate of seamless fragments (faces, super-blocks up and down)."""

from __future__ import annotations

import os
import random
import shutil
import signal
from pathlib import Path

import pytest
from harness import (
    BLOCKS,
    DAISY,
    SERIAL,
    TABLES,
    World,
    identity,
    is_alive,
    marks_of,
    seeds,
    slow_ms,
    wait_for,
    workers_of,
)

STAGE = "agglomerate"
SEAMLESS = TABLES.replace('id_mode = "blocks"', 'id_mode = "seamless"') + '[agglomerate]\nsuper_block = "16 vox"\n'
POINTS = ("before rows", "after rows", "before mark", "after mark", "before rename")


@pytest.fixture(scope="module")
def made(world: World) -> Path:
    """An experiment whose undisturbed serial run has made the edges; beside it the one before."""
    folder = world.before("watershed", "seamless")
    (folder / "experiment.toml").write_text(SEAMLESS)
    assert world.server.run_here("watershed", folder, SERIAL) == 0
    shutil.copytree(folder, folder.with_name("seamless-before"))
    assert world.server.run_here(STAGE, folder, SERIAL) == 0
    return folder


def commits(folder: Path) -> dict[tuple[str, int], float]:
    """Every finished block of every pass -> when it was done."""
    works = {marks.folder.name: marks.records() for marks in marks_of(folder, STAGE)}
    return {(work, n): record["finished"] for work, records in works.items() for n, record in records.items()}


def test_killed_in_any_pass_the_same_command_leaves_the_same_bits(world: World, made: Path) -> None:
    total = len(commits(made))
    assert len(marks_of(made, STAGE)) == 4
    assert total > BLOCKS + 8
    for number, seed in enumerate(seeds("F2 seamless", 6, 60)):
        chance, folder = random.Random(seed), made.with_name(f"seamless-{number}")
        shutil.copytree(made.with_name("seamless-before"), folder)
        for _ in range(3):
            before = commits(folder)
            if total - len(before) < 3:
                break
            killed(world, folder, chance, total)
            after = commits(folder)
            assert all(after[block] == done for block, done in before.items()), "finished blocks were done again"
        before = commits(folder)
        code = world.server.run(STAGE, folder, SERIAL)
        after = commits(folder)
        whole = world.server.run(STAGE, folder, SERIAL, verb="verify") == 0 and bool(identity(folder, STAGE))
        same = identity(folder, STAGE) == identity(made, STAGE)
        world.note(
            "F2", stage=STAGE, seed=seed, kind="seamless", store="files", resumed=code == 0, whole=whole and same
        )
        assert (code, whole, same, len(after)) == (0, True, True, total)
        assert all(after[block] == done for block, done in before.items()), "finished blocks were done again"
        shutil.rmtree(folder)


def killed(world: World, folder: Path, chance: random.Random, total: int) -> None:
    """SIGKILL the stage: at a point of one of its commits, or its coordinator while workers are at work."""
    done = len(commits(folder))
    if chance.random() < 0.6:
        nth = chance.randrange(1, total - done)
        code = world.server.run(STAGE, folder, SERIAL, harm={chance.choice(POINTS): nth})
    else:
        pid = world.server.start(STAGE, folder, *DAISY, harm={"slow": slow_ms(total - done)})
        least = done + chance.randrange(0, max(1, (total - done) // 2))
        wait_for("blocks", lambda: len(commits(folder)) >= least)
        workers = [worker.pid for worker in workers_of(pid)]
        os.kill(pid, signal.SIGKILL)
        code = world.server.wait(pid)
        wait_for("orphans gone", lambda: not any(is_alive(worker) for worker in workers))
    assert code == -signal.SIGKILL
