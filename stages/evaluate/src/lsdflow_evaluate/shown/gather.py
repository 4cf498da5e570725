"""Everything the report shows, from what the experiment has; parts that fail become problems of the page."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lsdflow_contract.experiment import Experiment
from lsdflow_contract.failed_blocks import failed_blocks_of_results
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.manifest import Manifest
from lsdflow_contract.shown_volumes import viewer_layers
from lsdflow_contract.viewer_state import neuroglancer_state
from lsdflow_evaluate.artefacts import Segmented
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.report.data import Picture, ReportData, Snapshot, TrainingSnapshot
from lsdflow_evaluate.report.records import FAILED, FINISHED, StageRecord
from lsdflow_evaluate.scores.comparing import Compared
from lsdflow_evaluate.scores.larger_error import larger_error
from lsdflow_evaluate.scores.scores_file import lsd_error_text, score_rows, verdict, worst_places
from lsdflow_evaluate.shown import history
from lsdflow_evaluate.shown.compared import Section, compared_results, section_of
from lsdflow_evaluate.shown.layers import layers, open_layers, pictures, places_in, shown_box
from lsdflow_evaluate.shown.networks import networks_of
from lsdflow_evaluate.shown.snapshot import snapshot_of
from lsdflow_evaluate.shown.stage_records import stage_record, stages_of_mode
from lsdflow_evaluate.shown.training_snapshots import training_snapshot
from lsdflow_evaluate.without_truth.seams import Seams
from lsdflow_runtime.io.target import Truth
from lsdflow_runtime.io.volumes import Volume

VIEWER_HELP = (
    "Serve the experiment folder with cross-origin requests allowed at {url} (only on this machine), open "
    "neuroglancer, and paste this state (or report/neuroglancer.json) into its JSON editor."
)

# Fragments of a trained network have hundreds of voxels and more; of one that has learnt nothing, some ten.
CRUMB_VOXELS = 50


@dataclass(frozen=True)
class Gathered:
    """What could be opened: the target's grid, the segmentation, the truth; and how they compare.

    result: the manifest of the scores, which need not be on disk yet.
    """

    grid: Geometry | None
    segmented: Segmented | None
    truth: Truth | None
    compared: Compared | None = None
    result: Manifest | None = None


def report_data(
    experiment: Experiment,
    config: EvaluateConfig,
    gathered: Gathered,
    scores: Mapping[str, Any],
    collector: history.Collector,
) -> ReportData:
    """The data of the pages; `scores`: what scores.json holds, or will."""
    segmented, grid = gathered.segmented, gathered.grid
    seen = _volumes(experiment, config, grid, gathered.result, collector) if grid else _Seen()
    facts = tuple(lut.facts for lut in segmented.luts) if segmented else ()
    finished = history.manifests(experiment)
    return ReportData(
        experiment=experiment.common.name,
        folder=experiment.layout.root.name,
        created=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        has_truth=gathered.truth is not None,
        verdicts=(verdict(scores.get("voi"), config.voi_limit),),
        scores=score_rows(scores),
        no_scores=str(scores.get("reason", "")),
        segment_counts=history.segment_counts(facts, _chosen(segmented, scores)),
        advice=_advice(segmented),
        larger_error=larger_error(scores),
        crumbs=_crumbs(segmented, finished.get("watershed")),
        seams=str(Seams.of_dict(scores["seams"])) if "seams" in scores else "",
        worst=worst_places(scores),
        compared=compared_results(experiment, gathered.result, seen.section),
        lsd_error=lsd_error_text(scores),
        pictures=seen.pictures,
        snapshot=seen.snapshot,
        losses=history.loss_curves(experiment),
        trained=_trained(experiment, config.picture_edge_vox),
        block_times=collector.collect("evaluate", lambda: history.block_times(experiment), ()),
        segment_sizes=history.segment_sizes(segmented.manifest) if segmented else None,
        versions=history.versions(experiment),
        stages=_stages(experiment, finished, bool(collector.errors)),
        voxel_size_nm=grid.voxel_size_nm if grid else None,
        shape_vox=grid.shape_vox if grid else None,
        roi=_region(scores),
        neuroglancer_state=seen.state,
        neuroglancer_help=VIEWER_HELP.format(url=config.viewer_url),
        fragments_by=history.fragments_by(experiment),
        manifests=finished,
        networks=collector.collect("predict", lambda: networks_of(experiment, finished.get("predict")), ()),
        settings=dict(scores.get("settings", {})),
        problems=tuple(collector.problems),
    )


def _stages(experiment: Experiment, finished: Mapping[str, Manifest], failing: bool) -> tuple[StageRecord, ...]:
    """Every stage of the chain. The run that writes this very page has no outcome yet: it ends with the page."""
    records = [stage_record(experiment, stage, finished.get(stage)) for stage in stages_of_mode(experiment)]
    last = records[-1].last
    if last is None or last.exit_code is not None or not last.name.endswith(f"-{os.getpid()}"):
        return tuple(records)
    ending = replace(last, seconds=time.time() - last.started, exit_code=int(failing))
    state = FAILED if failing else FINISHED
    return (*records[:-1], replace(records[-1], runs=(*records[-1].runs[:-1], ending), state=state))


def _trained(experiment: Experiment, edge_vox: int) -> tuple[TrainingSnapshot, ...]:
    """What the trainings of the chain show of themselves; nothing of one that has written no snapshot."""
    stages = [stage for stage in stages_of_mode(experiment) if stage in history.TRAINING]
    folders = {stage: experiment.layout.train_dir(stage) / "snapshots" for stage in stages}
    found = (training_snapshot(folder, stage, edge_vox) for stage, folder in folders.items())
    return tuple(snapshot for snapshot in found if snapshot is not None)


@dataclass(frozen=True, eq=False)
class _Seen:
    """Pictures, the snapshot and the viewer's state of the volumes that could be read; what draws other results."""

    pictures: tuple[Picture, ...] = ()
    snapshot: Snapshot | None = None
    state: dict[str, Any] | None = None
    section: Section | None = None


