"""Reads everything that the report needs, once. A part that cannot be read becomes a problem of the page.

done marks, runs, logs --stage_records--.
loss.csv, snapshots of trainings --------+--> ReportData --page--> report/index.html
volumes, scores, manifests --------------'
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lsdflow_contract.checkpoint import BUNDLE_JSON, Bundle, bundle_folder, bundle_iterations, read_bundle
from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import STAGES, TRAININGS
from lsdflow_contract.failed_blocks import failed_blocks_of_results
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import Manifest, differences, finished_manifests
from lsdflow_contract.viewer_state import neuroglancer_state
from lsdflow_contract.viewer_volumes import viewer_layers
from lsdflow_evaluate.config import STAGE, EvaluateConfig
from lsdflow_evaluate.inputs import Segmented
from lsdflow_evaluate.report.data import ComparedResult, LossCurve, Neurites, Picture, Problem, ReportData, StageBlocks
from lsdflow_evaluate.report.neurites import largest_neurites
from lsdflow_evaluate.report.stage_records import (
    Source,
    attempts_of,
    finished_stages,
    last_error,
    passes_of_stage,
    stage_blocks,
    stage_records,
)
from lsdflow_evaluate.report.to_label import box_to_label
from lsdflow_evaluate.report.volumes import (
    PlaneBox,
    central_planes,
    labelled_voxel,
    picture_of,
    pictured_box,
    pictures,
    places_in,
    report_volumes,
    training_snapshot,
)
from lsdflow_runtime.io.volumes import Volume, open_volume

MOST_FAILED_BLOCKS = 20
# Of so many results the segmentations are compared.
MOST_PICTURES = 6
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
    """The data of the page.

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
    volumes = _volumes(layout, config, grid, result, collector) if grid else _Volumes()
    to_label = None
    if grid and segmented and not scores.get("has_truth"):
        to_label = collector.collect("segment", partial(box_to_label, segmented, grid), None)
    snapshots = {stage: layout.train_dir(stage) / "snapshots" for stage in source.stages if stage in TRAININGS}
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
        losses=tuple(filter(None, (loss_curve(layout.train_dir(stage), stage) for stage in TRAININGS))),
        trained=tuple(filter(None, trained)),
        voxel_size_nm=grid.voxel_size_nm if grid else None,
        shape_vox=grid.shape_vox if grid else None,
        pictures=volumes.pictures,
        neurites=volumes.neurites,
        compared=compared_results(layout, manifests, result, grid, volumes.plane),
        to_label=to_label,
        viewer_state=volumes.viewer_state,
        viewer_url=config.viewer_url,
        problems=(*earlier, *collector.problems),
    )


def problem_of(stage: str, error: Mapping[str, Any]) -> Problem:
    """The problem of a recorded error (StageError.as_dict)."""
    parts = {name: str(error.get(name, "")) for name in ("where", "wanted", "found", "fix")}
    what = str(error.get("what") or error.get("error", "unknown error"))
    return Problem(stage=stage, what=what, **parts)


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
        for marks in passes_of_stage(source, stage, manifests.get(stage)).values():
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


def _checkpoint_of(layout: ExperimentLayout, predict: Manifest) -> Path | None:
    """The folder of the network that predicted the affinities; None if the manifest does not name it."""
    chosen, iteration = predict.config.get("checkpoint"), predict.config.get("resolved", {}).get("iteration")
    if isinstance(chosen, str) and chosen != "best" and not chosen.isdigit():
        return layout.root / chosen
    return None if iteration is None else bundle_folder(layout.checkpoints("train-acrlsd"), iteration)


def networks_of(layout: ExperimentLayout, predict: Manifest | None) -> tuple[Bundle, ...]:
    """The networks that predicted, in the order in which they are applied: LSDs first. None if a checkpoint is gone
    or has changed.

    Raises StageError for a bundle that cannot be read.
    """
    folder = _checkpoint_of(layout, predict) if predict else None
    if predict is None or folder is None or not folder.is_dir():
        return ()
    affinities = read_bundle(folder)
    # A folder from elsewhere may hold another network by now.
    if affinities.weights_sha256 != predict.inputs.get("network", affinities.weights_sha256):
        return ()
    lsd_checkpoint = predict.config.get("lsd_checkpoint", "trained_with")
    if isinstance(lsd_checkpoint, str) and (layout.root / lsd_checkpoint / BUNDLE_JSON).exists():
        lsds = read_bundle(layout.root / lsd_checkpoint)
        return (lsds, affinities) if lsds.weights_sha256 == predict.inputs.get("lsd_network") else (affinities,)
    if affinities.lsd_bundle_sha256 is None or lsd_checkpoint != "trained_with":
        return (affinities,)
    checkpoints = layout.checkpoints("train-lsd")
    for number in bundle_iterations(checkpoints):
        bundle = read_bundle(bundle_folder(checkpoints, number))
        if bundle.weights_sha256 == affinities.lsd_bundle_sha256:
            return (bundle, affinities)
    return (affinities,)


@dataclass(frozen=True, eq=False)
class _Volumes:
    """What was made of the volumes that could be read; `plane`: that across z."""

    pictures: tuple[Picture, ...] = ()
    neurites: Neurites | None = None
    viewer_state: Mapping[str, Any] | None = None
    plane: PlaneBox | None = None


