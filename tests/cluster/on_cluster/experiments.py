"""The experiment that the tests submit: the demo's synthetic volume, smaller, with networks that train in seconds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cluster import REPOSITORY, Cluster

from lsdflow_contract.experiment import BLOCK_STAGES, STAGES
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.lut import read_lut
from lsdflow_contract.manifest import read_manifest
from lsdflow_contract.testing import made, micro_network, tables_of
from lsdflow_launch.init.demo import write_volume
from lsdflow_launch.init.template import toml_value
from lsdflow_launch.synthetic.image import synthetic_em
from lsdflow_runtime.io.volumes import open_volume

BIN = Path(os.environ.get("LSDFLOW_BIN", REPOSITORY / "bin"))
SHAPE_VOX = (136, 80, 80)
TRAINED_SECTIONS = 64
VOXEL_SIZE_NM = (10.0, 10.0, 10.0)
NETWORK = micro_network(40)


def database_of(cluster: Cluster, name: str) -> str:
    """A database of this session: another session's experiment of the same name has a claim on its own."""
    return f"{cluster.shared.name}-{name}"


def tables(cluster: Cluster, name: str, more: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The experiment file's tables for a run on the cluster; `more` is laid over them."""
    found: dict[str, dict[str, Any]] = {
        "experiment": {"name": name, "mode": "acrlsd", "profile": "tiny"},
        "store": {"engine": "mongo", "uri_file": str(cluster.uri_file), "database": database_of(cluster, name)},
        # The GPUs of the test cluster are pretended: a job that was given some would be refused with "auto".
        "compute": {"block_timeout_s": 40, "join_wait_s": 240, "device": "cpu"},
        "cluster": {"images": str(cluster.sif_folder)},
        "prepare": {
            "training": [{"name": "train", "raw": "input/train.hdf"}],
            "target": {"raw": "input/volume.hdf", "truth": "input/volume.hdf"},
        },
        "train-lsd": NETWORK,
        "train-acrlsd": NETWORK,
        "predict": {"block_shape": "28 vox"},
        "watershed": {"block_shape": "16 vox", "context": "8 vox"},
        # Networks of seconds know little: at the advised threshold everything would be one segment.
        "segment": {"threshold": 0.5},
    }
    for table, values in more.items():
        found[table] = {**found.get(table, {}), **values}
    return found


def write_experiment(folder: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Write DIR/experiment.toml."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(
        f"[{table}]\n" + "".join(f"{key} = {toml_value(value)}\n" for key, value in values.items())
        for table, values in tables.items()
    )
    (folder / "experiment.toml").write_text(text)


def write_volumes(folder: Path) -> None:
    """Write DIR/input: a volume with labels to train on, and another one to segment."""
    raw, labels = synthetic_em(SHAPE_VOX, VOXEL_SIZE_NM, seed=3)
    cut = TRAINED_SECTIONS
    write_volume(folder / "input" / "train.hdf", raw[:cut], labels[:cut])
    write_volume(folder / "input" / "volume.hdf", raw[cut:], labels[cut:])


def run_locally(folder: Path, stages: Sequence[str]) -> None:
    """Run stages by the clone's commands, one block after another, with the files engine: the reference."""
    overrides = ("compute.runner=serial", "store.engine=files")
    for stage in stages:
        command = [str(BIN / stage), "run", "--experiment", str(folder / "experiment.toml")]
        command += [part for override in overrides for part in ("--set", override)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, f"{stage} ended with {done.returncode}: {done.stderr}"


def copy_finished(source: Path, folder: Path, until: str) -> None:
    """Copy an experiment with what its stages before `until` made; files of the store are keyed and stay behind."""
    kept = ("input", "results/prepare", "results/train-lsd", "results/train-acrlsd", "train")
    for name in kept:
        if (source / name).exists():
            shutil.copytree(source / name, folder / name, symlinks=True)
    (folder / "manifests").mkdir(parents=True)
    for stage in STAGES[: STAGES.index(until)]:
        shutil.copy(source / "manifests" / f"{stage}.json", folder / "manifests")
    shutil.copy(source / "images.env", folder)


def copy_prepared(source: Path, folder: Path) -> None:
    """Copy an experiment with its volumes, prepared and not trained on."""
    copy_finished(source, folder, until="train-lsd")
    for name in ("train", "results/train-lsd", "results/train-acrlsd"):
        shutil.rmtree(folder / name, ignore_errors=True)


def identities(folder: Path, stages: Sequence[str] = BLOCK_STAGES[:-1]) -> dict[str, str]:
    """Stage -> hash of its work and of every checksum of what it made."""
    return {stage: read_manifest(ExperimentLayout(folder), stage).identity for stage in stages}


def assert_same_bits(folder: Path, reference: Path) -> None:
    """Fragments, segmentation, tables and the identity of every block stage up to segment are the same."""
    for stage, name in (("watershed", "fragments"), ("segment", "segmentation")):
        own, expected = (open_volume(made(ExperimentLayout(r), stage), f"volumes/{name}") for r in (folder, reference))
        assert np.array_equal(own.read(own.box), expected.read(expected.box)), name
    made_here, made_there = (tables_of(ExperimentLayout(root)) for root in (folder, reference))
    tables_there = sorted(path.name for path in made_there.glob("lut_*.npz"))
    assert tables_there
    assert sorted(path.name for path in made_here.glob("lut_*.npz")) == tables_there
    for name in tables_there:
        lut, wanted = read_lut(made_here / name), read_lut(made_there / name)
        assert np.array_equal(lut.fragments, wanted.fragments), name
        assert np.array_equal(lut.segments, wanted.segments), name
    assert identities(folder) == identities(reference)


def manifest(folder: Path, stage: str) -> dict[str, Any]:
    """The stage's manifest as written in the file."""
    return dict(json.loads((folder / "manifests" / f"{stage}.json").read_text()))
