"""The experiment file: strict, with fixes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

import pytest
from pydantic import field_validator

from lsdflow_contract.errors import ConfigError, MissingInput
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.geometry import LengthsField
from lsdflow_contract.model import StrictModel


class Table(StrictModel):
    block_shape: LengthsField
    threshold: float = 0.5


def _write(folder: Path, text: str) -> Path:
    path = folder / "experiment.toml"
    path.write_text(text)
    return path


def test_defaults_apply_where_the_file_sets_nothing_and_overrides_win(tmp_path: Path) -> None:
    path = _write(tmp_path, '[watershed]\nblock_shape = "64 vox"\n')
    experiment = load_experiment(tmp_path, ["compute.workers=7", "watershed.threshold=0.25", "experiment.name=x"])
    assert (experiment.common.mode, experiment.compute.workers, experiment.common.name) == ("acrlsd", 7, "x")
    table = experiment.table("watershed", Table)
    assert (table.threshold, str(table.block_shape)) == (0.25, "64 vox")
    assert experiment.layout.root == path.parent


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[watersheed]\n", "did you mean 'watershed'"),
        ('[experiment]\nmodee = "acrlsd"\n', "did you mean 'mode'"),
        ('[experiment]\nmode = "acrlsdd"\n', "experiment.mode"),
        ("[compute]\nworkers = 0\n", "compute.workers"),
        ("watershed = 3\n", "must be a table"),
        ("[experiment\n", "not a TOML file"),
        ('[experiment]\nname = "a b$(x)"\n', "experiment.name"),
    ],
)
def test_a_wrong_file_is_a_config_error_that_says_what_to_write(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_experiment(_write(tmp_path, text))
    assert said in caught.value.message()
    assert caught.value.exit_code == 78


def test_an_unknown_key_of_a_stage_names_the_nearest(tmp_path: Path) -> None:
    experiment = load_experiment(_write(tmp_path, '[watershed]\nblok_shape = "64 vox"\n'))
    with pytest.raises(ConfigError) as caught:
        experiment.table("watershed", Table)
    assert "watershed." in caught.value.message()


def test_a_length_without_unit_is_refused_naming_the_key(tmp_path: Path) -> None:
    experiment = load_experiment(_write(tmp_path, '[watershed]\nblock_shape = "64"\n'))
    with pytest.raises(ConfigError, match=r"watershed\.block_shape"):
        experiment.table("watershed", Table)


@pytest.mark.parametrize("override", ["x", "a=b", ".k=1", "experiment.=1", "experiment.name.deep=1"])
def test_a_malformed_override_is_refused(tmp_path: Path, override: str) -> None:
    path = _write(tmp_path, '[experiment]\nname = "x"\n')
    with pytest.raises(ConfigError):
        load_experiment(path, [override])


def test_a_missing_file_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="lsdflow init"):
        load_experiment(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "database"),
    [('[experiment]\nname = "fib.25"', "fib_25"), ('[experiment]\nname = "a"\n[store]\ndatabase = "b"', "b")],
)
def test_the_database_has_the_given_name_or_that_of_the_experiment_without_dots(
    tmp_path: Path, text: str, database: str
) -> None:
    (tmp_path / "experiment.toml").write_text(text)
    assert load_experiment(tmp_path).database == database


class Corner(StrictModel):
    begin: str
    shape: str


class Words(StrictModel):
    roi: Corner | None = None
    method: Literal["seeded", "mutex"] = "seeded"
    threshold: Literal["auto"] | float = "auto"
    functions: tuple[str, ...] = ()

    @field_validator("functions")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if names and names[0] not in ("mean", "hist_quant_75"):
            msg = f"unknown merge function {names[0]}; known: mean, hist_quant_75"
            raise ValueError(msg)
        return names


@pytest.mark.parametrize(
    ("table", "what", "fix"),
    [
        ({"method": "mutx"}, "words.method: Input should be 'seeded' or 'mutex'", "did you mean 'mutex'?"),
        ({"method": "waterz"}, "words.method: Input should be 'seeded' or 'mutex'", ""),
        ({"threshold": "atuo"}, "words.threshold: Input should be 'auto' or", "did you mean 'auto'?"),
        ({"functions": ["hist_quant_57"]}, "words.functions: unknown merge function", "did you mean 'hist_quant_75'?"),
        ({"roi": {"begn": "0 vox", "shape": "1 vox"}}, "unknown key words.roi.begn", "did you mean 'begin'?"),
        ({"metod": 1}, "unknown key words.metod", "did you mean 'method'?"),
    ],
)
def test_a_misspelt_key_or_word_is_reported_with_the_nearest(
    tmp_path: Path, table: dict[str, object], what: str, fix: str
) -> None:
    (tmp_path / "experiment.toml").write_text("")
    experiment = dataclasses.replace(load_experiment(tmp_path), tables={"words": table})
    with pytest.raises(ConfigError) as caught:
        experiment.table("words", Words)
    assert caught.value.what.startswith(what)
    assert caught.value.fix == fix
