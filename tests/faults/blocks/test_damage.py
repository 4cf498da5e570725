"""F12, F13: data is deleted, cut, changed or left over: found, named, and repaired alone; refused by the next stage."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import BLOCKS, SERIAL, STAGES, World, identity, seeds, store_of

Damage = Callable[[Path, random.Random], None]


def delete(path: Path, _chance: random.Random) -> None:
    path.unlink()


def truncate(path: Path, chance: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: chance.randrange(len(content))])


def flip(path: Path, chance: random.Random) -> None:
    """One bit, anywhere in what holds values (a Parquet footer has bits that mean nothing)."""
    content = bytearray(path.read_bytes())
    last = len(content) if path.suffix != ".parquet" else len(content) // 3
    content[chance.randrange(4, last)] ^= 1 << chance.randrange(8)
    path.write_bytes(content)


def data_of(folder: Path, stage: str) -> list[Path]:
    """Chunks and rows of a stage's blocks."""
    rows = {"watershed": ["nodes"], "agglomerate": ["edges_hist_quant_75"], "evaluate": ["overlaps_roi"]}
    chunks = [p for p in (folder / "results" / stage).glob("*/*.zarr/**/*") if p.is_file() and p.name != "zarr.json"]
    return sorted([*chunks, *(p for n in rows.get(stage, []) for p in (folder / "store" / n).rglob("*.parquet"))])


def repair(world: World, stage: str, folder: Path) -> tuple[int, int, bool]:
    """Exit codes of verify and repair, and whether all is well then."""
    found = world.server.run(stage, folder, SERIAL, verb="verify")
    repaired = world.server.run(stage, folder, SERIAL, verb="repair")
    return found, repaired, world.is_whole(stage, folder)


def redone(world: World, stage: str, folder: Path, before: dict[str, float]) -> int:
    after = world.marks(folder, stage)
    return len([block for block in after if after[block] != before.get(block)])


@pytest.mark.parametrize("damage", [delete, truncate, flip])
def test_f12_damage_is_found_named_and_repaired_alone(world: World, damage: Damage) -> None:
    injected, noticed = seeds(f"F12 {damage.__name__}", 5, 50), 0
    for number, seed in enumerate(injected):
        chance, stage = random.Random(seed), STAGES[number % len(STAGES)]
        folder = world.finished(stage, f"f12-{damage.__name__}-{number}")
        before, victim = world.marks(folder, stage), chance.choice(data_of(folder, stage))
        content = victim.read_bytes()
        damage(victim, chance)
        found, repaired, whole = repair(world, stage, folder)
        facts = {"stage": stage, "seed": seed, "kind": damage.__name__, "file": str(victim.relative_to(folder))}
        # Some bits of a file say nothing about its values: then what is read is what was written.
        made = redone(world, stage, folder, before)
        harmless = damage is flip and found == 0 and made == 0
        noticed += not harmless
        outcome = {"detected": found == 65 or harmless, "resumed": repaired == 0, "whole": whole}
        world.note("F12", **facts, **world.outcome(folder, **outcome, redone=max(0, made - 1)))
        assert (found == 65 or harmless, repaired, whole) == (True, 0, True), facts
        assert harmless or (victim.read_bytes() == content and made == 1), "one block is made again"
        world.remove(folder)
    assert noticed >= len(injected) / 2


ROWS = {"watershed": "nodes", "agglomerate": "edges_hist_quant_75", "evaluate": "overlaps_roi"}
VALUES = {"nodes": "size", "edges_hist_quant_75": "u", "overlaps_roi": "size"}


