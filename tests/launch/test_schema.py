"""The schema that editors read: right by its own dialect, true of every file that lsdflow writes, false of mistakes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import STAGES, load_experiment
from lsdflow_contract.geometry import Lengths
from lsdflow_launch.init import draft
from lsdflow_launch.init.demo import make_demo
from lsdflow_launch.init.inspect import Inspection, Start
from lsdflow_launch.init.template import DIALECT, experiment_schema, table_schemas

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    """The schemas of the real stages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LSDFLOW_BIN", str(REPOSITORY / "bin"))
        return table_schemas(STAGES)


@pytest.fixture(scope="module")
def validator(tables: dict[str, Any]) -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(experiment_schema(tables))


@pytest.fixture
def drafts(tables: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "table_schemas", lambda _stages: tables)
    monkeypatch.setattr(draft, "images_text", lambda _stages, _sifs: "")


def written(root: Path, **options: Any) -> str:
    volume = root / "raw.zarr"
    volume.mkdir(exist_ok=True)
    start = Start(root / "exp", (volume, volume), volume, truth=volume, voxel_size="40, 8, 8 nm", **options)
    return draft.draft_experiment(start, lambda _tables, inspected: Inspection(inspected)).text


def uncommented(line: re.Match[str]) -> str:
    """A key and its default; a sentence stays a comment."""
    try:
        tomllib.loads(line[1])
    except tomllib.TOMLDecodeError:
        return line[0]
    return line[1]


def problems(validator: jsonschema.Draft7Validator, text: str) -> list[str]:
    return [f"{'.'.join(map(str, e.path))}: {e.message}" for e in validator.iter_errors(tomllib.loads(text))]


def test_it_is_a_schema_of_its_dialect_with_no_references_and_no_null(
    validator: jsonschema.Draft7Validator,
) -> None:
    jsonschema.Draft7Validator.check_schema(validator.schema)
    assert validator.schema["$schema"] == DIALECT
    text = str(validator.schema)
    assert "$ref" not in text
    assert "'null'" not in text


@pytest.mark.parametrize("profile", ["tiny-anisotropic", "standard", "snemi3d"])
@pytest.mark.parametrize("mode", ["acrlsd", "mtlsd", "affinities"])
def test_every_file_of_init_is_valid(
    drafts: None, validator: jsonschema.Draft7Validator, tmp_path: Path, profile: str, mode: str
) -> None:
    assert problems(validator, written(tmp_path, profile=profile, mode=mode)) == []


def test_the_demo_is_valid_here_and_in_compose(
    drafts: None, validator: jsonschema.Draft7Validator, tmp_path: Path
) -> None:
    made = make_demo(tmp_path, shape_vox=(28, 24, 24)).experiment_toml.read_text()
    assert problems(validator, made) == []
    committed = (REPOSITORY / "compose" / "experiments" / "demo" / "experiment.toml").read_text()
    assert problems(validator, committed) == []


def test_every_default_that_the_file_shows_is_valid_when_it_is_uncommented(
    drafts: None, validator: jsonschema.Draft7Validator, tmp_path: Path
) -> None:
    text = re.sub(r"^# ([a-z_]+ = .+)$", uncommented, written(tmp_path), flags=re.MULTILINE)
    assert text.count("\nblock_shape = ") >= 1
    assert len(tomllib.loads(text)["train-lsd"]) > 10
    assert problems(validator, text) == []


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ("[watershed]\nblock_shappe = '64 vox'", "watershed"),
        ("[watershedd]", ""),
        ("[watershed]\nblock_shape = '64'", "watershed.block_shape"),
        ("[watershed]\nblock_shape = '64 parsec'", "watershed.block_shape"),
        ("[watershed]\nblock_shape = 64", "watershed.block_shape"),
        ("[experiment]\nmode = 'lsd'", "experiment.mode"),
        ("[agglomerate]\nmerge_functions = ['medium']", "agglomerate.merge_functions.0"),
        ("[compute]\nworkers = 0", "compute.workers"),
        ("[prepare.target]\ntruth = 'a'", "prepare.target"),
        ("[cluster.watershed]\nmem = 'lots'", "cluster.watershed.mem"),
        ("[train-lsd]\ndownsample_factors = [[2, 2]]", "train-lsd.downsample_factors.0"),
    ],
)
def test_an_editor_marks_what_lsdflow_would_refuse(
    validator: jsonschema.Draft7Validator, tmp_path: Path, wrong: str, where: str
) -> None:
    found = problems(validator, wrong)
    assert [line.partition(": ")[0] for line in found] == [where], found


@pytest.mark.parametrize(
    "text",
    ["64 vox", "2048 nm", "40, 8, 8 nm", "1.5um", "-3 vox", "1e3 nm", ".5 µm", "8", "8 km", "8, 8 nm", "a nm"],
)
def test_the_pattern_of_lengths_says_what_their_parser_says(validator: jsonschema.Draft7Validator, text: str) -> None:
    try:
        Lengths.parse(text)
        wanted = True
    except ValueError:
        wanted = False
    assert validator.is_valid({"watershed": {"block_shape": text}}) is wanted


def test_the_first_line_names_the_schema_for_the_editor(drafts: None, tmp_path: Path) -> None:
    text = written(tmp_path)
    assert text.splitlines()[0] == "#:schema ./experiment.schema.json"
    (tmp_path / "experiment.toml").write_text(text)
    try:
        load_experiment(tmp_path)
    except StageError as error:
        pytest.fail(error.message())