def _volumes(
    layout: ExperimentLayout, config: EvaluateConfig, grid: Geometry, result: Manifest | None, collector: Collector
) -> _Volumes:
    """Pictures of the volumes that exist; one that cannot be read is left out."""
    existing = report_volumes(layout, config.truth_dataset, result)
    opened: dict[str, Volume] = {}
    for layer in existing:
        volume = collector.collect(
            _writer(layer.name), partial(open_volume, layer.container, layer.dataset, grid), None
        )
        opened |= {layer.name: volume} if volume is not None else {}
    if not opened:
        return _Volumes()
    box, edge = pictured_box(opened), config.picture_edge_vox
    at = (
        collector.collect("prepare", partial(labelled_voxel, opened["truth"], box), None) if "truth" in opened else None
    )
    planes = central_planes(box, edge, at)
    made: list[Picture] = []
    for name, volume in opened.items():
        made.extend(collector.collect(_writer(name), partial(pictures, volume, name, planes, grid), ()))
    neurites = None
    if "segmentation" in opened:
        neurites = collector.collect("segment", partial(largest_neurites, opened["segmentation"]), None)
    layers = viewer_layers(places_in(layout.root, existing, opened))
    state = neuroglancer_state(layers, config.viewer_url, failed=failed_blocks_of_results(layout))
    return _Volumes(tuple(made), neurites, state, planes[0])


def _writer(layer: str) -> str:
    """The stage that writes a layer."""
    return WRITERS.get(layer, "prepare")


def compared_results(
    layout: ExperimentLayout,
    manifests: Mapping[str, Manifest],
    current: Manifest | None,
    grid: Geometry | None,
    plane: PlaneBox | None,
) -> tuple[ComparedResult, ...]:
    """The finished results of evaluate, the current one first, then the newest; none if there are fewer than two.

    manifests: of the stages that have finished; current: the result of the present settings, which need not be on disk
    yet; plane: the section of the segmentations on the target's grid: each once, of the first few results.
    """
    known = {stage: finished_manifests(layout, stage) for stage in STAGES}
    now = {**manifests, **({STAGE: current} if current else {})}
    others = {path: found for path, found in known[STAGE].items() if current is None or found.key != current.key}
    rows = [*filter(None, [current]), *(others[path] for path in sorted(others, key=_age_s))]
    pictures: dict[str, Picture | None] = {}
    compared = []
    for manifest in rows if len(rows) > 1 else ():
        chain = _chain(manifest, known)
        segment = chain.get("segment")
        picture = None
        if grid and plane and segment and segment.identity not in pictures and len(pictures) < MOST_PICTURES:
            picture = pictures[segment.identity] = _section(layout, segment, grid, plane)
        compared.append(
            ComparedResult(
                key=manifest.key[:8],
                current=manifest is current,
                settings=tuple(_settings(now, {**chain, STAGE: manifest})),
                scores=manifest.facts,
                segments=segment.facts.get("segments") if segment else None,
                age_s=next((_age_s(path) for path, found in known[STAGE].items() if found == manifest), 0.0),
                picture=picture,
            )
        )
    return tuple(compared)


def _section(layout: ExperimentLayout, segment: Manifest, grid: Geometry, plane: PlaneBox) -> Picture | None:
    """One plane of a segmentation; None if it cannot be read."""
    with suppress(StageError):
        volume = open_volume(*segment.output_array(layout, "segmentation"), grid)
        return picture_of("segmentation", volume.read(plane.box, outside="zero"), plane, grid.voxel_size_nm)
    return None


def _age_s(path: Path) -> float:
    return max(time.time() - path.stat().st_mtime, 0.0)


def _chain(result: Manifest, known: Mapping[str, Mapping[Path, Manifest]]) -> dict[str, Manifest | None]:
    """The manifests of what a result was made from, by stage; None for one that is no longer there."""
    chain: dict[str, Manifest | None] = {}
    waiting = [result]
    while waiting:
        for stage, identity in waiting.pop().inputs.items():
            if stage in known and stage not in chain:
                chain[stage] = next((m for m in known[stage].values() if m.identity == identity), None)
                waiting += filter(None, [chain[stage]])
    return chain


def _settings(now: Mapping[str, Manifest], chain: Mapping[str, Manifest | None]) -> Iterator[str]:
    """How each stage of a chain differs from that of now, with the key of its result."""
    for stage in STAGES:
        made, current = chain.get(stage), now.get(stage)
        if made is None:
            if stage in chain:
                yield f"{stage}: the result was dropped"
        elif current is None or made.identity != current.identity:
            changed = _differences(current, made) if current else ""
            if changed or stage != STAGE:
                yield f"{stage} {made.key[:8]}" + (f": {changed}" if changed else "")


def _differences(current: Manifest, other: Manifest) -> str:
    """Settings as the user wrote them, and inputs that no stage has made."""
    known, inputs = ({name: m.inputs[name] for name in m.inputs if name not in STAGES} for m in (current, other))
    return differences(current.model_copy(update={"inputs": known}), other.config, inputs)
