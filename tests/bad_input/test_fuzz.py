"""Whatever is in the experiment file or in the metadata of a volume: a documented exit code, never a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bad_input.asking import ask
from bad_input.lab import Lab, Laboratory, good_tables
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lsdflow_agglomerate.config import AgglomerateConfig
from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import ComputeTable, ExperimentTable, StoreTable
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_launch.slurm.table import ClusterTable
from lsdflow_predict.config import PredictConfig
from lsdflow_prepare.config import TargetVolume, TrainingVolume
from lsdflow_segment.config import SegmentConfig
from lsdflow_watershed.config import WatershedConfig

DOCUMENTED = {0} | {kind.exit_code for kind in StageError.__subclasses__()} - {StageError.exit_code}
FUZZ = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
MODELS = {
    "experiment": ExperimentTable,
    "store": StoreTable,
    "compute": ComputeTable,
    "cluster": ClusterTable,
    "predict": PredictConfig,
    "watershed": WatershedConfig,
    "agglomerate": AgglomerateConfig,
    "segment": SegmentConfig,
    "evaluate": EvaluateConfig,
}
KEYS = [(table, field.alias or name) for table, model in MODELS.items() for name, field in model.model_fields.items()]
VOLUME_KEYS = [("training", key) for key in TrainingVolume.model_fields]
VOLUME_KEYS += [("target", key) for key in TargetVolume.model_fields]

LENGTHS = st.sampled_from(
    ["0 vox", "-1 vox", "1e300 vox", "9e18 nm", "1, 2, 3 nm", ", , vox", "- nm", "1e9 um", "8 vox"]
)
PATHS = st.sampled_from([".", "..", "", "/", "\0", "~", "x" * 5000, "a/" * 2000, "$(id)", "../input/train.zarr", "é\n"])
NUMBERS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=True, allow_infinity=True))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.one_of(st.booleans(), NUMBERS, TEXTS, LENGTHS, PATHS)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from("zyxabc"), inner), max_leaves=6
)
JSON_VALUES = st.recursive(
    st.one_of(st.none(), SCALARS),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["name", "scale", "unit", "type"]), inner)
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def labs(laboratory: Laboratory) -> dict[str, Lab]:
    """One experiment for each state; every example writes its own tables or metadata."""
    return {after: laboratory.lab(after) for after in ("init", "agglomerate")}


def require_a_documented_answer(command: list[str], lab: Lab) -> None:
    """An exit code of the list, something said, no traceback, nothing written."""
    answer = ask(command, lab.root, training=False)
    assert not answer.crash, answer.crash
    assert answer.exit_code in DOCUMENTED, answer.text
    assert "internal" not in answer.text
    assert answer.text.strip()
    assert answer.changed == ()


def toml_of(value: Any) -> str:
    """Any drawn value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_of(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_of, value)) + "]"
    # JSON and TOML agree on strings but for DEL.
    return json.dumps(value, ensure_ascii=True).replace("\x7f", "\\u007f")


def write_tables(lab: Lab, tables: dict[str, Any]) -> None:
    lab.toml.write_text("".join(f"{name} = {toml_of(table)}\n" for name, table in tables.items()), encoding="utf-8")


@FUZZ
@given(key=st.sampled_from(KEYS), value=VALUES)
def test_any_value_of_a_key_of_a_stage_gives_a_documented_answer(
    labs: dict[str, Lab], key: tuple[str, str], value: Any
) -> None:
    lab, tables = labs["agglomerate"], good_tables()
    tables.setdefault(key[0], {})[key[1]] = value
    write_tables(lab, tables)
    folder = str(lab.toml.parent)
    stages = {"predict", "watershed", "agglomerate", "segment", "evaluate"}
    command = [key[0], "validate", "-e", folder] if key[0] in stages else ["lsdflow", "validate", folder]
    require_a_documented_answer(command, lab)


@FUZZ
@given(key=st.sampled_from(VOLUME_KEYS), value=VALUES)
def test_any_value_of_a_key_of_a_volume_gives_a_documented_answer(
    labs: dict[str, Lab], key: tuple[str, str], value: Any
) -> None:
    lab, tables = labs["init"], good_tables()
    volume = tables["prepare"][key[0]]
    (volume[0] if isinstance(volume, list) else volume)[key[1]] = value
    write_tables(lab, tables)
    require_a_documented_answer(["prepare", "validate", "-e", str(lab.toml.parent)], lab)


@FUZZ
@given(override=TEXTS | st.tuples(st.sampled_from(KEYS), TEXTS).map(lambda drawn: f"{'.'.join(drawn[0])}={drawn[1]}"))
def test_any_override_gives_a_documented_answer(labs: dict[str, Lab], override: str) -> None:
    lab = labs["init"]
    write_tables(lab, good_tables())
    require_a_documented_answer(["watershed", "validate", "-e", str(lab.toml.parent), f"--set={override}"], lab)


