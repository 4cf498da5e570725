"""A wrong sweep file gives one clear message, with the nearest right word, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lsdflow_contract.errors import BadData, ConfigError, MissingInput, StageError
from lsdflow_launch.sweep.check import require_valid
from lsdflow_launch.sweep.file import load_sweep
from lsdflow_launch.sweep.grid import grid_of

from .conftest import ask_here

GOOD = '[axes]\n"segment.threshold" = [0.2, 0.4]\n'
WRONG = {
    "no TOML": ("[axes", "not a TOML file", ""),
    "unknown key": (f"metrik = 'voi'\n{GOOD}", "unknown key sweep.metrik", "did you mean 'metric'?"),
    "unknown table": (f"{GOOD}[spilt]\nby = []", "unknown key sweep.spilt", "did you mean 'split'?"),
    "unknown key in a table": (f"{GOOD}[split]\nbye = []", "sweep.split.bye", "did you mean 'by'?"),
    "no axes": ("", "sweep.axes: Field required", ""),
    "empty axes": ("[axes]", "[axes] is empty", ""),
    "empty axis": ("[axes]\n'segment.threshold' = []", "the axis is empty", ""),
    "empty named axis": ("[axes.dataset]", "the axis is empty", ""),
    "no list": ("[axes]\n'segment.threshold' = 0.2", "an axis is a list of values", ""),
    "a date": ("[axes]\n'segment.threshold' = [2026-11-21]", "no value of a setting", ""),
    "twice": ("[axes]\n'segment.threshold' = [0.2, 0.4, 0.2]", "a value occurs twice on the axis", ""),
    "twice as another list": (
        "[axes]\n'agglomerate.merge_functions' = [['a', 'b'], ['a+b']]",
        "a value occurs twice on the axis",
        "",
    ),
    "a key on two axes": (
        f"{GOOD}[axes.both]\na = {{ 'segment.threshold' = 0.1 }}",
        "two axes set segment.threshold",
        "",
    ),
    "a key and its table": (
        "[axes]\n'prepare.target' = [{ raw = 'a' }]\n'prepare.target.raw' = ['b']",
        "two axes set prepare.target.raw",
        "",
    ),
    "uneven points": (
        "[axes.d]\na = { 'prepare.target.raw' = 'x' }\nb = { 'segment.threshold' = 0.1 }",
        "the points of one axis set different keys",
        "",
    ),
    "split by no axis": (
        f"{GOOD}[split]\nby = ['segment.treshold']",
        "no axis 'segment.treshold'",
        "segment.threshold",
    ),
    "means over no axis": (f"{GOOD}[means]\nover = ['seed']", "no axis 'seed'", "known: segment.threshold"),
}
WRONG_KEYS = {
    "no table": ("'segmnt.threshold' = [0.2]", "unknown table [segmnt]", "did you mean 'segment'?"),
    "no dot": ("'seed' = [0]", "an override is table.key=value", "did you mean experiment.seed=0?"),
    "no key": ("'segment.treshold' = [0.2]", "unknown key segment.treshold", "did you mean 'threshold'?"),
    "no key of a nested table": (
        "'prepare.target.rwa' = ['a.zarr']",
        "unknown key prepare.target.rwa",
        "did you mean 'raw'?",
    ),
    "below a value": ("'segment.threshold.low' = [0.2]", "the override names a value, not a table", ""),
    "no key of experiment": ("'experiment.sead' = [0]", "unknown key experiment.sead", "did you mean 'seed'?"),
    "the name": ("'experiment.name' = ['a', 'b']", "the sweep itself names its runs", "take the axis"),
}
WRONG_VALUES = {
    "out of range": ("'segment.thresholds_step' = [0.1, -1.0]", "segment.thresholds_step", "-1.0"),
    "infinite": ("'segment.thresholds_step' = [inf]", "segment.thresholds_step", "inf"),
    "wrong type": ("'agglomerate.merge_functions' = ['mean']", "agglomerate.merge_functions", "'mean'"),
    "wrong word": ("'agglomerate.merge_functions' = [['mean'], ['medium']]", "unknown merge function medium", "medium"),
    "wrong seed": ("'experiment.seed' = [0, -1]", "experiment.seed", "-1"),
    "wrong cluster": ("'cluster.watershed.workers' = [4, 'many']", "cluster.watershed.workers", "many"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_sweep_file_gives_one_clear_message(sweep_file: Callable[[str], Path], kind: str) -> None:
    text, what, fix = WRONG[kind]
    with pytest.raises(ConfigError) as caught:
        load_sweep(sweep_file(text))
    assert what in caught.value.what
    assert fix in caught.value.fix
    assert "grid.toml" in caught.value.where


@pytest.mark.parametrize("kind", WRONG_KEYS)
def test_a_key_that_no_stage_has_is_refused_with_did_you_mean(sweep_file: Callable[[str], Path], kind: str) -> None:
    text, what, fix = WRONG_KEYS[kind]
    caught = refused(sweep_file(f"[axes]\n{text}"))
    assert isinstance(caught, ConfigError)
    assert what in caught.what
    assert fix in caught.fix


@pytest.mark.parametrize("kind", WRONG_VALUES)
def test_a_value_that_a_stage_refuses_is_reported_with_the_point_of_the_grid(
    sweep_file: Callable[[str], Path], kind: str
) -> None:
    text, what, found = WRONG_VALUES[kind]
    path = sweep_file(f"[axes]\n{text}")
    caught = refused(path)
    assert isinstance(caught, ConfigError)
    assert what in caught.what
    assert found in caught.message()
    assert str(path) in caught.where
    assert not path.with_suffix("").exists()


def refused(path: Path) -> StageError:
    with pytest.raises(StageError) as caught:
        require_valid(load_sweep(path), ask_here)
    return caught.value


@pytest.mark.parametrize("key", ["train-lsd.max_iteration", "train-acrlsd.max_iteration"])
def test_an_axis_of_a_training_that_no_run_needs_is_refused(
    sweep_file: Callable[[str], Path], base: Path, tmp_path: Path, key: str
) -> None:
    file = base / "experiment.toml"
    (tmp_path / "network").mkdir()
    file.write_text(f'{file.read_text()}[predict]\ncheckpoint = "../network"\n')
    path = sweep_file(f"[axes]\n'{key}' = [10, 20]\n")
    with pytest.raises(ConfigError, match=f"{key} changes nothing"):
        require_valid(load_sweep(path), ask_here)
    assert not path.with_suffix("").exists()


def test_a_volume_that_is_not_there_is_reported_by_prepare_before_anything_is_written(
    sweep_file: Callable[[str], Path],
) -> None:
    path = sweep_file(
        "[axes.dataset]\na = {'prepare.target.raw' = 'input/cells.hdf'}\nb = {'prepare.target.raw' = 'no'}"
    )
    caught = refused(path)
    assert isinstance(caught, MissingInput | BadData)
    assert "dataset = b" in caught.where


def test_a_good_sweep_passes_and_keys_need_no_quotes(sweep_file: Callable[[str], Path]) -> None:
    text = "[axes]\nsegment.threshold = [0.2, 0.4]\nagglomerate.merge_functions = [['mean'], ['hist_quant_75']]\n"
    sweep = load_sweep(sweep_file(f"{text}experiment.seed = [0, 1]\n[split]\nby = ['segment.threshold']"))
    require_valid(sweep, ask_here)
    assert [axis.name for axis in sweep.axes] == ["segment.threshold", "agglomerate.merge_functions", "experiment.seed"]
    assert sweep.split_by == ("segment.threshold",)
    assert sweep.means_over == ("experiment.seed",)
    assert len(grid_of(sweep.axes)) == 8


def test_a_sweep_file_or_base_that_is_not_there_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="no sweep file"):
        load_sweep(tmp_path / "grid.toml")
    (tmp_path / "grid.toml").write_text(f'base = "nowhere"\n{GOOD}')
    with pytest.raises(MissingInput, match="no experiment file"):
        load_sweep(tmp_path / "grid.toml")


def test_seeds_and_folds_are_averaged_and_the_split_has_the_order_of_the_axes(
    sweep_file: Callable[[str], Path],
) -> None:
    text = "[axes]\n'segment.threshold' = [0.2]\n'experiment.seed' = [0, 1]\n"
    text += "[axes.fold]\na = { 'prepare.target.raw' = 'a' }\n[split]\nby = ['fold', 'segment.threshold']\n"
    sweep = load_sweep(sweep_file(text))
    assert sweep.means_over == ("experiment.seed", "fold")
    assert sweep.split_by == ("segment.threshold", "fold")


def test_all_problems_are_reported_at_once_with_the_exit_code_of_the_first(sweep_file: Callable[[str], Path]) -> None:
    caught = refused(sweep_file("[axes]\n'segment.thresholds_step' = [-1.0, -2.0]\n"))
    assert caught.exit_code == ConfigError.exit_code
    for value in ("-1.0", "-2.0"):
        assert f"segment.thresholds_step = {value}" in caught.message()