def _volumes(
    experiment: Experiment,
    config: EvaluateConfig,
    grid: Geometry,
    result: Manifest | None,
    collector: history.Collector,
) -> _Seen:
    """What the volumes that exist look like; one that cannot be read is left out."""
    shown = layers(experiment, config, result)
    opened: dict[str, Volume] = {}
    nothing: dict[str, Volume] = {}
    for layer in shown:
        opened.update(collector.collect(_writer(layer.name), partial(open_layers, (layer,), grid), nothing))
    if not opened:
        return _Seen()
    box = shown_box(opened)
    made: list[Picture] = []
    for name, volume in opened.items():
        look = partial(pictures, volume, name, box, grid, config.picture_edge_vox)
        made.extend(collector.collect(_writer(name), look, ()))
    snapshot = None
    if "segmentation" in opened:
        snapshot = collector.collect("segment", partial(snapshot_of, opened["segmentation"]), None)
    layers_shown = viewer_layers(places_in(experiment.layout.root, shown, opened))
    failed = failed_blocks_of_results(experiment.layout)
    state = neuroglancer_state(layers_shown, config.viewer_url, failed=failed)
    return _Seen(tuple(made), snapshot, state, section_of(experiment, grid, box, config.picture_edge_vox))


def _chosen(segmented: Segmented | None, scores: Mapping[str, Any]) -> tuple[str, float] | None:
    """Merge function and threshold that the report is about."""
    if "threshold" in scores:
        return str(scores["merge_function"]), float(scores["threshold"])
    return (segmented.merge_function, segmented.threshold) if segmented else None


def _region(scores: Mapping[str, Any]) -> str:
    roi = scores.get("roi")
    return str(Box(tuple(roi["begin_vox"]), tuple(roi["shape_vox"]))) if isinstance(roi, dict) else ""


def _writer(layer: str) -> str:
    """The stage that writes a layer."""
    stages = {"fragments": "watershed", "segmentation": "segment", "lsds": "predict", "affinities": "predict"}
    return stages.get(layer, "prepare")


def _advice(segmented: Segmented | None) -> str:
    advice = segmented.manifest.facts.get("advice") if segmented else None
    if not isinstance(advice, dict):
        return ""
    return f"threshold {advice['threshold']:.4f} by {advice['method']}: {advice['reason']}"


def _crumbs(segmented: Segmented | None, watershed: Manifest | None) -> str:
    """What to do where fragments are crumbs: the mark of a network that has hardly learnt."""
    fragments = watershed.facts.get("totals", {}).get("fragments", 0) if watershed else 0
    if segmented is None or not fragments:
        return ""
    mean = segmented.fragments.box.size / fragments
    if mean >= CRUMB_VOXELS:
        return ""
    return (
        f"{fragments:,.0f} fragments of {mean:.0f} voxels on average. A network that knows membranes leaves far fewer, "
        "far larger ones: look at the affinities and at the loss, and train longer (max_iteration, max_minutes)."
    )
