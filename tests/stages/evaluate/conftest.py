"""A small finished experiment: target, truth, predictions, fragments, tables, segmentation, manifests.

A run of evaluate writes all pages with their pictures, which takes seconds. So tests that only read what a run left
share `finished` and `finished_without_truth`, tests that change it take a copy (`copy_of`), and tests of scores alone
take them from `scores_now`, which draws nothing.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lsdflow_contract.arrays import AFFS, FRAGMENTS, LABELS, LSDS, RAW, SEGMENTATION, ArraySpec
from lsdflow_contract.experiment import Experiment, load_experiment
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.lut import Lut, lut_name, write_lut
from lsdflow_contract.manifest import Manifest, Writer
from lsdflow_contract.testing import affinities_of, membrane_raw, voronoi_labels
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.evaluation import score
from lsdflow_evaluate.report.collect import Collector
from lsdflow_evaluate.stage import Evaluate
from lsdflow_runtime.io.volumes import OutputArray
from lsdflow_runtime.store.done_marks import DoneMarks

GRID = Geometry((20.0, 10.5, 10.5), (400.0, 0.0, 21.0), (18, 24, 26))
BLOCK_VOX = (8, 8, 16)
THRESHOLDS = (0.1, 0.28, 0.29, 0.9)

MakeExperiment = Callable[..., Experiment]
ScoresNow = Callable[[Experiment], dict[str, Any]]


def truth_labels() -> np.ndarray:
    """6 cells; a slab is not labelled."""
    labels = voronoi_labels(GRID.shape_vox, 6, 3)
    labels[:, :3] = 0
    return labels


def fragment_labels() -> np.ndarray:
    """Each cell in two halves along z: fragments 2c + 1000 and 2c + 1001; a corner without fragments."""
    cells = voronoi_labels(GRID.shape_vox, 6, 3)
    fragments = cells * np.uint64(2) + np.uint64(1000)
    fragments[9:] += np.uint64(1)
    fragments[:2, :5, :5] = 0
    return fragments


def segments_at(threshold: float, fragments: np.ndarray) -> np.ndarray:
    """0.1: nothing merged; 0.28: the halves of half of the cells; 0.29: of all cells; 0.9: everything is one."""
    whole = fragments - fragments % np.uint64(2)
    if threshold < 0.2:
        return fragments
    if threshold < 0.285:
        return np.where(fragments < 1008, whole, fragments)
    return whole if threshold < 0.5 else np.full_like(fragments, fragments.min())


def write(path: Path, spec: ArraySpec, values: np.ndarray) -> None:
    output = OutputArray(path, spec, GRID, GRID.box, BLOCK_VOX)
    output.create({"key": "made by the test"})
    output.open().write(Box((0, 0, 0), GRID.shape_vox), values)


def manifest(experiment: Experiment, stage: str, inputs: dict[str, str], **changed: Any) -> None:
    facts = {"blocks": 4, "seconds": 1.5, **changed.pop("facts", {})}
    Manifest(
        writer=Writer(stage=stage, version="0.1.0"),
        key=f"{stage}-key",
        config={},
        inputs=inputs,
        outputs=changed.pop("outputs", {}),
        facts=facts,
        identity=f"{stage}-identity",
    ).write(experiment.layout)


def write_tables(experiment: Experiment) -> None:
    fragments = np.unique(fragment_labels())[1:]
    for threshold in THRESHOLDS:
        segments = segments_at(threshold, fragments)
        facts = {
            "merge_function": "hist_quant_75",
            "threshold": threshold,
            "segments": len(np.unique(segments)),
            "largest_segment_vox": 10,
            "change_to_next_bits": None if threshold == 0.9 else 0.5,
            "fragments_fingerprint": "watershed-identity",
        }
        write_lut(experiment.layout.luts / lut_name("hist_quant_75", threshold), Lut(fragments, segments), facts)
    stranger = {"merge_function": "mean", "threshold": 0.5, "segments": 1, "fragments_fingerprint": "other fragments"}
    write_lut(experiment.layout.luts / lut_name("mean", 0.5), Lut(fragments, fragments), stranger)


def build(root: Path) -> None:
    """Write everything that the stages before evaluate leave."""
    root.mkdir()
    (root / "experiment.toml").write_text('[experiment]\nname = "cells"\n[compute]\nrunner = "serial"\n')
    experiment = load_experiment(root)
    layout, cells, fragments = experiment.layout, voronoi_labels(GRID.shape_vox, 6, 3), fragment_labels()
    write(layout.target_volume, RAW, membrane_raw(cells))
    write(layout.target_volume, LABELS, truth_labels())
    predictions = layout.result("predict", "predict-key") / "predictions.zarr"
    fragments_path = layout.result("watershed", "watershed-key") / "fragments.zarr"
    segmentation_path = layout.result("segment", "segment-key") / "segmentation.zarr"
    write(predictions, AFFS, affinities_of(cells))
    write(predictions, LSDS, np.full((10, *GRID.shape_vox), 128, np.uint8))
    write(fragments_path, FRAGMENTS, fragments)
    write(segmentation_path, SEGMENTATION, np.where(fragments == 0, fragments, segments_at(0.28, fragments)))
    write_tables(experiment)
    manifest(experiment, "prepare", {})
    manifest(experiment, "predict", {}, outputs={"affs": str((predictions / AFFS.dataset).relative_to(root))})
    fragments_at = {"fragments": str((fragments_path / FRAGMENTS.dataset).relative_to(root))}
    manifest(experiment, "watershed", {"predict": "predict-identity"}, outputs=fragments_at)
    segmented = {"merge_function": "hist_quant_75", "threshold": 0.28, "size_edges_vox": [1, 2, 4], "segments": 9}
    advice = {"threshold": 0.28, "method": "stability", "reason": "the widest plateau"}
    facts = {**segmented, "size_segments": [3, 6], "advice": advice}
    segments_at_path = {"segmentation": str((segmentation_path / SEGMENTATION.dataset).relative_to(root))}
    manifest(experiment, "segment", {"watershed": "watershed-identity"}, facts=facts, outputs=segments_at_path)
    for number in range(3):
        record = {"seconds": 0.5 + number, "checksums": {}, "facts": {}}
        DoneMarks.of(layout.store, "watershed", "watershed-key").mark_done(number, record)
    losses = layout.train_dir("train-lsd") / "loss.csv"
    losses.parent.mkdir(parents=True)
    losses.write_text(
        "iteration,loss,it_per_s,learning_rate,validation_loss\n1,0.5,2,1e-4,\n2,0.25,2,1e-4,\n2,,,,0.3\n"
    )


@pytest.fixture
def make_experiment(tmp_path: Path) -> MakeExperiment:
    """Make (once per name) the experiment in tmp_path/name and load it with overrides."""

    def make(name: str = "a", *overrides: str) -> Experiment:
        if not (tmp_path / name).exists():
            build(tmp_path / name)
        return load_experiment(tmp_path / name, list(overrides))

    return make


@pytest.fixture
def copy_of(tmp_path: Path) -> MakeExperiment:
    """Copy an experiment to tmp_path/name, to be changed there, and load it with overrides."""

    def copied(source: Experiment, name: str, *overrides: str) -> Experiment:
        shutil.copytree(source.layout.root, tmp_path / name)
        return load_experiment(tmp_path / name, list(overrides))

    return copied


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """The experiment after a run of evaluate. Only to be read: many tests share it."""
    root = tmp_path_factory.mktemp("finished") / "a"
    build(root)
    Evaluate().run(load_experiment(root))
    return load_experiment(root)


@pytest.fixture(scope="session")
def finished_without_truth(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    """The same of an experiment without truth. Only to be read."""
    root = tmp_path_factory.mktemp("without_truth") / "a"
    build(root)
    shutil.rmtree(load_experiment(root).layout.target_volume / LABELS.dataset)
    Evaluate().run(load_experiment(root))
    return load_experiment(root)


@pytest.fixture(scope="session")
def scores_now() -> ScoresNow:
    """Count and score as a run does, without its report; a part that fails raises."""

    def scored(experiment: Experiment) -> dict[str, Any]:
        collector = Collector()
        scores = score(experiment, experiment.table("evaluate", EvaluateConfig), collector).scores
        if collector.errors:
            raise collector.errors[0]
        return dict(json.loads(json.dumps(scores)))

    return scored
