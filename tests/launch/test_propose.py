"""What init proposes: every rule by arithmetic, for volumes of the field and machines of all sizes."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_launch.init.propose import (
    BLOCK_EDGES,
    BLOCK_GRAIN_VOX,
    BLOCKS_PER_WORKER,
    MEMORY_SHARE,
    Choice,
    Machine,
    Volume,
    block_shape,
    blocks_in,
    proposals,
    worker_bytes,
)

GIB = 2**30
LAPTOP = Machine(cores=2, memory_bytes=16 * GIB, gpu=False)
SERVER = Machine(cores=32, memory_bytes=256 * GIB, gpu=True)
FIB25 = Volume((250, 250, 250), (8.0, 8.0, 8.0), "uint8", (0.0, 255.0), 1.0)
SNEMI3D = Volume((80, 512, 512), (30.0, 6.0, 6.0), "uint8", (0.0, 255.0), 0.78)
CREMI = Volume((125, 1250, 1250), (40.0, 4.0, 4.0), "uint8", (0.0, 255.0), 0.9)
SMALL = Volume((50, 100, 200), (10.0, 10.0, 10.0), "uint8", (0.0, 255.0), 1.0)


def values(choices: tuple[Choice, ...]) -> dict[str, object]:
    return {choice.key: choice.value for choice in choices}


def proposed(*training: Volume, target: Volume | None = None, machine: Machine = SERVER) -> dict[str, object]:
    return values(proposals(training, target or training[0], machine))


@pytest.mark.parametrize(
    ("training", "on_a_cpu", "on_a_gpu"),
    [
        ([FIB25], "standard", "general"),
        ([SNEMI3D], "snemi3d", "general-anisotropic"),
        ([CREMI], "snemi3d", "general-anisotropic"),
        ([SMALL], "tiny", "general-anisotropic"),
        ([SMALL, SMALL], "tiny", "general-anisotropic"),
        ([dataclasses.replace(FIB25, labelled=0.1)], "tiny", "general"),
        ([dataclasses.replace(FIB25, voxel_size_nm=(20.0, 9.0, 9.0))], "standard", "general"),
        ([dataclasses.replace(SNEMI3D, shape_vox=(20, 512, 512))], "tiny-anisotropic", "general-anisotropic"),
        ([dataclasses.replace(SNEMI3D, shape_vox=(80, 300, 300))], "tiny-anisotropic", "general-anisotropic"),
        ([dataclasses.replace(CREMI, shape_vox=(30, 1250, 1250))], "tiny-anisotropic", "general-anisotropic"),
        ([dataclasses.replace(SMALL, shape_vox=(20, 512, 512))], "tiny-anisotropic", "general-anisotropic"),
        ([dataclasses.replace(FIB25, shape_vox=(60, 512, 512))], "tiny", "general-anisotropic"),
    ],
)
def test_the_profile_follows_the_thickness_of_sections_the_machine_and_the_labels(
    training: list[Volume], on_a_cpu: str, on_a_gpu: str
) -> None:
    assert proposed(*training, machine=LAPTOP)["experiment.profile"] == on_a_cpu
    found = proposed(*training, machine=SERVER)
    assert (found["experiment.profile"], found["train-acrlsd.pipeline"]) == (on_a_gpu, "gpu")


@pytest.mark.parametrize(
    ("volume", "start", "on_a_cpu", "on_a_gpu"),
    [
        (FIB25, "tiny", "tiny", "general"),
        (dataclasses.replace(FIB25, shape_vox=(60, 512, 512)), "tiny", "tiny", "tiny"),
        (SNEMI3D, "tiny-anisotropic", "tiny-anisotropic", "general-anisotropic"),
    ],
)
def test_a_training_that_starts_from_a_network_has_a_profile_that_fits_it_and_the_machine(
    volume: Volume, start: str, on_a_cpu: str, on_a_gpu: str
) -> None:
    for machine, expected in ((LAPTOP, on_a_cpu), (SERVER, on_a_gpu)):
        assert values(proposals([volume], volume, machine, start=start))["experiment.profile"] == expected


def test_a_profile_that_was_chosen_is_not_proposed() -> None:
    assert "experiment.profile" not in values(proposals([FIB25], FIB25, SERVER, profile="tiny"))


@pytest.mark.parametrize(("machine", "expected"), [(LAPTOP, True), (SERVER, False)])
def test_without_a_gpu_the_profile_says_what_that_means(machine: Machine, expected: bool) -> None:
    choice = next(c for c in proposals([FIB25], FIB25, machine) if c.key == "experiment.profile")
    assert ("no GPU" in choice.why) is expected


@pytest.mark.parametrize(
    ("volume", "sigma"), [(FIB25, "80 nm"), (CREMI, "80 nm"), (SNEMI3D, "60 nm"), (SMALL, "100 nm")]
)
def test_sigma_is_ten_shortest_voxel_edges_and_sees_two_sections(volume: Volume, sigma: str) -> None:
    found = proposed(volume)
    assert found["train-lsd.sigma"] == found["train-acrlsd.sigma"] == sigma


def test_sections_are_held_out_where_enough_are_left_to_train_on() -> None:
    assert proposed(FIB25)["train-acrlsd.validation_fraction"] == 0.15
    assert proposed(SNEMI3D)["train-lsd.validation_fraction"] == 0.15
    few_sections = dataclasses.replace(FIB25, shape_vox=(200, 250, 250))
    assert "train-acrlsd.validation_fraction" not in proposed(few_sections)
    assert "train-acrlsd.validation_fraction" not in proposed(SMALL)
    # 9.1 million labelled voxels are enough, but not with 15 % of them held out
    few_labels = proposed(dataclasses.replace(FIB25, labelled=0.58), machine=LAPTOP)
    assert few_labels["experiment.profile"] == "standard"
    assert "train-acrlsd.validation_fraction" not in few_labels


def test_only_labels_within_the_mask_count() -> None:
    facts = {"shape_vox": [1, 2, 3], "voxel_size_nm": [4.0, 5.0, 6.0], "dtype": "uint8", "grey": [0, 255]}
    labels = {"labelled_fraction": 0.5, "trained_fraction": 0.25}
    assert Volume.of({**facts, "labels": labels}).labelled == 0.125
    assert Volume.of({**facts, "labels": None}).labelled is None


def test_one_range_of_grey_values_for_all_volumes_that_do_not_say_which_is_black() -> None:
    train = dataclasses.replace(SMALL, dtype="uint16", grey=(100.0, 4000.0))
    target = dataclasses.replace(SMALL, dtype="uint16", grey=(50.0, 3000.0), labelled=None)
    found = proposed(train, target=target)
    assert found["prepare.training.raw_range"] == found["prepare.target.raw_range"] == [50.0, 4000.0]


@pytest.mark.parametrize(
    "volume",
    [
        SMALL,
        dataclasses.replace(SMALL, dtype="float32", grey=(0.1, 0.9)),
        dataclasses.replace(SMALL, dtype="uint16", grey=(7.0, 7.0)),
        dataclasses.replace(SMALL, dtype="float32", grey=()),
    ],
)
def test_no_range_where_it_is_known_or_cannot_be_seen(volume: Volume) -> None:
    assert not any("raw_range" in key for key in proposed(volume))


def test_blocks_of_thick_sections_are_cubes_in_nm() -> None:
    assert block_shape(CREMI, 256) == (32, 256, 256)
    assert block_shape(FIB25, 256) == (256, 256, 256)


def test_a_small_machine_gets_fewer_workers_rather_than_blocks_that_do_not_fit() -> None:
    large = Volume((10_000, 10_000, 10_000), (8.0, 8.0, 8.0), "uint8", (0.0, 255.0))
    small_machine = Machine(cores=64, memory_bytes=4 * GIB, gpu=False)
    choice = next(c for c in proposals([FIB25], large, small_machine) if c.key == "compute.workers")
    assert 1 <= choice.value < 64
    assert "64 cores, but only 4 GiB" in choice.why


SHAPES = st.tuples(*[st.integers(1, 5000)] * 3)
SIZES = st.tuples(st.sampled_from((8.0, 20.0, 40.0)), *[st.sampled_from((4.0, 8.0))] * 2)


@given(SHAPES, SIZES, st.integers(1, 256), st.integers(1, 1024))
def test_blocks_fit_the_memory_and_keep_every_worker_busy_wherever_both_can_be(
    shape: tuple[int, int, int], size: tuple[float, float, float], cores: int, gib: int
) -> None:
    target = Volume(shape, size, "uint8", (0.0, 255.0))
    found = proposed(SMALL, target=target, machine=Machine(cores, gib * GIB, gpu=False))
    workers = int(str(found["compute.workers"]))
    numbers = [int(n) for n in str(found["watershed.block_shape"]).removesuffix(" vox").split(",")]
    z, y, x = numbers * (3 if len(numbers) == 1 else 1)
    assert all(n % BLOCK_GRAIN_VOX == 0 for n in (z, y, x))
    fits = worker_bytes(target, (z, y, x)) * workers <= gib * GIB * MEMORY_SHARE
    assert fits or workers == 1
    # the slow way: of all blocks that fit, the largest with enough for all, else the smallest that fits
    allowed = [
        s for s in (block_shape(target, e) for e in BLOCK_EDGES)
        if worker_bytes(target, s) * workers <= gib * GIB * MEMORY_SHARE
    ]  # fmt: skip
    busy = [s for s in allowed if blocks_in(shape, s) >= BLOCKS_PER_WORKER * workers]
    if allowed:
        assert (z, y, x) == (max(busy, key=math.prod) if busy else allowed[-1])
