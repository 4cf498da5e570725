"""Comparing the segmentation of every threshold with the truth: from one counting of fragments x truth and the
fragments of the skeletons' nodes, in each region."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box, Geometry, Nm3
from lsdflow_contract.lut import read_lut
from lsdflow_evaluate.artefacts import Segmented
from lsdflow_evaluate.config import MONGO, EvaluateConfig
from lsdflow_evaluate.lattice import strided
from lsdflow_evaluate.report.data import Score
from lsdflow_evaluate.scores.counting import CountedVolumes, counted
from lsdflow_evaluate.scores.run_length import Skeletons
from lsdflow_evaluate.scores.scored_regions import NAMED, ROI, THRESHOLD_ROI, Region
from lsdflow_evaluate.scores.threshold_scores import ThresholdScore, best_of, runs_of, threshold_score
from lsdflow_evaluate.skeletons.files import read_skeletons, read_skeletons_of_mongo
from lsdflow_evaluate.skeletons.nodes import Nodes
from lsdflow_evaluate.skeletons.skeletonise import lattice_step_vox, skeletons_of
from lsdflow_metrics.contingency import Contingency
from lsdflow_runtime.engine.block_task import BlockTask
from lsdflow_runtime.io.target import Truth

# Thinning truth holds the whole lattice in memory: beyond this many points "auto" leaves it out.
MOST_LATTICE_POINTS = 1 << 27
# A thinned skeleton can touch its neighbour's voxels at a face: a few nodes are no merge.
MERGE_NODES_OF_THINNED_TRUTH = 5


@dataclass(frozen=True)
class RegionScores:
    """The scores of all thresholds in one region, and its table of fragments x truth."""

    region: Region
    scores: tuple[ThresholdScore, ...]
    table: Contingency

    def at(self, chosen: tuple[str, float]) -> ThresholdScore | None:
        """The score of a merge function at a threshold."""
        found = [s for s in self.scores if (s.merge_function, s.threshold) == chosen]
        return found[0] if found else None


@dataclass(frozen=True)
class TruthScores:
    """Scores of all thresholds by region; `chosen` = (merge function, threshold); settings say what was done."""

    regions: dict[str, RegionScores]
    chosen: tuple[str, float]
    settings: dict[str, str]

    @property
    def scores(self) -> tuple[ThresholdScore, ...]:
        """The scores of the region that the report is about."""
        return self.regions[ROI].scores

    @property
    def box(self) -> Box:
        """That region."""
        return self.regions[ROI].region.box

    @property
    def chosen_score(self) -> ThresholdScore | None:
        """The score of the chosen threshold."""
        return self.regions[ROI].at(self.chosen)

    def rows(self) -> tuple[Score, ...]:
        """The rows of the report."""
        return tuple(s.as_row((s.merge_function, s.threshold) == self.chosen) for s in self.scores)


@dataclass(frozen=True)
class Traced:
    """Skeletons, what they are, and how many nodes of each of two neurons make a segment a merger."""

    skeletons: Skeletons | None
    kind: str
    merge_min_nodes: int


def score_against_truth(
    config: EvaluateConfig,
    segmented: Segmented,
    counting: BlockTask,
    regions: Mapping[str, Region],
    traced: Traced,
    nodes: Mapping[str, Nodes],
) -> TruthScores:
    """Score every lookup table in every region from the finished counting, and choose the threshold.

    `nodes`: by region, where there are skeletons.
    """
    tables = {name: counted(counting, name) for name in regions}
    scores: dict[str, list[ThresholdScore]] = {name: [] for name in regions}
    for known in segmented.luts:
        lut = read_lut(known.path)
        named = (known.merge_function, known.threshold, int(known.facts["segments"]))
        for name, table in tables.items():
            runs = runs_of(*nodes[name], lut, traced.merge_min_nodes) if name in nodes else None
            try:
                scores[name].append(threshold_score(named, lut, table, config.zeros, runs))
            except BadData as error:
                error.where = error.where or f"evaluate.{name.replace(NAMED, 'regions.')}"
                raise
    settings = {
        "segmentation 0": config.zeros,
        "region": str(regions[ROI].box),
        "skeletons": traced.kind if traced.skeletons is not None else "none",
        "merge needs nodes": str(traced.merge_min_nodes),
    }
    chosen = (segmented.merge_function, segmented.threshold)
    if THRESHOLD_ROI in regions:
        chosen = (segmented.merge_function, best_of(scores[THRESHOLD_ROI], segmented.merge_function))
        settings["threshold chosen on"] = str(regions[THRESHOLD_ROI].box)
    found = {name: RegionScores(region, tuple(scores[name]), tables[name]) for name, region in regions.items()}
    return TruthScores(found, chosen, settings)


def trace(experiment: Experiment, config: EvaluateConfig, volumes: CountedVolumes) -> Traced:
    """The skeletons that the config asks for: from a file or a database, thinned truth, or none."""
    skeletons, kind = _skeletons(experiment, config, volumes.grid, volumes.truth, volumes.regions[ROI].box)
    thinned = MERGE_NODES_OF_THINNED_TRUTH if kind.startswith("thinned") else 1
    return Traced(skeletons, kind, config.merge_min_nodes or thinned)


def _skeletons(
    experiment: Experiment, config: EvaluateConfig, grid: Geometry, truth: Truth, box: Box
) -> tuple[Skeletons | None, str]:
    if config.skeletons == "none":
        return None, "none"
    if config.skeletons not in ("auto", "truth"):
        return _traced(experiment, config.skeletons), f"traced: {config.skeletons}"
    step = config.skeleton_lattice or lattice_step_vox(grid.voxel_size_nm)
    points = int(np.prod([-(-n // s) for n, s in zip(box.shape_vox, step, strict=True)]))
    if config.skeletons == "auto" and points > MOST_LATTICE_POINTS:
        return None, "none"
    spacing: Nm3 = tuple(s * v for s, v in zip(step, grid.voxel_size_nm, strict=True))  # type: ignore[assignment]
    middle = tuple(b + 0.5 for b in box.begin_vox)
    first: Nm3 = tuple(o + m * v for o, m, v in zip(grid.offset_nm, middle, grid.voxel_size_nm, strict=True))  # type: ignore[assignment]
    return skeletons_of(_lattice(truth, box, step), spacing, first), f"thinned truth, every {step} voxels"


def _traced(experiment: Experiment, given: str) -> Skeletons:
    """Skeletons of a file or folder, or of "mongo:NAME@FILE" where FILE holds a URI or is a folder of a dump."""
    if not given.startswith(MONGO):
        return read_skeletons(experiment.resolve(given))
    name, _, source = given.removeprefix(MONGO).partition("@")
    return read_skeletons_of_mongo(experiment.resolve(source), name, experiment.store.retry_s)


def _lattice(truth: Truth, box: Box, step: tuple[int, int, int]) -> NDArray[np.uint64]:
    """Every step-th voxel of the truth inside the box, read piece by piece."""
    return strided(truth.read, truth.labels.chunk_shape_vox, box, step)
