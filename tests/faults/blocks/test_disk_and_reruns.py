"""F10, F11, F24, F25: the disk fails; a finished stage runs again; a stage runs with other parameters."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from harness import BLOCKS, SERIAL, STAGES, World, count, identity, seeds, store_of, written

# The report of evaluate is written again by every run.
KEPT = STAGES[:3]


def test_f10_a_full_disk_ends_with_74_and_the_next_run_continues(world: World) -> None:
    for number, seed in enumerate(seeds("F10", 3, 30)):
        stage = STAGES[number % len(STAGES)]
        folder = world.before(stage, f"f10-{number}")
        before, nth = world.server.output(), random.Random(seed).randrange(1, 2 * BLOCKS)
        code = world.server.run(stage, folder, SERIAL, harm={"disk full": nth})
        output = world.server.output().removeprefix(before)
        resumed = world.server.run(stage, folder, SERIAL)
        whole = world.is_whole(stage, folder)
        outcome = world.outcome(folder, detected=code == 74, resumed=resumed == 0, whole=whole)
        world.note("F10", stage=stage, seed=seed, **outcome)
        assert (code, resumed, whole) == (74, 0, True)
        assert "free some space" in output
        assert str(folder) in output
        world.remove(folder)


def test_f11_a_disk_that_fails_now_and_then_is_noticed_or_does_no_harm(world: World) -> None:
    for number, seed in enumerate(seeds("F11", 5, 100)):
        stage = STAGES[number % len(STAGES)]
        folder = world.before(stage, f"f11-{number}")
        codes = [world.server.run(stage, folder, SERIAL, harm={"disk flaky": seed})]
        if codes != [0]:
            codes.append(world.server.run(stage, folder, SERIAL))
        whole = world.is_whole(stage, folder)
        outcome = world.outcome(folder, detected=codes[0] in (0, 74), resumed=codes[-1] == 0, whole=whole)
        world.note("F11", stage=stage, seed=seed, **outcome)
        assert codes in ([0], [74, 0]), codes
        assert whole
        world.remove(folder)


@pytest.mark.proves("AGG-04")
def test_f24_a_finished_stage_run_again_does_no_block_and_touches_nothing(world: World) -> None:
    for number in range(count(5, 20)):
        stage = KEPT[number % len(KEPT)]
        folder = world.finished(stage, f"f24-{number}", store_of(number))
        before, done = written(folder), world.marks(folder, stage)
        code = world.server.run(stage, folder, SERIAL)
        same = (written(folder), world.marks(folder, stage)) == (before, done)
        world.note("F24", stage=stage, **world.outcome(folder, resumed=code == 0, whole=same))
        assert (code, same, len(done)) == (0, True, BLOCKS)
        world.remove(folder)


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
def test_f25_other_parameters_make_another_result_and_change_nothing(world: World, stage: str, setting: str) -> None:
    """The earlier settings are current again without a block."""
    number = [changed for _, changed in CHANGED].index(setting)
    folder = world.finished(stage, f"f25-{number}", store_of(number))
    before = results(folder, stage)
    codes = [world.server.run(stage, folder, SERIAL, setting)]
    other = identity(folder, stage)
    codes.append(world.server.run(stage, folder, SERIAL, setting, verb="verify"))
    beside = results(folder, stage)
    codes.append(world.server.run(stage, folder, SERIAL))
    again = results(folder, stage)
    kept = {name: seen for name, seen in beside.items() if name in before} == before and again == beside
    whole = kept and other != world.identities[stage] and world.is_whole(stage, folder)
    world.note("F25", stage=stage, setting=setting, **world.outcome(folder, resumed=codes == [0, 0, 0], whole=whole))
    assert codes == [0, 0, 0]
    assert sorted(name for name in before if beside.get(name) != before[name]) == []
    assert whole
    world.remove(folder)


def results(folder: Path, stage: str) -> dict[str, tuple[int, int]]:
    """The files of all results of a stage."""
    return {name: seen for name, seen in written(folder).items() if name.startswith(f"results/{stage}/")}
