"""Everything the report shows, from what the experiment has; parts that fail become problems of the page."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.shown_volumes import viewer_layers
from lsdflow_contract.viewer_state import neuroglancer_state
from lsdflow_evaluate import history
from lsdflow_evaluate.artefacts import Segmented, Truth
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.layers import layers, open_layers, pictures, places_in, shown_box
from lsdflow_evaluate.report.data import Picture, ReportData
from lsdflow_evaluate.scores_file import verdict
from lsdflow_evaluate.seams import Seams
from lsdflow_evaluate.truth_scores import TruthScores
from lsdflow_runtime.volumes import Volume

VIEWER_HELP = (
    "Serve the experiment folder with cross-origin requests allowed at {url} (only on this machine), open "
    "neuroglancer, and paste this state (or report/neuroglancer.json) into its JSON editor."
)


@dataclass(frozen=True)
class Gathered:
    """What could be opened: the target's grid, the segmentation, the truth, the scores, the seams of blocks."""

    grid: Geometry | None
    segmented: Segmented | None
    truth: Truth | None
    scores: TruthScores | None
    seams: Seams | None = None

    @property
    def chosen(self) -> tuple[str, float] | None:
        """Merge function and threshold that the report is about."""
        if self.scores is not None:
            return self.scores.chosen
        return (self.segmented.merge_function, self.segmented.threshold) if self.segmented else None


def report_data(
    experiment: Experiment, config: EvaluateConfig, gathered: Gathered, collector: history.Collector
) -> ReportData:
    """The data of the page."""
    segmented, scores, grid = gathered.segmented, gathered.scores, gathered.grid
    shown, viewer = _volumes(experiment, config, grid, collector) if grid else ((), None)
    chosen_score = scores.chosen_score if scores else None
    facts = tuple(lut.facts for lut in segmented.luts) if segmented else ()
    return ReportData(
        experiment=experiment.common.name,
        created=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
        has_truth=gathered.truth is not None,
        verdicts=(verdict(chosen_score.partition.voi if chosen_score else None, config.voi_limit),),
        scores=scores.rows() if scores else (),
        segment_counts=history.segment_counts(facts, gathered.chosen),
        advice=_advice(segmented),
        seams=str(gathered.seams or ""),
        pictures=shown,
        losses=history.loss_curves(experiment),
        block_times=collector.collect("evaluate", lambda: history.block_times(experiment), ()),
        segment_sizes=history.segment_sizes(segmented.manifest) if segmented else None,
        versions=history.versions(experiment),
        voxel_size_nm=grid.voxel_size_nm if grid else None,
        shape_vox=grid.shape_vox if grid else None,
        roi=str(scores.box) if scores else "",
        neuroglancer_state=viewer,
        neuroglancer_help=VIEWER_HELP.format(url=config.viewer_url),
        fragments_by=history.fragments_by(experiment),
        settings=scores.settings if scores else {},
        problems=tuple(collector.problems),
    )


def _volumes(
    experiment: Experiment, config: EvaluateConfig, grid: Geometry, collector: history.Collector
) -> tuple[tuple[Picture, ...], dict[str, Any] | None]:
    """Pictures and viewer state of the volumes that exist; one that cannot be read is left out."""
    shown = layers(experiment, config, history.manifests(experiment))
    opened: dict[str, Volume] = {}
    nothing: dict[str, Volume] = {}
    for layer in shown:
        opened.update(collector.collect(_writer(layer.name), partial(open_layers, (layer,), grid), nothing))
    if not opened:
        return (), None
    box = shown_box(opened)
    made: list[Picture] = []
    for name, volume in opened.items():
        look = partial(pictures, volume, name, box, grid, config.picture_edge_vox)
        made.extend(collector.collect(_writer(name), look, ()))
    state = neuroglancer_state(viewer_layers(places_in(experiment.layout.root, shown, opened)), config.viewer_url)
    return tuple(made), state


def _writer(layer: str) -> str:
    """The stage that writes a layer."""
    stages = {"fragments": "watershed", "segmentation": "segment", "lsds": "predict", "affinities": "predict"}
    return stages.get(layer, "prepare")


def _advice(segmented: Segmented | None) -> str:
    advice = segmented.manifest.facts.get("advice") if segmented else None
    if not isinstance(advice, dict):
        return ""
    return f"threshold {advice['threshold']:.4f} by {advice['method']}: {advice['reason']}"