@pytest.mark.parametrize("kind", ["a row deleted", "a value changed", "the header deleted"])
def test_f12_damaged_rows_in_mongodb_are_found_and_repaired_alone(world: World, kind: str) -> None:
    for number, seed in enumerate(seeds(f"F12 mongo {kind}", 3, 20)):
        chance, stage = random.Random(seed), tuple(ROWS)[number % len(ROWS)]
        folder = world.finished(stage, f"f12-{kind}-{number}", "mongo")
        before = world.marks(folder, stage)
        with world.databases.mongod.admin() as client:
            damage_rows(client[folder.name], ROWS[stage], kind, chance)
        found, repaired, whole = repair(world, stage, folder)
        made = redone(world, stage, folder, before)
        outcome = {"detected": found == 65, "resumed": repaired == 0, "whole": whole, "redone": max(0, made - 1)}
        world.note("F12", stage=stage, seed=seed, kind=kind, **world.outcome(folder, **outcome))
        assert (found, repaired, whole, made) == (65, 0, True, 1)
        world.remove(folder)


def damage_rows(database: Any, collection: str, kind: str, chance: random.Random) -> None:
    headers = database["lsdflow_rows"]
    if kind == "the header deleted":
        headers.delete_one({"_id": chance.choice([d["_id"] for d in headers.find({"collection": collection})])})
        return
    row = chance.choice([d["_id"] for d in database[collection].find()])
    if kind == "a row deleted":
        database[collection].delete_one({"_id": row})
    else:
        database[collection].update_one({"_id": row}, {"$inc": {VALUES[collection]: 1}})


@pytest.mark.parametrize("damage", [delete, truncate])
def test_f12_the_next_stage_refuses_lost_or_cut_data_and_writes_no_result(world: World, damage: Damage) -> None:
    for number, seed in enumerate(seeds(f"F12 next {damage.__name__}", 2, 20)):
        chance, stage = random.Random(seed), "agglomerate"
        folder = world.before(stage, f"f12-next-{damage.__name__}-{number}", store_of(number))
        victim = chance.choice([p for p in data_of(folder, "watershed") if p.suffix != ".parquet"])
        damage(victim, chance)
        before = world.server.output()
        code = world.server.run(stage, folder, SERIAL)
        output = world.server.output().removeprefix(before)
        kind = f"{damage.__name__}, next stage"
        world.note("F12", stage=stage, seed=seed, kind=kind, **world.outcome(folder, detected=code == 65))
        assert code == 65
        assert identity(folder, stage) == ""
        # A lost chunk is named by its file, one that cannot be read by its array and voxels.
        assert str(victim if damage is delete else "fragments.zarr") in output
        assert "z[" in output
        world.remove(folder)


def test_f13_what_a_killed_run_left_half_made_changes_nothing(world: World) -> None:
    for number, seed in enumerate(seeds("F13", 6, 21)):
        chance, stage = random.Random(seed), STAGES[number % len(STAGES)]
        folder = world.before(stage, f"f13-{number}", store_of(number))
        nth = chance.randrange(BLOCKS // 3, BLOCKS)
        assert world.server.run(stage, folder, SERIAL, harm={"before mark": nth}) == -9
        there = data_of(folder, stage)
        for path in chance.sample(there, min(2, len(there))):
            (path.parent / f"{path.name}.{chance.randrange(10**6)}.partial").write_bytes(b"half of a chunk")
            (path.parent / f".{path.name}.{chance.randrange(10**6)}.partial").write_bytes(path.read_bytes()[:50])
        if store_of(number) == "mongo" and stage in ROWS:
            with world.databases.mongod.admin() as client:
                leave_half_of_the_rows(client[folder.name], ROWS[stage])
        code = world.server.run(stage, folder, SERIAL)
        whole = world.is_whole(stage, folder)
        world.note("F13", stage=stage, seed=seed, **world.outcome(folder, resumed=code == 0, whole=whole))
        assert (code, whole) == (0, True)
        world.remove(folder)


def leave_half_of_the_rows(database: Any, collection: str) -> None:
    """As a writer leaves them that was killed between two requests: rows of the last block, no header."""
    last = database["lsdflow_rows"].find_one({"collection": collection}, sort=[("block", -1)])
    database["lsdflow_rows"].delete_one({"_id": last["_id"]})
    first = database[collection].find_one({"block": last["block"]})
    if first is not None:
        database[collection].delete_one({"_id": first["_id"]})
