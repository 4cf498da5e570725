"""A wrong sweep file gives one clear message, with the nearest right word, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lsdflow_contract.errors import BadData, ConfigError, MissingInput, StageError
from lsdflow_launch.sweep.check import require_valid
from lsdflow_launch.sweep.file import load_sweep

from .conftest import ask_here

GOOD = '[axes]\n"segment.threshold" = [0.2, 0.4]\n'
WRONG = {
    "no TOML": ("[axes", "not a TOML file", ""),
    "unknown key": (f"metrik = 'voi'\n{GOOD}", "unknown key metrik", "did you mean 'metric'?"),
    "unknown table": (f"{GOOD}[spilt]\nby = []", "unknown key spilt", "did you mean 'split'?"),
    "unknown key in a table": (f"{GOOD}[split]\nbye = []", "unknown key split.bye", "did you mean 'by'?"),
    "no axes": ("", "axes is missing", ""),
    "empty axes": ("[axes]", "[axes] is empty", ""),
    "empty axis": ("[axes]\n'segment.threshold' = []", "the axis is empty", ""),
    "empty named axis": ("[axes.dataset]", "the axis is empty", ""),
    "no list": ("[axes]\n'segment.threshold' = 0.2", "an axis is a list of values", ""),
    "a date": ("[axes]\n'segment.threshold' = [2026-11-21]", "no value of a setting", ""),
    "infinite": ("[axes]\n'segment.threshold' = [inf]", "no value of a setting", ""),
    "twice": ("[axes]\n'segment.threshold' = [0.2, 0.4, 0.2]", "a value occurs twice on the axis", ""),
    "twice as another type": ("[axes]\n'segment.threshold' = [1, 1.0]", "a value occurs twice on the axis", ""),
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
    "means over no axis": (f"{GOOD}[means]\nover = ['seed']", "means.over: no axis 'seed'", "known: segment.threshold"),
    "too large": ("[axes]\n" + "\n".join(f"'a.k{n}' = [1,2,3,4,5,6,7,8]" for n in range(6)), "grid is too large", ""),
}
WRONG_KEYS = {
    "no table": ("'segmnt.threshold' = [0.2]", "no table 'segmnt'", "did you mean 'segment'?"),
    "no dot": ("'seed' = [0]", "an axis is table.key", "segment"),
    "no key": ("'segment.treshold' = [0.2]", "no key segment.treshold", "did you mean 'threshold'?"),
    "no key of a nested table": (
        "'prepare.target.rwa' = ['a.zarr']",
        "no key prepare.target.rwa",
        "did you mean 'raw'?",
    ),
    "below a value": ("'segment.threshold.low' = [0.2]", "no key segment.threshold.low", "is a value, not a table"),
    "no key of experiment": ("'experiment.sead' = [0]", "no key experiment.sead", "did you mean 'seed'?"),
    "the name": ("'experiment.name' = ['a', 'b']", "the sweep itself names its runs", "take this axis out"),
}
WRONG_VALUES = {
    "out of range": ("'segment.thresholds_step' = [0.1, -1.0]", "segment.thresholds_step", "-1.0"),
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
    assert "lsdflow-sweep-" not in caught.message(), "the scratch folder is no business of the user"
    assert not path.with_suffix("").exists()


def test_a_misspelt_metric_is_reported_before_anything_runs(
    sweep_file: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    for metric, warnings in (("vio", 1), ("voi_split", 0), ("number_of_segments", 0)):
        caplog.clear()
        require_valid(load_sweep(sweep_file(f"metric = '{metric}'\n[axes]\n'segment.threshold' = [0.2]\n")), ask_here)
        assert sum("did you mean" in record.message for record in caplog.records) == warnings


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
    assert len(sweep.runs) == 8


def test_values_of_one_number_but_another_type_are_two_values(sweep_file: Callable[[str], Path]) -> None:
    assert len(load_sweep(sweep_file("[axes]\n'predict.store_lsds' = [1, true]")).runs) == 2


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


def test_values_with_the_same_label_are_numbered(sweep_file: Callable[[str], Path]) -> None:
    sweep = load_sweep(sweep_file("[axes]\n'agglomerate.merge_functions' = [['a', 'b'], ['a+b']]\n"))
    assert [point.label for point in sweep.axes[0].points] == ["a+b (1)", "a+b (2)"]
    assert len({tuple(run.at.values()) for run in sweep.runs}) == 2


def test_all_problems_but_the_first_are_logged(
    sweep_file: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    caught = refused(sweep_file("[axes]\n'segment.thresholds_step' = [-1.0, -2.0]\n"))
    assert "-1.0" in caught.message()
    assert caplog.text.count("also: ") == 1
    assert "-2.0" in caplog.text
