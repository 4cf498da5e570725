"""Reads everything that the report shows, once. A part that cannot be read becomes a problem of the page.

done marks, runs, logs --stage_records--.
loss.csv, snapshots of trainings --------+--> ReportData --page--> report/*.html
volumes, scores, manifests --------------'
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lsdflow_contract.checkpoint import Bundle, bundle_folder, bundle_iterations, read_bundle
from lsdflow_contract.errors import StageError, fix_of
from lsdflow_contract.experiment import STAGES
from lsdflow_contract.failed_blocks import failed_blocks_of_results
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest
from lsdflow_contract.shown_volumes import viewer_layers
from lsdflow_contract.viewer_state import neuroglancer_state
from lsdflow_evaluate.config import STAGE, EvaluateConfig
from lsdflow_evaluate.inputs import Segmented
from lsdflow_evaluate.report.compared import compared_results
from lsdflow_evaluate.report.data import LossCurve, Neurites, Picture, Problem, ReportData, StageBlocks
from lsdflow_evaluate.report.neurites import largest_neurites
from lsdflow_evaluate.report.stage_records import (
    Source,
    attempts_of,
    finished_stages,
    last_error,
    shown_passes,
    stage_blocks,
    stage_records,
)
from lsdflow_evaluate.report.training_snapshots import training_snapshot
from lsdflow_evaluate.report.volumes import PlaneBox, central_planes, pictures, places_in, shown_box, volumes_shown
from lsdflow_runtime.io.volumes import Volume, open_volume

TRAINING = ("train-lsd", "train-acrlsd")
MOST_FAILED_BLOCKS = 20
WRITERS = {"fragments": "watershed", "segmentation": "segment", "lsds": "predict", "affinities": "predict"}

Value = TypeVar("Value")


class Collector:
    """Runs the parts of a report; a part that fails becomes a problem of the page instead of the end of it."""

    def __init__(self) -> None:
        self.errors: list[StageError] = []
        self.problems: list[Problem] = []

    def collect(self, stage: str, part: Callable[[], Value], otherwise: Value) -> Value:
        """The part, or `otherwise` if it raises a StageError."""
        try:
            return part()
        except StageError as error:
            self.errors.append(error)
            if (problem := problem_of(stage, error.as_dict())) not in self.problems:
                self.problems.append(problem)
            return otherwise


def collect(
    source: Source,
    config: EvaluateConfig,
    grid: Geometry | None,
    segmented: Segmented | None,
    scores: Mapping[str, Any],
    result: Manifest | None,
    collector: Collector,
) -> ReportData:
    """The data of the pages.

    scores: what scores.json holds, or will; result: their manifest, which need not be on disk yet. `collector` may hold
    problems already, and gets those of the parts that cannot be read.
    """
    layout = source.layout
    manifests = finished_stages(layout)
    earlier: list[Problem] = collector.collect(STAGE, lambda: run_problems(source, manifests), [])
    attempts = {stage: attempts_of(layout, stage) for stage in STAGES}
    blocks: dict[str, StageBlocks] = {}
    for stage in STAGES:
        of_stage = partial(stage_blocks, source, stage, manifests.get(stage), attempts[stage])
        if found := collector.collect(STAGE, of_stage, None):
            blocks[stage] = found
    seen = _volumes(layout, config, grid, result, collector) if grid else _Seen()
    snapshots = {stage: layout.train_dir(stage) / "snapshots" for stage in source.stages if stage in TRAINING}
    trained = (training_snapshot(path, stage, config.picture_edge_vox) for stage, path in snapshots.items())
    networks: tuple[Bundle, ...] = collector.collect(
        "predict", lambda: networks_of(layout, manifests.get("predict")), ()
    )
    return ReportData(
        experiment=source.name,
        folder=layout.root.name,
        created=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        scores=scores,
        voi_limit=config.voi_limit,
        luts=tuple(lut.facts for lut in segmented.luts) if segmented else (),
        fragment_voxels=segmented.fragments.box.size if segmented else 0,
        manifests=manifests,
        networks=networks,
        stages=stage_records(source, manifests, attempts, bool(collector.errors)),
        blocks=blocks,
        losses=tuple(filter(None, (loss_curve(layout.train_dir(stage), stage) for stage in TRAINING))),
        trained=tuple(filter(None, trained)),
        voxel_size_nm=grid.voxel_size_nm if grid else None,
        shape_vox=grid.shape_vox if grid else None,
        pictures=seen.pictures,
        neurites=seen.neurites,
        compared=compared_results(layout, manifests, result, grid, seen.plane),
        viewer_state=seen.viewer_state,
        viewer_url=config.viewer_url,
        problems=(*earlier, *collector.problems),
    )


def problem_of(stage: str, error: Mapping[str, Any]) -> Problem:
    """The problem of a recorded error (StageError.as_dict)."""
    parts = {name: str(error.get(name, "")) for name in ("where", "wanted", "found")}
    what = str(error.get("what") or error.get("error", "unknown error"))
    return Problem(stage=stage, what=what, **parts, fix=fix_of(error))


def run_problems(source: Source, manifests: Mapping[str, Manifest]) -> list[Problem]:
    """The error of each earlier stage's last run, if it ended in one, and its failed blocks, accepted or not."""
    accepted = failed_blocks_of_results(source.layout)
    problems = [
        Problem(
            failed.stage,
            f"finished without block {failed.block}, as compute.failed_blocks allows: {failed.why}",
            where=str(failed.box),
            fix="the scores leave it out; lsdflow run tries it again",
        )
        for failed in accepted
    ]
    for stage in STAGES[:-1]:
        if error := last_error(source.layout, stage):
            problems.append(problem_of(stage, error))
        known = {failed.block for failed in accepted if failed.stage == stage}
        for marks in shown_passes(source, stage, manifests.get(stage)).values():
            for number in sorted(marks.failed() - known)[:MOST_FAILED_BLOCKS]:
                record = problem_of(stage, marks.failure(number))
                problems.append(Problem(stage, f"block {number}: {record.what}", record.where, fix=record.fix))
    return problems


