"""F7, F8, F9: the database is killed and comes back, stays away too long; the network is cut.

Required: the bits of the undisturbed run; whatever the database acknowledged is there after every restart.
"""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest
from cluster import Cluster
from harness import BLOCKS, DAISY, SERIAL, STAGES, World, seeds, slow_ms, store_of, wait_for
from proxy import Proxy

# Stages whose rows are in the database; segment has its marks there.
WITH_ROWS = ("watershed", "agglomerate", "evaluate")
KILLS = 3
SHORT_S, LONG_S = 0.1, 4.0


def acknowledged(path: Path) -> list[tuple[str, int]]:
    """Writes that the database acknowledged to the workers."""
    lines = path.read_text().splitlines() if path.exists() else []
    return [(record["did"], int(record["block"])) for record in map(json.loads, lines)]


def marked(path: Path) -> int:
    return sum(did == "mark_done" for did, _ in acknowledged(path))


def missing(world: World, folder: Path, stage: str, writes: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Acknowledged writes that the database does not hold."""
    done = {int(block.rpartition("/")[2]) for block in world.marks(folder, stage)}
    with world.databases.mongod.admin() as client:
        headers = list(client[folder.name]["lsdflow_rows"].find())
        found = {("mark_done", block) for block in done}
        for header in headers:
            collection, block = header["collection"], int(header["block"])
            there = client[folder.name][collection].count_documents({"key": header["key"], "block": block})
            if there == header["rows"]:
                found.add((f"write_{collection.split('_')[0]}", block))
    return sorted(set(writes) - found)


def test_f7_a_killed_database_keeps_what_it_acknowledged_and_the_run_continues(world: World, tmp_path: Path) -> None:
    """Three kills in each run, with short and long pauses."""
    mongod = world.databases.mongod
    for number, seed in enumerate(seeds("F7", 4, 67)):
        chance, stage = random.Random(seed), WITH_ROWS[number % len(WITH_ROWS)]
        folder, log = world.before(stage, f"f7-{number}", "mongo"), tmp_path / f"{number}.jsonl"
        settings = DAISY if number % 2 else (SERIAL,)
        pid = world.server.start(stage, folder, *settings, harm={"slow": slow_ms(BLOCKS), "acknowledged": str(log)})
        moments, lost, faults = sorted(chance.sample(range(1, BLOCKS - 8), KILLS)), [], []
        for least in moments:
            wait_for("blocks", lambda path=log, n=least: marked(path) >= n)
            mongod.kill()
            writes, pause_s = acknowledged(log), LONG_S if chance.random() < 0.15 else SHORT_S
            time.sleep(pause_s)
            mongod.start()
            lost += missing(world, folder, stage, writes)
            faults.append({"after_blocks": least, "pause_s": pause_s, "acknowledged": len(writes)})
        code = world.server.wait(pid)
        lost += missing(world, folder, stage, acknowledged(log))
        redone, whole = marked(log) - len(world.marks(folder, stage)), world.is_whole(stage, folder)
        for fault in faults:
            outcome = world.outcome(folder, resumed=code == 0, whole=whole, lost=lost, redone=redone)
            world.note("F7", stage=stage, seed=seed, runner=settings[0], **fault, **outcome)
        assert (code, whole, lost, redone) == (0, True, [], 0)
        world.remove(folder)


@pytest.mark.proves("TRB-09")
def test_f8_a_database_that_stays_away_ends_the_run_with_69_and_the_next_resumes(world: World, tmp_path: Path) -> None:
    mongod = world.databases.mongod
    for number, seed in enumerate(seeds("F8", 3, 20)):
        chance, stage = random.Random(seed), WITH_ROWS[number % len(WITH_ROWS)]
        folder, log = world.before(stage, f"f8-{number}", "mongo", retry_s=1), tmp_path / f"{number}.jsonl"
        settings = (SERIAL,) if number % 2 else DAISY
        pid = world.server.start(stage, folder, *settings, harm={"slow": slow_ms(BLOCKS), "acknowledged": str(log)})
        least = chance.randrange(1, BLOCKS - 8)
        wait_for("blocks", lambda path=log, n=least: marked(path) >= n)
        mongod.kill()
        code = world.server.wait(pid)
        mongod.start()
        writes, before = acknowledged(log), world.marks(folder, stage)
        lost = missing(world, folder, stage, writes)
        resumed = world.server.run(stage, folder, SERIAL)
        redone = sum(world.marks(folder, stage).get(block) != when for block, when in before.items())
        whole = world.is_whole(stage, folder)
        facts = {"seed": seed, "runner": settings[0], "code": code, "acknowledged": len(writes)}
        outcome = {"detected": code == 69, "resumed": resumed == 0, "whole": whole, "lost": lost, "redone": redone}
        world.note("F8", stage=stage, **facts, **world.outcome(folder, **outcome))
        assert (code, resumed, whole, lost, redone) == (69, 0, True, [], 0)
        world.remove(folder)


def cut_s(chance: random.Random) -> float:
    """How long a network is cut: mostly shortly, now and then longer than the driver waits for an answer."""
    return chance.choice([0.3, 0.3, 1.0, 1.0, 2.0, 6.0])


def test_f9_a_network_cut_between_workers_and_database_leaves_the_same_bits(world: World) -> None:
    proxy = Proxy(world.databases.mongod.port)
    for number, seed in enumerate(seeds("F9 database", 3, 50)):
        chance, stage = random.Random(seed), STAGES[number % len(STAGES)]
        folder = world.before(stage, f"f9-database-{number}", "mongo", port=proxy.port)
        settings, kind = (SERIAL,) if number % 2 else DAISY, ("closed", "silent")[number // 2 % 2]
        pid = world.server.start(stage, folder, *settings, harm={"slow": slow_ms(BLOCKS)})
        least, seconds = chance.randrange(1, BLOCKS - 8), cut_s(chance)
        wait_for("blocks", lambda f=folder, s=stage, n=least: world.count_done(f, s) >= n)
        proxy.cut(kind)
        time.sleep(seconds)
        proxy.heal()
        code = world.server.wait(pid)
        whole = world.is_whole(stage, folder)
        facts = {"seed": seed, "between": "worker and database", "kind": kind, "cut_s": seconds}
        world.note("F9", stage=stage, **facts, **world.outcome(folder, resumed=code == 0, whole=whole))
        assert (code, whole) == (0, True)
        world.remove(folder)
    proxy.close()


@pytest.mark.parametrize("kind", ["silent", "closed"])
def test_f9_a_network_cut_between_workers_and_coordinator_leaves_the_same_bits(world: World, kind: str) -> None:
    for number, seed in enumerate(seeds(f"F9 coordinator {kind}", 1, 25)):
        chance, stage = random.Random(seed), STAGES[number % len(STAGES)]
        folder = world.before(stage, f"f9-{kind}-{number}", store_of(number))
        cluster = Cluster(world, stage, folder)
        proxy = Proxy(int(cluster.coordinator_file()["port"]))
        cluster.tell_workers(port=proxy.port)
        for _ in range(2):
            cluster.join({"slow": 25})
        least, seconds = chance.randrange(1, BLOCKS - 8), min(2.0, cut_s(chance))
        wait_for("blocks", lambda f=folder, s=stage, n=least: world.count_done(f, s) >= n)
        proxy.cut(kind)  # type: ignore[arg-type]
        time.sleep(seconds)
        proxy.heal()
        codes, whole = cluster.end(), world.is_whole(stage, folder)
        proxy.close()
        facts = {"seed": seed, "between": "worker and coordinator", "kind": kind, "cut_s": seconds}
        world.note("F9", stage=stage, **facts, **world.outcome(folder, resumed=codes == {0}, whole=whole))
        assert (codes, whole) == ({0}, True)
        world.remove(folder)