def fuzzed(lab: Lab, files: dict[Path, str], command: list[str]) -> None:
    """Replace files by these texts, ask, and put the files back."""
    write_tables(lab, good_tables())
    before = {path: path.read_text() if path.exists() else None for path in files}
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    try:
        require_a_documented_answer(command, lab)
    finally:
        for path, content in before.items():
            if content is None:
                path.unlink()
            else:
                path.write_text(content)


def changed(path: Path, change: dict[str, Any]) -> str:
    """The JSON of a file with keys changed."""
    content = json.loads(path.read_text()) if path.exists() else {}
    return json.dumps({**content, **change})


ATTRIBUTES = st.sampled_from(
    ["voxel_size", "resolution", "offset", "units", "unit", "axis_names", "types", "_ARRAY_DIMENSIONS", "transform",
     "pixelResolution", "downsamplingFactors", "multiscales", "ome"]
)  # fmt: skip
ZARRAY = st.sampled_from(["shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters", "zarr_format"])
PREPARE: Callable[[Lab], list[str]] = lambda lab: ["prepare", "validate", "-e", str(lab.toml.parent)]  # noqa: E731


@FUZZ
@given(change=st.dictionaries(ATTRIBUTES, JSON_VALUES, min_size=1, max_size=3))
def test_any_attributes_of_a_volume_give_a_documented_answer(labs: dict[str, Lab], change: dict[str, Any]) -> None:
    lab = labs["init"]
    path = lab.source("train", "volumes/raw") / ".zattrs"
    fuzzed(lab, {path: changed(path, change)}, PREPARE(lab))


@FUZZ
@given(change=st.dictionaries(ZARRAY, JSON_VALUES, min_size=1, max_size=2))
def test_any_metadata_of_an_array_give_a_documented_answer(labs: dict[str, Lab], change: dict[str, Any]) -> None:
    lab = labs["init"]
    path = lab.source("train", "volumes/raw") / ".zarray"
    fuzzed(lab, {path: changed(path, change)}, PREPARE(lab))


@FUZZ
@given(value=JSON_VALUES)
def test_any_json_for_the_metadata_of_a_volume_gives_a_documented_answer(labs: dict[str, Lab], value: Any) -> None:
    lab = labs["init"]
    raw = lab.source("train", "volumes/raw")
    fuzzed(lab, {raw / ".zarray": json.dumps(value), raw / ".zattrs": json.dumps(value)}, PREPARE(lab))


OME_KEYS = st.sampled_from(["version", "axes", "datasets", "coordinateTransformations", "name"])
STEPS = st.lists(st.fixed_dictionaries({"type": st.sampled_from(["scale", "translation"]), "scale": JSON_VALUES}))
LEVELS = st.lists(st.fixed_dictionaries({"path": JSON_VALUES, "coordinateTransformations": STEPS | JSON_VALUES}))
AXES = st.lists(st.fixed_dictionaries({"name": st.sampled_from("zyxct") | JSON_VALUES, "unit": JSON_VALUES}))


@FUZZ
@given(change=st.dictionaries(OME_KEYS, st.one_of(JSON_VALUES, STEPS, LEVELS, AXES), min_size=1, max_size=3))
def test_any_ome_metadata_give_a_documented_answer(labs: dict[str, Lab], change: dict[str, Any]) -> None:
    lab = labs["init"]
    group = lab.source("train", "volumes")
    image = {
        "axes": [{"name": axis, "unit": "nanometer"} for axis in "zyx"],
        "datasets": [{"path": "raw", "coordinateTransformations": [{"type": "scale", "scale": [10, 8, 8]}]}],
    }
    files = {
        group / ".zgroup": '{"zarr_format": 2}',
        group / ".zattrs": json.dumps({"multiscales": [{**image, **change}]}),
    }
    fuzzed(lab, files, PREPARE(lab))


MADE = {
    "results/prepare/*/target.zarr/volumes/raw/.zattrs": "watershed",
    "results/prepare/*/target.zarr/volumes/raw/.zarray": "predict",
    "results/watershed/*/fragments.zarr/volumes/fragments/zarr.json": "agglomerate",
    "manifests/predict.json": "watershed",
    "manifests/watershed.json": "agglomerate",
    "manifests/agglomerate.json": "segment",
    "train/train-acrlsd/best.json": "predict",
    "train/train-acrlsd/checkpoints/00000007/bundle.json": "predict",
}


@FUZZ
@given(name=st.sampled_from(sorted(MADE)), data=st.data())
def test_any_metadata_of_what_a_stage_made_gives_a_documented_answer(
    labs: dict[str, Lab], name: str, data: st.DataObject
) -> None:
    lab = labs["agglomerate"]
    (path,) = lab.layout.root.glob(name)
    keys = sorted(json.loads(path.read_text()))
    change = data.draw(st.dictionaries(st.sampled_from(keys), JSON_VALUES, min_size=1, max_size=2) | JSON_VALUES)
    text = changed(path, change) if isinstance(change, dict) else json.dumps(change)
    fuzzed(lab, {path: text}, [MADE[name], "validate", "-e", str(lab.toml.parent)])
