"""A round of improvement: segment, cut the worst boxes, correct them, train on them from the present weights.

The person who corrects is the ground truth of a synthetic volume.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile

from lsdflow_contract.arrays import LABELS
from lsdflow_contract.checkpoint import read_bundle
from lsdflow_contract.experiment import load_experiment
from lsdflow_contract.geometry import Box
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_launch.boxes import next_tables, present_networks
from lsdflow_launch.init.demo import CHECKPOINT, make_demo
from lsdflow_runtime.io.volumes import open_volume

BIN = Path(os.environ.get("LSDFLOW_BIN", Path(__file__).resolve().parents[2] / "bin"))
SIZE = 40
# Two iterations of the smallest patch that the network supports.
SHORT = ("max_iteration=2", "input_shape_vox=[32,32,32]", "num_workers=1", "elastic_probability=0.0")


def lsdflow(*words: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LSDFLOW_BIN": str(BIN)}
    command = [str(BIN / "lsdflow"), *map(str, words)]
    return subprocess.run(command, env=environment, check=False, capture_output=True, text=True)


def answer_of(*words: str | Path) -> dict[str, Any]:
    done = lsdflow(*words, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def segmented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, segmented by its network."""
    folder = tmp_path_factory.mktemp("loop") / "demo"
    make_demo(folder, (60, 70, 80), seed=3, checkpoint=CHECKPOINT)
    assert lsdflow("run", folder).returncode == 0
    return folder


@pytest.fixture(scope="module")
def boxes(segmented: Path) -> list[Path]:
    """The two worst boxes, corrected."""
    cut = answer_of("cut", segmented, "--at", "worst:1..2", "--size", str(SIZE))["boxes"]
    truth = open_volume(ExperimentLayout(segmented).target_volume, LABELS.dataset)
    for made in cut:
        right = truth.read(Box(tuple(made["begin_vox"]), tuple(made["shape_vox"])))
        labels = np.unique(right, return_inverse=True)[1].reshape(right.shape).astype(np.uint16) + (right.min() > 0)
        tifffile.imwrite(
            Path(made["folder"]) / "labels.tif", labels.astype(np.uint16), imagej=True, metadata={"axes": "ZYX"}
        )
    return [Path(made["folder"]) for made in cut]


@pytest.mark.proves("NEW-12")
def test_the_round_trains_on_the_boxes_from_the_present_weights_and_segments_again(
    segmented: Path, boxes: list[Path], tmp_path: Path
) -> None:
    new = tmp_path / "next"
    settings = [word for key in SHORT for word in ("--set", f"train-acrlsd.{key}")]
    added = answer_of("add-labels", segmented, *boxes, "--to", new, *settings)
    assert added["next"] == f"lsdflow run {new}"
    assert [volume["name"] for volume in added["volumes"]] == [box.name for box in boxes]
    shutil.move(boxes[0], boxes[0].with_name("elsewhere"))  # the new experiment does not need it
    try:
        done = lsdflow("run", new)
    finally:
        shutil.move(boxes[0].with_name("elsewhere"), boxes[0])
    assert done.returncode == 0, done.stderr
    layout = ExperimentLayout(new)
    prepared, trained = read_manifest(layout, "prepare"), read_manifest(layout, "train-acrlsd")
    assert {name for name in prepared.outputs if name.startswith("training/")} == {f"training/{b.name}" for b in boxes}
    assert read_bundle(new / trained.config["initial_weights"]) == read_bundle(CHECKPOINT)
    assert json.loads((layout.report / "scores.json").read_text())["voi"] > 0


def test_the_new_experiment_keeps_the_volumes_and_settings_of_the_old_one(segmented: Path, tmp_path: Path) -> None:
    old = load_experiment(segmented, ["segment.threshold=0.4", "store.database=mine", "train-acrlsd.sigma=90 nm"])
    volumes = [{"name": "a", "raw": "../inputs/a.zarr"}, {"name": "box-1", "raw": "/b.zarr", "probability": 1.0}]
    old.tables["prepare"]["training"] = volumes
    tables = next_tables(old, tmp_path / "deeper" / "next", [{"name": "box-1"}])
    first, second, box = tables["prepare"]["training"]
    assert (tmp_path / "deeper" / "next" / first["raw"]).resolve() == (segmented / volumes[0]["raw"]).resolve()
    assert second == {"name": "box-1", "raw": "/b.zarr"}
    assert box == {"name": "box-1-2", "raw": "boxes/box-1.zarr", "pad_labels": True}
    assert tables["segment"]["threshold"] == 0.4
    assert "database" not in tables["store"], "a database holds the graph of one experiment"
    assert "checkpoint" not in tables["predict"], "or nothing would be trained"
    assert tables["train-acrlsd"]["sigma"] == "90 nm"
    assert tables["train-acrlsd"]["learning_rate"] == 1e-4
    weights = (tmp_path / "deeper" / "next" / tables["train-acrlsd"]["initial_weights"]).resolve()
    assert weights == present_networks(old)["train-acrlsd"]
    assert read_bundle(weights) == read_bundle(CHECKPOINT)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("cut", "DIR", "--at", "worst:1", "--size", "a lot"), 2),
        (("cut", "DIR", "--at", "worst:1", "--size", "0"), 2),
        (("cut", "DIR", "--at", "9999999,0,0"), 2),
        (("cut", "DIR", "--at", "worst:1..2", "--size", str(SIZE)), 73),
        (("add-labels", "DIR", "DIR/nothing", "--to", "NEW"), 66),
        (("add-labels", "DIR", "BOX", "--to", "DIR"), 73),
        (("add-labels", "DIR", "BOX", "--to", "NEW"), 65),  # smaller than an output of the network
        (("add-labels", "DIR", "BOX", "--to", "NEW", "--set", "train-acrlsd.no_such=1"), 78),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_written(
    segmented: Path, boxes: list[Path], tmp_path: Path, words: tuple[str, ...], code: int
) -> None:
    places = {"DIR": str(segmented), "BOX": str(boxes[0]), "NEW": str(tmp_path / "new")}
    before = sorted(segmented.rglob("*"))
    done = lsdflow(*(places.get(word, word.replace("DIR/", f"{segmented}/")) for word in words))
    assert done.returncode == code, done.stderr
    assert not (tmp_path / "new").exists()
    assert sorted(path for path in segmented.rglob("*") if "/runs/" not in str(path)) == [
        path for path in before if "/runs/" not in str(path)
    ]
