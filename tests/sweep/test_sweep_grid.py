"""The grid of a sweep: every combination once, names that nothing else has, parts that are a partition."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsdflow_contract.errors import UsageError
from lsdflow_launch.sweep.grid import Axis, Run, grid_of, part_of, runs_where, settings_at, unique_names


def axis(name: str, *values: object) -> Axis:
    return Axis(name, {str(value): {name: value} for value in values})


GRID_AXES = [
    axis("experiment.mode", "mtlsd", "affinities"),
    axis("agglomerate.merge_functions", "mean", "hist_quant_75"),
    axis("train-acrlsd.learning_rate", 0.001, 0.0001),
    axis("experiment.seed", 0, 1, 2, 3),
]
LABELS = {axis.name: list(axis.points) for axis in GRID_AXES}
AXES = list(LABELS)
GRID = [Run(number=n, name=str(n), at=at, nodes=()) for n, at in enumerate(grid_of(GRID_AXES), 1)]


@pytest.mark.proves("SWP-01")
def test_two_by_two_by_two_by_four_are_32_runs_the_last_axis_fastest() -> None:
    assert len(GRID) == 32
    assert len({tuple(run.at.values()) for run in GRID}) == 32
    assert [run.at["experiment.seed"] for run in GRID[:5]] == ["0", "1", "2", "3", "0"]
    assert settings_at(GRID_AXES, GRID[0].at) == {
        "experiment.mode": "mtlsd",
        "agglomerate.merge_functions": "mean",
        "train-acrlsd.learning_rate": 0.001,
        "experiment.seed": 0,
    }
    assert unique_names(GRID_AXES)[0] == "mode-mtlsd_merge_functions-mean_learning_rate-0.001_seed-0"


@pytest.mark.proves("SWP-02")
@given(by=st.sets(st.sampled_from(AXES)), parts=st.integers(1, 40))
def test_parts_by_any_axes_are_a_partition_and_keep_groups_together(by: set[str], parts: int) -> None:
    dealt = [part_of(GRID, sorted(by), number, parts) for number in range(1, parts + 1)]
    assert sorted(run.number for part in dealt for run in part) == list(range(1, 33))
    groups = [{tuple(run.at[axis] for axis in by) for run in part} for part in dealt]
    for group, other in itertools.combinations(groups, 2):
        assert not group & other


@pytest.mark.parametrize("parts", [4, 8, 32])
def test_servers_get_the_same_number_of_runs_where_the_grid_allows_it(parts: int) -> None:
    assert {len(part_of(GRID, AXES, number, parts)) for number in range(1, parts + 1)} == {32 // parts}


@given(by=st.sets(st.sampled_from(AXES), min_size=1))
def test_the_values_of_any_axes_split_the_grid_into_a_partition(by: set[str]) -> None:
    names = sorted(by)
    combinations = {tuple(run.at[name] for name in names) for run in GRID}
    found = [
        run.number
        for values in combinations
        for run in runs_where(GRID, LABELS, [f"{name}={value}" for name, value in zip(names, values, strict=True)])
    ]
    assert sorted(found) == list(range(1, 33))


def test_conditions_on_one_axis_are_either_and_on_two_axes_both() -> None:
    some = runs_where(GRID, LABELS, ["experiment.seed=0", "experiment.seed=3", "experiment.mode = mtlsd"])
    assert {(run.at["experiment.seed"], run.at["experiment.mode"]) for run in some} == {("0", "mtlsd"), ("3", "mtlsd")}
    assert len(some) == 8


@pytest.mark.parametrize(
    ("condition", "fix"), [("experiment.sead=0", "experiment.seed"), ("experiment.mode=mtlsb", "did you mean 'mtlsd'")]
)
def test_a_condition_that_names_nothing_is_refused_with_the_nearest_name(condition: str, fix: str) -> None:
    with pytest.raises(UsageError, match=r"no axis|no value") as caught:
        runs_where(GRID, LABELS, [condition])
    assert fix in caught.value.fix


def test_a_part_that_there_is_not_is_refused() -> None:
    for number in (0, 5):
        with pytest.raises(UsageError, match="no such part"):
            part_of(GRID, AXES, number, 4)


texts = st.text(st.sampled_from("abAB_-. /=µ"), max_size=6)


@pytest.mark.proves("SWP-04")
@given(st.lists(st.lists(texts, min_size=1, max_size=4, unique=True), min_size=1, max_size=3))
def test_names_are_unique_on_any_file_system_and_safe_in_any_shell(values: list[list[str]]) -> None:
    axes = [axis(f"watershed.key{number}", *axis_values) for number, axis_values in enumerate(values)]
    names = [name.casefold() for name in unique_names(axes)]
    assert len(set(names)) == len(grid_of(axes))
    assert all(name.isascii() for name in names)
    assert all(name.replace("+", "").replace("-", "").replace("_", "").replace(".", "").isalnum() for name in names)
    assert max(map(len, names)) <= 80


def test_a_name_stays_when_the_grid_grows_and_when_values_are_long() -> None:
    axes = [axis("segment.threshold", 0.2), axis("watershed.mask_file", "masks/" + "a" * 200)]
    (name,) = unique_names(axes)
    assert name in unique_names([axis("segment.threshold", 0.1, 0.2), axes[1]])
    assert name.startswith("threshold-0.2_mask_file-masks-aaa")


def test_two_axes_with_the_same_last_word_keep_the_whole_key_in_the_name() -> None:
    (name,) = unique_names([axis("watershed.context", "8 vox"), axis("agglomerate.context", "4 vox")])
    assert name.startswith("watershed.context-8-vox_agglomerate.context-4-vox-")
