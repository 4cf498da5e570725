"""The report shows of each training its newest readable snapshot: pictures of one plane, and what its datasets hold."""

from __future__ import annotations

import ast
import base64
import io
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from lsdflow_contract.experiment import Experiment
from lsdflow_evaluate.evaluation import write_report
from lsdflow_evaluate.report import volumes
from lsdflow_evaluate.report.content import training_panels
from lsdflow_evaluate.report.volumes import training_snapshot, weighted_error

Make = Callable[..., Experiment]
REPOSITORY = Path(__file__).resolve().parents[3]
VOXEL_NM = (20.0, 10.0, 10.0)
RAW_SHAPE, SHAPE = (11, 20, 24), (5, 8, 12)
BEGIN = tuple((r - s) // 2 for r, s in zip(RAW_SHAPE, SHAPE, strict=True))


def written_names() -> dict[str, dict[str, str]]:
    """Of each kind of training our name -> dataset, as its source says: torch and gunpowder are not installed here."""
    source = REPOSITORY / "stages" / "_training" / "src" / "lsdflow_training" / "snapshots.py"
    values: dict[str, dict] = {}
    for node in ast.parse(source.read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            values[ast.unparse(target)] = ast.literal_eval(node.value)
    return {kind: {**values["_INPUTS"], **names} for kind, names in values["_NAMES"].items()}


def values_of(names: dict[str, str]) -> dict[str, np.ndarray]:
    """Dataset -> values; predictions are the targets + .5 where the weight is > 0, one channel of three."""
    rng = np.random.default_rng(5)
    made: dict[str, np.ndarray] = {}
    for key, name in names.items():
        channels = 10 if "lsds" in key else 3
        if key == "raw":
            made[name] = rng.uniform(-1, 1, RAW_SHAPE).astype(np.float32)
        elif key == "labels":
            made[name] = rng.integers(0, 4, SHAPE, dtype=np.uint64)
        elif key == "mask":
            made[name] = np.ones(SHAPE, np.uint8)
        elif key == "lsds_u8":
            made[name] = rng.integers(0, 256, (10, *RAW_SHAPE), dtype=np.uint8)
        elif key.startswith("weight"):
            made[name] = np.zeros((channels, *SHAPE), np.float32)
            made[name][0] = 2
        elif key.startswith("gt"):
            made[name] = rng.integers(0, 2, (channels, *SHAPE)).astype(np.uint8 if "affs" in key else np.float32)
        elif key.startswith("pred"):
            made[name] = np.full((channels, *SHAPE), 0.25, np.float32)
            made[name][0] = made[names["gt" + key.removeprefix("pred")]][0] + np.float32(0.5)
        else:
            made[name] = np.zeros((channels, *SHAPE), np.float32)
    return made


def write_snapshot(path: Path, kind: str = "lsd", **changed: np.ndarray | None) -> dict[str, np.ndarray]:
    """A snapshot as a training writes it; `changed`: other values by our name, None leaves the dataset out."""
    names = written_names()[kind]
    values = values_of(names)
    for key, other in changed.items():
        values.pop(names[key])
        if other is not None:
            values[names[key]] = other
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, array in values.items():
            dataset = file.create_dataset(name, data=array, compression="gzip", compression_opts=1)
            border = [(r - s) // 2 for r, s in zip(RAW_SHAPE, array.shape[-3:], strict=True)]
            dataset.attrs["offset"] = [b * v for b, v in zip(border, VOXEL_NM, strict=True)]
            dataset.attrs["resolution"] = VOXEL_NM
        file.attrs["loss"] = 0.1
    return values


def cut_short(path: Path) -> None:
    """Half of a file, as a full disk or a killed copy leaves it."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def pixels_of(uri: str) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))))


def test_the_names_are_those_that_a_training_writes() -> None:
    names = written_names()
    assert set(names) == {"lsd", "mtlsd", "acrlsd"}
    for kind, written in names.items():
        assert (written["raw"], written["labels"], written["mask"]) == (volumes.RAW, volumes.LABELS, volumes.MASK)
        found = [o for o in volumes.OUTPUTS if o.prediction in written.values()]
        outputs = [key.removeprefix("pred_") for key in written if key.startswith("pred_")]
        assert {(o.target, o.prediction, o.weight) for o in found} == {
            tuple(written[f"{part}_{output}"] for part in ("gt", "pred", "weight")) for output in outputs
        }, kind
        assert {o.layer for o in found} == {{"lsds": "lsds", "affs": "affinities"}[output] for output in outputs}
    assert names["acrlsd"]["lsds_u8"] == volumes.FROZEN_LSDS


@pytest.mark.proves("VIS-03")
@pytest.mark.parametrize(
    ("kind", "titles"),
    [
        ("lsd", ["LSDs"]),
        ("mtlsd", ["LSDs", "Affinities"]),
        ("acrlsd", ["Affinities"]),
    ],
)
def test_of_each_kind_of_training_every_output_is_seen(tmp_path: Path, kind: str, titles: list[str]) -> None:
    write_snapshot(tmp_path / "batch_1.hdf", kind)
    found = training_snapshot(tmp_path, "train-lsd", 100)
    assert found is not None
    inputs = ["Raw", "Labels", "Mask", *(["LSDs of the first network"] if kind == "acrlsd" else [])]
    outputs = [f"{title}: {part}" for title in titles for part in ("target", "prediction", "weight")]
    assert [title for title, _ in found.pictures] == inputs + outputs
    assert {picture.image.shape[:2] for _, picture in found.pictures} == {SHAPE[1:]}


def test_pictures_are_the_middle_plane_of_where_the_network_answers(tmp_path: Path) -> None:
    values = write_snapshot(tmp_path / "batch_500.hdf", "acrlsd")
    found = training_snapshot(tmp_path, "train-acrlsd", 100)
    assert found is not None
    assert (found.stage, found.iteration, found.left_out) == ("train-acrlsd", 500, ())
    panels = training_panels(found)
    assert {panel.place for panel in panels} == {f"yx plane, z = {RAW_SHAPE[0] // 2}"}
    seen = {panel.title: pixels_of(panel.figure.uri) for panel in panels if panel.figure}
    (_, y, x), (_, rows, columns) = BEGIN, SHAPE
    raw = values["volumes/raw"][RAW_SHAPE[0] // 2, y : y + rows, x : x + columns]
    np.testing.assert_array_equal(seen["Raw"], np.rint(255 * (raw.astype(np.float64) + 1) / 2))
    frozen = values["volumes/labels/pretrained_lsd"][:3, RAW_SHAPE[0] // 2, y : y + rows, x : x + columns]
    np.testing.assert_array_equal(seen["LSDs of the first network"], np.moveaxis(frozen, 0, -1))
    target = values["volumes/labels/gt_affinities"][:, SHAPE[0] // 2]
    np.testing.assert_array_equal(seen["Affinities: target"], 255 * np.moveaxis(target, 0, -1))
    assert set(seen["Affinities: prediction"][..., 1].ravel()) == {64}
    assert [set(seen["Affinities: weight"][..., c].ravel()) for c in range(3)] == [{255}, {0}, {0}]
    assert seen["Labels"].shape[0] % SHAPE[1] == 0


@pytest.mark.proves("TLS-20")
def test_the_table_shows_shape_type_range_and_the_error_where_the_weight_counts(tmp_path: Path) -> None:
    values = write_snapshot(tmp_path / "batch_1.hdf", "lsd")
    found = training_snapshot(tmp_path, "train-lsd", 100)
    assert found is not None
    words = {row[0]: row[1:] for row in found.datasets}
    assert set(words) == set(values)
    for name, array in values.items():
        shape = " × ".join(map(str, array.shape))
        assert words[name][:3] == (shape, str(array.dtype), f"{array.min():.4g} to {array.max():.4g}")
    assert {name: row[3] for name, row in words.items() if row[3] != "–"} == {
        "volumes/pred_embedding": "0.25, of 10 % of the values"
    }


def test_no_weight_and_a_prediction_that_is_no_number_are_reported(tmp_path: Path) -> None:
    nothing, spoilt = np.zeros((10, *SHAPE), np.float32), np.full((10, *SHAPE), np.nan, np.float32)
    assert np.isnan(weighted_error(spoilt, nothing, nothing)[0])
    write_snapshot(tmp_path / "batch_1.hdf", "lsd", weight_lsds=nothing)
    write_snapshot(tmp_path / "batch_2.hdf", "lsd", pred_lsds=spoilt)
    newest = training_snapshot(tmp_path, "train-lsd", 100)
    assert newest is not None
    assert "not a number, of 10 % of the values" in [row[4] for row in newest.datasets]
    (tmp_path / "batch_2.hdf").unlink()
    first = training_snapshot(tmp_path, "train-lsd", 100)
    assert first is not None
    assert "no weight > 0: nothing is trained here" in [row[4] for row in first.datasets]


def test_the_newest_is_the_highest_iteration_and_one_that_is_being_written_is_none(tmp_path: Path) -> None:
    assert training_snapshot(tmp_path / "snapshots", "train-lsd", 100) is None
    assert training_snapshot(tmp_path, "train-lsd", 100) is None
    (tmp_path / ".batch_9000.hdf.8f.partial").write_bytes(b"half")
    assert training_snapshot(tmp_path, "train-lsd", 100) is None
    for iteration in (1, 900, 1000):
        write_snapshot(tmp_path / f"batch_{iteration}.hdf")
    found = training_snapshot(tmp_path, "train-lsd", 100)
    assert found is not None
    assert (found.iteration, found.left_out) == (1000, ())


@pytest.mark.parametrize("wrong", ["short", "empty", "text", "no raw", "other shape", "elsewhere", "words"])
def test_a_snapshot_that_cannot_be_read_is_left_out_with_a_sentence(tmp_path: Path, wrong: str) -> None:
    write_snapshot(tmp_path / "batch_1.hdf")
    path = tmp_path / "batch_2.hdf"
    other = {"no raw": {"raw": None}, "other shape": {"gt_lsds": np.zeros((10, 5, 8, 8), np.float32)}}
    write_snapshot(path, **other.get(wrong, {}))
    if wrong == "short":
        cut_short(path)
    elif wrong in ("empty", "text"):
        path.write_text("" if wrong == "empty" else "no snapshot")
    elif wrong in ("elsewhere", "words"):
        with h5py.File(path, "a") as file:
            file["volumes/raw"].attrs["offset"] = [0, 0, 1000.0]
            if wrong == "words":
                file["volumes/names"] = ["a", "b"]
    found = training_snapshot(tmp_path, "train-lsd", 100)
    assert found is not None
    assert found.iteration == 1
    (sentence,) = found.left_out
    assert sentence.startswith("batch_2.hdf is left out: ")


def test_of_many_damaged_snapshots_the_newest_are_named_and_none_has_pictures(tmp_path: Path) -> None:
    for iteration in range(8):
        (tmp_path / f"batch_{iteration}.hdf").write_text("damaged")
    found = training_snapshot(tmp_path, "train-lsd", 100)
    assert found is not None
    assert (found.iteration, found.pictures) == (None, ())
    assert [sentence.split()[0] for sentence in found.left_out] == [f"batch_{n}.hdf" for n in (7, 6, 5, 4, 3)]


def test_the_page_has_it_during_the_training_and_names_what_is_left_out(make_experiment: Make) -> None:
    experiment = make_experiment()
    page = experiment.layout.report / "index.html"
    assert write_report(experiment, refresh_s=60) == []
    assert 'id="training"' not in page.read_text()
    folder = experiment.layout.train_dir("train-acrlsd") / "snapshots"
    write_snapshot(folder / "batch_40.hdf", "acrlsd")
    write_snapshot(folder / "batch_50.hdf", "acrlsd")
    cut_short(folder / "batch_50.hdf")
    assert write_report(experiment, refresh_s=60) == []
    section = page.read_text().split('<section id="training">')[1].split("</section>")[0]
    assert "train-acrlsd, snapshot of iteration 40" in section
    assert section.count("<figure>") == 7
    assert "batch_50.hdf is left out: " in section
    assert "0.25, of 33.3 % of the values" in section
    assert ".under-train-acrlsd { background-image" in page.read_text()
    (folder / "batch_40.hdf").unlink()
    assert write_report(experiment) == []
    assert "no snapshot can be read" in page.read_text()
