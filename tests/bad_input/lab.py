"""Small good experiments that a case may spoil: source volumes, and what every stage made of them.

Built once per session up to the stage that a case asks for, then copied: no case sees what another one spoilt.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr
from numpy.typing import NDArray

from lsdflow_agglomerate.stage import Agglomerate
from lsdflow_contract.checkpoint import BestCheckpoint, Bundle, UNetSpec, write_best
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_contract.sealing import SEAL, sealed
from lsdflow_contract.testing import membrane_raw, voronoi_labels
from lsdflow_launch.init.template import toml_value
from lsdflow_network.bundle import save_bundle
from lsdflow_network.unet import UNet
from lsdflow_predict.stage import Predict
from lsdflow_prepare.stage import Prepare
from lsdflow_segment.stage import Segment
from lsdflow_watershed.stage import Watershed

watershed = Watershed()
agglomerate = Agglomerate()
predict = Predict()
segment = Segment()
prepare = Prepare()

VOXEL_NM = (10.0, 8.0, 8.0)
TRAIN_VOX, TARGET_VOX = (40, 40, 40), (24, 28, 32)
CHUNK_VOX = (16, 16, 16)
OUTPUTS = {"lsd": {"lsds": 10}, "acrlsd": {"affs": 3}}
TRAINED_BY = {"lsd": "train-lsd", "acrlsd": "train-acrlsd"}
Tables = dict[str, Any]

MICRO_TRAINING: Tables = {
    "num_fmaps": 2,
    "fmap_inc_factor": 2,
    "downsample_factors": [[2, 2, 2]],
    "input_shape_vox": [28, 28, 28],
    "predict_input_shape_vox": [32, 32, 32],
    "num_workers": 0,
    "threads": 1,
    "sigma": "24 nm",
}


def good_tables() -> Tables:
    """The experiment file that has nothing wrong."""
    return {
        "experiment": {"name": "good", "mode": "acrlsd", "profile": "tiny"},
        "compute": {"runner": "serial", "workers": 1, "device": "cpu"},
        "prepare": {
            "training": [{"name": "a", "raw": "../input/train.zarr"}],
            "target": {"raw": "../input/volume.zarr", "truth": "../input/volume.zarr"},
        },
        "train-lsd": dict(MICRO_TRAINING),
        "train-acrlsd": dict(MICRO_TRAINING),
        "watershed": {"block_shape": "16 vox", "context": "4 vox", "min_seed_distance_vox": 4},
        "segment": {"thresholds_step": 0.1, "threshold": 0.5},
    }


@dataclass
class Lab:
    """A copy of a good experiment (root/exp) with its source volumes (root/input), to be spoilt."""

    root: Path
    tables: Tables = field(default_factory=good_tables)

    @property
    def layout(self) -> ExperimentLayout:
        return ExperimentLayout(self.root / "exp")

    @property
    def toml(self) -> Path:
        return self.layout.experiment_toml

    def experiment(self, *overrides: str) -> Experiment:
        return load_experiment(self.toml, overrides)

    def source(self, container: str, dataset: str) -> Path:
        """Folder of a source array: raw or labels of train or volume."""
        return self.root / "input" / f"{container}.zarr" / dataset

    def save(self) -> None:
        """Write the tables as experiment.toml."""
        self.toml.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"{name} = {toml_value(table)}" for name, table in self.tables.items()]
        self.toml.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def set(self, table: str, **keys: Any) -> None:
        """Set keys of a table; None takes one away."""
        self._change(self.tables.setdefault(table, {}), keys)

    def set_training(self, **keys: Any) -> None:
        """Set keys of the first training volume."""
        self._change(self.tables["prepare"]["training"][0], keys)

    def set_target(self, **keys: Any) -> None:
        """Set keys of the target volume."""
        self._change(self.tables["prepare"]["target"], keys)

    def _change(self, table: Tables, keys: Mapping[str, Any]) -> None:
        for key, value in keys.items():
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value
        self.save()


def write_source(folder: Path, values: NDArray[Any], **attributes: Any) -> None:
    """A zarr 2 array of a source volume; resolution and offset in nm, overridden by `attributes` (None: absent)."""
    shutil.rmtree(folder, ignore_errors=True)
    given = {"resolution": [int(v) for v in VOXEL_NM], "offset": [0, 0, 0]} | attributes
    kept = {key: value for key, value in given.items() if value is not None}
    chunks = (*values.shape[:-3], *CHUNK_VOX)
    zarr.create_array(folder, data=values, chunks=chunks, zarr_format=2, attributes=kept)


def edit_json(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file, as lsdflow would write it; None removes one."""
    content = json.loads(path.read_text())
    changed = {key: value for key, value in (content | changes).items() if value is not None}
    if changed.get("facts", {}).pop(SEAL, None):  # a manifest
        changed["facts"][SEAL] = sealed(changed)[SEAL]
    path.write_text(json.dumps(changed))