def loss_curve(folder: Path, stage: str) -> LossCurve | None:
    """Loss and validation loss of a training, from its loss.csv, if there is one; rows that cannot be read are left
    out."""
    path = folder / "loss.csv"
    if not path.exists():
        return None
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row.get("iteration") or "").isdigit()]
    names = [n for n in (rows[0] if rows else {}) if n and "loss" in n]
    series = {name: np.array([_number(row.get(name)) for row in rows], np.float64) for name in names}
    iterations = np.array([int(row["iteration"]) for row in rows], np.int64)
    return LossCurve(stage, iterations, {n: v for n, v in series.items() if np.isfinite(v).any()})


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return float("nan")


def networks_of(layout: ExperimentLayout, predict: Manifest | None) -> tuple[Bundle, ...]:
    """The networks that predicted, in the order in which they are applied: LSDs first. None of a checkpoint from
    elsewhere, or gone.

    Raises StageError for a bundle that cannot be read.
    """
    if predict is None:
        return ()
    chosen, iteration = predict.config.get("checkpoint"), predict.config.get("resolved", {}).get("iteration")
    if iteration is None or not (chosen == "best" or isinstance(chosen, int)):
        return ()
    folder = bundle_folder(layout.checkpoints("train-acrlsd"), iteration)
    if not folder.is_dir():
        return ()
    affinities = read_bundle(folder)
    trained_with = predict.config.get("lsd_checkpoint", "trained_with") == "trained_with"
    if affinities.lsd_bundle_sha256 is None or not trained_with:
        return (affinities,)
    checkpoints = layout.checkpoints("train-lsd")
    for number in bundle_iterations(checkpoints):
        bundle = read_bundle(bundle_folder(checkpoints, number))
        if bundle.weights_sha256 == affinities.lsd_bundle_sha256:
            return (bundle, affinities)
    return (affinities,)


@dataclass(frozen=True, eq=False)
class _Seen:
    """What was made of the volumes that could be read; `plane`: that across z."""

    pictures: tuple[Picture, ...] = ()
    neurites: Neurites | None = None
    viewer_state: Mapping[str, Any] | None = None
    plane: PlaneBox | None = None


def _volumes(
    layout: ExperimentLayout, config: EvaluateConfig, grid: Geometry, result: Manifest | None, collector: Collector
) -> _Seen:
    """Pictures of the volumes that exist; one that cannot be read is left out."""
    shown = volumes_shown(layout, config.truth_dataset, result)
    opened: dict[str, Volume] = {}
    for layer in shown:
        volume = collector.collect(
            _writer(layer.name), partial(open_volume, layer.container, layer.dataset, grid), None
        )
        opened |= {layer.name: volume} if volume is not None else {}
    if not opened:
        return _Seen()
    box, edge = shown_box(opened), config.picture_edge_vox
    made: list[Picture] = []
    for name, volume in opened.items():
        made.extend(collector.collect(_writer(name), partial(pictures, volume, name, box, grid, edge), ()))
    neurites = None
    if "segmentation" in opened:
        neurites = collector.collect("segment", partial(largest_neurites, opened["segmentation"]), None)
    layers = viewer_layers(places_in(layout.root, shown, opened))
    state = neuroglancer_state(layers, config.viewer_url, failed=failed_blocks_of_results(layout))
    return _Seen(tuple(made), neurites, state, central_planes(box, edge)[0])


def _writer(layer: str) -> str:
    """The stage that writes a layer."""
    return WRITERS.get(layer, "prepare")
