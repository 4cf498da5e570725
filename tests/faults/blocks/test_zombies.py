"""F6, F15, F17, F26: processes that were taken for dead and come back; clocks that are wrong.

Required: the bits of the undisturbed run; what exists is not written again by a late worker, and the log says so.
"""

from __future__ import annotations

import json
import os
import random
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from cluster import Cluster
from harness import BLOCKS, DAISY, SERIAL, STAGES, World, count, seeds, store_of, wait_for

from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import current_key

# evaluate does the same with its blocks, and takes longer to make its report.
BLOCKWISE = STAGES[:3]
LOCK_S = 1.0


def is_stopped(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    return False


def wake_when_done(world: World, stage: str, folder: Path, left: Path) -> tuple[str, float]:
    """Wait until another process did a stopped process's block, then let it continue; the block and its time."""
    wait_for(f"somebody to stop in block {left.name}", lambda: left.exists() and left.read_text() != "")
    pid = int(left.read_text())
    wait_for("the process to stop", lambda: is_stopped(pid))
    wait_for("another to do its block", lambda: left.name in world.marks(folder, stage))
    done = world.marks(folder, stage)[left.name]
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    return left.name, done


@pytest.mark.parametrize("harm", ["stop", "cut off"])
def test_f6_a_worker_that_comes_back_after_its_block_was_done_by_another_writes_nothing(
    world: World, tmp_path: Path, harm: str
) -> None:
    """Stopped past the block's time-out, or cut off from the coordinator; two such workers in each run."""
    for number, seed in enumerate(seeds(f"F6 {harm}", 2, 25)):
        chance, stage = random.Random(seed), BLOCKWISE[number % len(BLOCKWISE)]
        folder, flags = world.before(stage, f"f6-{harm}-{number}", store_of(number)), tmp_path / str(number)
        flags.mkdir()
        blocks, length_before = chance.sample(range(BLOCKS // 2), 2), len(world.server.output())
        timeout = "compute.block_timeout_s=1.5" if harm == "stop" else "compute.block_timeout_s=60"
        cluster = Cluster(world, stage, folder, timeout)
        for _ in range(3):
            cluster.join({harm: [blocks, str(flags)], "slow": 4000 // BLOCKS if harm == "stop" else 10})
        done = {}
        for block in blocks:
            left = flags / str(block)
            if harm == "stop":
                done.update([wake_when_done(world, stage, folder, left)])
        codes = cluster.end()
        after = world.marks(folder, stage)
        redone = sum(after[block] != when for block, when in done.items())
        refused = world.server.output()[length_before:].count("was finished by another attempt")
        whole = world.is_whole(stage, folder)
        # One that slept past the time-out is ended by daisy's own watch, or comes to its commit and is refused.
        noticed = refused == len(blocks) or harm == "stop"
        facts = {"seed": seed, "kind": harm, "refused": refused}
        for block in blocks:
            outcome = world.outcome(folder, resumed=codes == {0}, whole=whole, redone=redone, detected=noticed)
            world.note("F6", stage=stage, block=block, **facts, **outcome)
        assert (codes, whole, redone, noticed) == ({0}, True, 0, True)
        world.remove(folder)


@pytest.mark.parametrize("runner", ["serial", "daisy"])
def test_f15_a_coordinator_that_slept_longer_than_its_lock_gives_way_to_its_successor(
    world: World, runner: str
) -> None:
    """The whole machine sleeps: coordinator and workers."""
    for number, seed in enumerate(seeds(f"F15 {runner}", 2, 10)):
        chance, stage = random.Random(seed), BLOCKWISE[number % len(BLOCKWISE)]
        folder, settings = world.before(stage, f"f15-{runner}-{number}", store_of(number)), DAISY
        settings = DAISY if runner == "daisy" else (SERIAL,)
        harm = {"lock": LOCK_S, "slow": 25}
        first = world.server.start(stage, folder, *settings, harm=harm)
        least = chance.randrange(1, BLOCKS // 2)
        wait_for("blocks", lambda f=folder, s=stage, n=least: world.count_done(f, s) >= n)
        os.killpg(first, signal.SIGSTOP)
        held = folder / "runs" / stage / "lock"
        wait_for("the lock to expire", lambda h=held: age_s(h) > 1.1 * LOCK_S)
        before = world.marks(folder, stage)
        second = world.server.start(stage, folder, *settings, harm=harm)
        ends = chance.random() < 0.5
        if ends:
            codes = [world.server.wait(second)]
        else:
            least = len(before) + 2
            wait_for("blocks of the second", lambda f=folder, s=stage, n=least: world.count_done(f, s) > n)
        os.killpg(first, signal.SIGCONT)
        codes = [world.server.wait(first), *(codes if ends else [world.server.wait(second)])]
        after, whole = world.marks(folder, stage), world.is_whole(stage, folder)
        redone = sum(after.get(block) != when for block, when in before.items())
        facts = {"seed": seed, "runner": runner, "woken": "after the end" if ends else "meanwhile", "codes": codes}
        outcome = world.outcome(folder, resumed=codes[1] == 0, detected=codes[0] == 73, whole=whole, redone=redone)
        world.note("F15", stage=stage, **facts, **outcome)
        assert (codes, whole, redone) == ([73, 0], True, 0)
        world.remove(folder)


def age_s(path: Path) -> float:
    """Seconds since a file was written, by the clock of its disk."""
    probe = path.with_name(".now")
    probe.touch()
    return probe.stat().st_mtime - path.stat().st_mtime


CLOCKS = (
    ({"clock": 3600}, {"clock": -3600}),
    ({"clock": -3600}, {"clock": 3600}),
    ({"clock back": 40}, {"clock": 0}),
)


def test_f17_wrong_clocks_change_neither_locks_nor_results(world: World) -> None:
    """A second coordinator is refused, and takes over once the first is dead, whatever their clocks say."""
    for number in range(count(3, 20)):
        stage, (one, other) = BLOCKWISE[number % len(BLOCKWISE)], CLOCKS[number % len(CLOCKS)]
        folder = world.before(stage, f"f17-{number}", store_of(number))
        settings = DAISY if number % 2 else (SERIAL,)
        first = world.server.start(stage, folder, *settings, harm={**one, "slow": 25})
        wait_for("blocks", lambda f=folder, s=stage: world.count_done(f, s) > 2)
        refused = world.server.run(stage, folder, *settings, harm=other)
        os.kill(first, signal.SIGKILL)
        world.server.wait(first)
        before = world.marks(folder, stage)
        code = world.server.run(stage, folder, *settings, harm=other)
        redone = sum(world.marks(folder, stage).get(block) != when for block, when in before.items())
        whole = world.is_whole(stage, folder)
        facts = {"clocks": json.dumps([one, other]), "runner": settings[0]}
        outcome = world.outcome(folder, detected=refused == 73, resumed=code == 0, whole=whole, redone=redone)
        world.note("F17", stage=stage, **facts, **outcome)
        assert (refused, code, whole, redone) == (73, 0, True, 0)
        world.remove(folder)


def test_f26_a_late_worker_of_other_parameters_changes_no_voxel_of_the_result_that_counts(
    world: World, tmp_path: Path
) -> None:
    """It stops in the middle of a write; its coordinator dies; other parameters run and are verified; it continues."""
    for number, seed in enumerate(seeds("F26", 2, 20)):
        chance, folder = random.Random(seed), world.before("watershed", f"f26-{number}", store_of(number))
        flags = tmp_path / str(number)
        flags.mkdir()
        block = chance.randrange(BLOCKS)
        cluster = Cluster(world, "watershed", folder, "watershed.filter_fragments=0.2", "compute.block_timeout_s=60")
        worker = cluster.join({"stop in": [[block], str(flags)]})
        left = flags / str(block)
        wait_for("the worker to stop in a write", lambda f=left: f.exists() and f.read_text() != "")
        late = int(left.read_text())
        wait_for("the process to stop", lambda p=late: is_stopped(p))
        os.kill(cluster.coordinator, signal.SIGKILL)
        world.server.wait(cluster.coordinator)
        code = world.server.run("watershed", folder, SERIAL, harm={"lock": LOCK_S})
        whole, before = world.is_whole("watershed", folder), voxels(folder)
        os.kill(late, signal.SIGCONT)
        wait_for("its block to be written", lambda f=folder, b=before: len(voxels(f, every=True)) > len(b))
        os.kill(worker, signal.SIGKILL)
        world.server.wait(worker)
        same = voxels(folder) == before and world.is_whole("watershed", folder)
        facts = {"seed": seed, "block": block}
        world.note("F26", stage="watershed", **facts, **world.outcome(folder, resumed=code == 0, whole=whole and same))
        assert (code, whole, same) == (0, True, True)
        world.remove(folder)


def voxels(folder: Path, *, every: bool = False) -> dict[str, bytes]:
    """The chunks of the current fragments, or of all results of watershed."""
    layout = ExperimentLayout(folder)
    result = layout.results / "watershed" if every else layout.result("watershed", current_key(layout, "watershed"))
    chunks = (path for path in result.rglob("c/**/*") if path.is_file() and not path.name.startswith("."))
    return {str(path): path.read_bytes() for path in chunks}


def test_f6_a_block_of_a_frozen_worker_is_done_although_the_others_had_found_nothing_left(
    world: World, tmp_path: Path
) -> None:
    """The last block: when its time-out gives it back, no other worker is at work any more."""
    for number, stage in enumerate(BLOCKWISE[: count(1, 3)]):
        folder, flags = world.before(stage, f"f6-last-{number}", store_of(number)), tmp_path / str(number)
        flags.mkdir()
        cluster = Cluster(world, stage, folder, "compute.block_timeout_s=1.5")
        for _ in range(2):
            cluster.join({"stop": [[BLOCKS - 1], str(flags)], "slow": 10})
        wake_when_done(world, stage, folder, flags / str(BLOCKS - 1))
        codes, whole = cluster.end(), world.is_whole(stage, folder)
        outcome = world.outcome(folder, resumed=codes == {0}, whole=whole)
        world.note("F6", stage=stage, block=BLOCKS - 1, kind="stop, the last block", **outcome)
        assert (codes, whole) == ({0}, True)
        world.remove(folder)