def labels_of(shape_vox: tuple[int, int, int]) -> NDArray[np.uint64]:
    """Eight neurons."""
    return voronoi_labels(shape_vox, 8)


def make_sources(lab: Lab) -> None:
    """Training volume and target, raw with labels, and the experiment file."""
    for name, shape_vox in (("train", TRAIN_VOX), ("volume", TARGET_VOX)):
        labels = labels_of(shape_vox)
        write_source(lab.source(name, "volumes/raw"), membrane_raw(labels))
        write_source(lab.source(name, "volumes/labels/neuron_ids"), labels)
    lab.save()


def save_network(lab: Lab, kind: str, iteration: int, **changes: Any) -> Bundle:
    """A random micro network, which becomes the best of its stage, with the manifest of an imported network."""
    spec = UNetSpec(
        in_channels=11 if kind == "acrlsd" else 1, num_fmaps=2, fmap_inc_factor=2, downsample_factors=((2, 2, 2),)
    )
    torch.manual_seed(iteration)
    fields: Tables = {
        "writer": Writer.of(TRAINED_BY[kind]),
        "kind": kind,
        "iteration": iteration,
        "unet": spec,
        "outputs": OUTPUTS[kind],
        "train_input_shape_vox": (28, 28, 28),
        "train_output_shape_vox": (12, 12, 12),
        "predict_input_shape_vox": (32, 32, 32),
        "predict_output_shape_vox": (12, 12, 12),
        "voxel_size_nm": VOXEL_NM,
        "sigma_nm": (24.0, 24.0, 24.0) if kind == "lsd" else None,
    }
    stage = TRAINED_BY[kind]
    network = UNet(spec, OUTPUTS[kind])
    saved = save_bundle(lab.layout.checkpoints(stage), Bundle(**{**fields, **changes}), network.state_dict())
    best = BestCheckpoint(iteration=iteration, weights_sha256=saved.weights_sha256)
    write_best(lab.layout.best_checkpoint(stage), best)
    inputs, facts = {"imported_checkpoint": saved.weights_sha256}, {"iteration": iteration, "from": "nowhere"}
    Manifest(writer=Writer.of(stage), key="k", config={}, inputs=inputs, outputs={}, facts=facts, identity=stage).write(
        lab.layout
    )
    return saved


def train(lab: Lab) -> None:
    """Networks as train-lsd and train-acrlsd leave them."""
    lsd = save_network(lab, "lsd", 3)
    save_network(lab, "acrlsd", 7, lsd_bundle_sha256=lsd.weights_sha256)


def _run(stage: Any) -> Callable[[Lab], None]:
    return lambda lab: stage.run(lab.experiment())


# What is done, in order; a case names the last one.
STEPS: dict[str, Callable[[Lab], None]] = {
    "init": make_sources,
    "prepare": _run(prepare),
    "train": train,
    "predict": _run(predict),
    "watershed": _run(watershed),
    "agglomerate": _run(agglomerate),
    "segment": _run(segment),
}


class Laboratory:
    """Makes labs; what is finished up to a step is built once and copied."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = 0

    def lab(self, after: str = "init") -> Lab:
        """A fresh copy of the experiment in which every step up to `after` is done."""
        self.made += 1
        root = self.folder / f"lab-{self.made}"
        shutil.copytree(self._finished(after), root)
        return Lab(root)

    def _finished(self, after: str) -> Path:
        root = self.folder / f"after-{after}"
        if not root.exists():
            steps = list(STEPS)
            earlier = steps[: steps.index(after)]
            if earlier:
                shutil.copytree(self._finished(earlier[-1]), root)
            STEPS[after](Lab(root))
        return root
