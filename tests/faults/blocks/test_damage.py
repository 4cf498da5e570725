"""F10 to F13, F24, F25: the disk fails; data is damaged, left over, finished, or made with other parameters."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import BLOCKS, STAGES, World, count, identity, marks, seeds, written

SERIAL = "compute.runner=serial"
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
    arrays = {"watershed": ["fragments.zarr"], "segment": ["segmentation.zarr"]}.get(stage, [])
    rows = {"watershed": ["nodes"], "agglomerate": ["edges_hist_quant_75"]}.get(stage, [])
    chunks = [p for name in arrays for p in (folder / name).rglob("*") if p.is_file() and p.name != "zarr.json"]
    return sorted([*chunks, *(p for name in rows for p in (folder / "store" / name).rglob("*.parquet"))])


@pytest.mark.parametrize("damage", [delete, truncate, flip])
def test_f12_damage_is_found_named_and_repaired_alone(world: World, damage: Damage) -> None:
    injected = seeds(f"F12 {damage.__name__}", 6, 51)
    noticed = 0
    for number, seed in enumerate(injected):
        chance, stage = random.Random(seed), STAGES[number % len(STAGES)]
        folder = world.finished(stage, f"f12-{damage.__name__}-{number}")
        before, victim = marks(folder, stage), chance.choice(data_of(folder, stage))
        content = victim.read_bytes()
        damage(victim, chance)
        found = world.server.run(stage, folder, SERIAL, verb="verify")
        repaired = world.server.run(stage, folder, SERIAL, verb="repair")
        whole = world.is_whole(stage, folder)
        facts = {"stage": stage, "seed": seed, "kind": damage.__name__, "file": str(victim.relative_to(folder))}
        # Some bits of a file say nothing about its values: then what is read is what was written.
        harmless = damage is flip and found == 0 and marks(folder, stage) == before
        noticed += not harmless
        world.note("F12", **facts, detected=found == 65 or harmless, resumed=repaired == 0, whole=whole)
        assert (found == 65 or harmless, repaired, whole) == (True, 0, True), facts
        if harmless:
            continue
        assert victim.read_bytes() == content
        after = marks(folder, stage)
        assert len({block for block in after if after[block] != before[block]}) == 1, "one block is made again"
        shutil.rmtree(folder)
    assert noticed >= len(injected) / 2


@pytest.mark.parametrize("damage", [delete, truncate])
def test_f12_the_next_stage_refuses_lost_or_cut_data_and_writes_no_result(world: World, damage: Damage) -> None:
    for number, seed in enumerate(seeds(f"F12 next {damage.__name__}", 2, 20)):
        chance, stage = random.Random(seed), "agglomerate"
        folder = world.before(stage, f"f12-next-{damage.__name__}-{number}")
        victim = chance.choice([p for p in data_of(folder, "watershed") if p.suffix != ".parquet"])
        damage(victim, chance)
        before = world.server.told()
        code = world.server.run(stage, folder, SERIAL)
        told = world.server.told().removeprefix(before)
        world.note("F12", stage=stage, seed=seed, kind=f"{damage.__name__}, next stage", detected=code == 65)
        assert code == 65
        assert identity(folder, stage) == ""
        # A lost chunk is named by its file, one that cannot be read by its array and voxels.
        assert str(victim if damage is delete else folder / "fragments.zarr") in told
        assert "z[" in told
        shutil.rmtree(folder)


def test_f13_what_a_killed_run_left_half_made_changes_nothing(world: World) -> None:
    for number, seed in enumerate(seeds("F13", 6, 21)):
        chance, stage = random.Random(seed), STAGES[number % len(STAGES)]
        folder = world.before(stage, f"f13-{number}")
        point = "before rename"
        assert world.server.run(stage, folder, SERIAL, point=point, nth=chance.randrange(BLOCKS // 3, BLOCKS)) == -9
        there = data_of(folder, stage)
        for path in chance.sample(there, min(2, len(there))):
            (path.parent / f"{path.name}.{chance.randrange(10**6)}.partial").write_bytes(b"half of a chunk")
            (path.parent / f".{path.name}.{chance.randrange(10**6)}.partial").write_bytes(path.read_bytes()[:50])
        code = world.server.run(stage, folder, SERIAL)
        whole = world.is_whole(stage, folder)
        world.note("F13", stage=stage, seed=seed, resumed=code == 0, whole=whole)
        assert (code, whole) == (0, True)
        shutil.rmtree(folder)


def test_f10_a_full_disk_ends_with_74_and_the_next_run_goes_on(world: World) -> None:
    for number, seed in enumerate(seeds("F10", 3, 30)):
        stage = STAGES[number % len(STAGES)]
        folder = world.before(stage, f"f10-{number}")
        before, nth = world.server.told(), random.Random(seed).randrange(1, 2 * BLOCKS)
        code = world.server.run(stage, folder, SERIAL, point="disk full", nth=nth)
        told = world.server.told().removeprefix(before)
        resumed = world.server.run(stage, folder, SERIAL)
        whole = world.is_whole(stage, folder)
        world.note("F10", stage=stage, seed=seed, detected=code == 74, resumed=resumed == 0, whole=whole)
        assert (code, resumed, whole) == (74, 0, True)
        assert "free some space" in told
        assert str(folder) in told
        shutil.rmtree(folder)


def test_f11_a_disk_that_fails_now_and_then_is_noticed_or_does_no_harm(world: World) -> None:
    for number, seed in enumerate(seeds("F11", 5, 100)):
        stage = STAGES[number % len(STAGES)]
        folder = world.before(stage, f"f11-{number}")
        codes = [world.server.run(stage, folder, SERIAL, point="disk flaky", nth=seed)]
        if codes != [0]:
            codes.append(world.server.run(stage, folder, SERIAL))
        whole = world.is_whole(stage, folder)
        world.note("F11", stage=stage, seed=seed, detected=codes[0] in (0, 74), resumed=codes[-1] == 0, whole=whole)
        assert codes in ([0], [74, 0]), codes
        assert whole
        shutil.rmtree(folder)


def test_f24_a_finished_stage_run_again_does_no_block_and_touches_nothing(world: World) -> None:
    for number in range(count(5, 20)):
        stage = STAGES[number % len(STAGES)]
        folder = world.finished(stage, f"f24-{number}")
        before, done = written(folder), marks(folder, stage)
        code = world.server.run(stage, folder, SERIAL)
        same = (written(folder), marks(folder, stage)) == (before, done)
        world.note("F24", stage=stage, resumed=code == 0, whole=same)
        assert (code, same, len(done)) == (0, True, BLOCKS)
        shutil.rmtree(folder)


CHANGED = (
    ("watershed", "watershed.min_seed_distance_vox=6"),
    ("watershed", "watershed.context=2 vox"),
    ("watershed", "watershed.block_shape=16 vox"),
    ("watershed", "watershed.filter_fragments=0.2"),
    ("watershed", "watershed.fragments_in_xy=true"),
    ("watershed", "watershed.epsilon_agglomerate=0.1"),
    ("segment", "segment.threshold=0.3"),
    ("segment", 'segment.roi={begin="0 vox", shape="16 vox"}'),
    ("segment", "segment.block_shape=16 vox"),
    ("segment", "segment.zarr_format=2"),
)


@pytest.mark.parametrize(("stage", "setting"), CHANGED, ids=[setting.split("=")[0] for _, setting in CHANGED])
def test_f25_other_parameters_are_refused_and_change_nothing(world: World, stage: str, setting: str) -> None:
    folder = world.finished(stage, f"f25-{setting.split('=', maxsplit=1)[0]}")
    before = written(folder)
    code = world.server.run(stage, folder, SERIAL, setting)
    after = written(folder)
    world.note("F25", stage=stage, setting=setting, whole=code == 73 and after == before)
    assert code == 73
    assert sorted(name for name in after if after[name] != before.get(name)) == []
    assert world.is_whole(stage, folder)
    shutil.rmtree(folder)
