"""Comparing the segmentation of every threshold with the truth, from one counting of fragments x truth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box, Geometry, Nm3
from lsdflow_contract.lut import read_lut
from lsdflow_evaluate.artefacts import Segmented, Truth, target_grid
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.counting import ROI, THRESHOLD_ROI, counted, regions_of
from lsdflow_evaluate.regions import pieces
from lsdflow_evaluate.report.data import Score
from lsdflow_evaluate.run_length import Skeletons
from lsdflow_evaluate.skeleton_files import read_skeletons
from lsdflow_evaluate.skeletonise import lattice_step_vox, skeletons_of
from lsdflow_evaluate.threshold_scores import ThresholdScore, best_of, runs_of, threshold_score
from lsdflow_metrics.contingency import Contingency
from lsdflow_runtime.block_task import BlockTask
from lsdflow_runtime.volumes import Volume

# Thinning truth holds the whole lattice in memory: beyond this many points "auto" leaves it out.
MOST_LATTICE_POINTS = 1 << 27
# A thinned skeleton can touch its neighbour's voxels at a face: a few nodes are no merge.
MERGE_NODES_OF_THINNED_TRUTH = 5


@dataclass(frozen=True)
class TruthScores:
    """Scores of all thresholds on `box`; `chosen` = (merge function, threshold); notes say what was done."""

    scores: tuple[ThresholdScore, ...]
    chosen: tuple[str, float]
    box: Box
    settings: dict[str, str]

    @property
    def chosen_score(self) -> ThresholdScore | None:
        """The score of the chosen threshold."""
        found = [s for s in self.scores if (s.merge_function, s.threshold) == self.chosen]
        return found[0] if found else None

    def rows(self) -> tuple[Score, ...]:
        """The rows of the report."""
        return tuple(s.as_row((s.merge_function, s.threshold) == self.chosen) for s in self.scores)


def score_against_truth(
    experiment: Experiment, config: EvaluateConfig, segmented: Segmented, truth: Truth, counting: BlockTask
) -> TruthScores:
    """Score every lookup table on the region from the finished counting, and choose the threshold."""
    grid = target_grid(experiment)
    regions = regions_of(config, grid, truth.labels.box.intersect(segmented.fragments.box))
    skeletons, kind = _skeletons(experiment, config, grid, truth, regions[ROI])
    nodes = _nodes(grid, segmented, skeletons, regions[ROI])
    scores = _scores(config, segmented, counted(counting, ROI), nodes, kind)
    settings = {
        "segmentation 0": config.zeros,
        "region": str(regions[ROI]),
        "skeletons": kind if skeletons is not None else "none",
        "merge needs nodes": str(_merge_nodes(config, kind)),
    }
    chosen = (segmented.merge_function, segmented.threshold)
    if THRESHOLD_ROI in regions:
        there = _scores(config, segmented, counted(counting, THRESHOLD_ROI), None, kind)
        chosen = (segmented.merge_function, best_of(list(there), segmented.merge_function))
        settings["threshold chosen on"] = str(regions[THRESHOLD_ROI])
    return TruthScores(scores, chosen, regions[ROI], settings)


def labels_at(volume: Volume, voxels: NDArray[np.int64], boxes: Iterable[Box]) -> NDArray[np.uint64]:
    """The label of each voxel (n, 3), reading only the boxes that hold one; 0 outside all boxes."""
    labels = np.zeros(len(voxels), np.uint64)
    for box in boxes:
        begin, end = np.array(box.begin_vox), np.array(box.end_vox)
        inside = np.flatnonzero(((voxels >= begin) & (voxels < end)).all(axis=1))
        if len(inside):
            z, y, x = (voxels[inside] - begin).T
            labels[inside] = volume.read(box)[z, y, x]
    return labels


Nodes = tuple[Skeletons, NDArray[np.uint64]]


def _scores(
    config: EvaluateConfig, segmented: Segmented, table: Contingency, nodes: Nodes | None, kind: str
) -> tuple[ThresholdScore, ...]:
    scores = []
    for known in segmented.luts:
        lut = read_lut(known.path)
        runs = runs_of(*nodes, lut, _merge_nodes(config, kind)) if nodes else None
        named = (known.merge_function, known.threshold, int(known.facts["segments"]))
        scores.append(threshold_score(named, lut, table, config.zeros, runs))
    return tuple(scores)


def _merge_nodes(config: EvaluateConfig, kind: str) -> int:
    if config.merge_min_nodes is not None:
        return config.merge_min_nodes
    return MERGE_NODES_OF_THINNED_TRUTH if kind.startswith("thinned") else 1


def _nodes(grid: Geometry, segmented: Segmented, skeletons: Skeletons | None, box: Box) -> Nodes | None:
    """The skeletons inside the box, and the fragment of each of their nodes."""
    if skeletons is None:
        return None
    voxels = np.floor((skeletons.positions_nm - np.array(grid.offset_nm)) / np.array(grid.voxel_size_nm))
    voxels = voxels.astype(np.int64)
    inside = ((voxels >= np.array(box.begin_vox)) & (voxels < np.array(box.end_vox))).all(axis=1)
    kept = skeletons.only(inside)
    if not len(kept.edges):
        return None
    fragments = segmented.fragments
    return kept, labels_at(fragments, voxels[inside], pieces(box, fragments.chunk_shape_vox))


def _skeletons(
    experiment: Experiment, config: EvaluateConfig, grid: Geometry, truth: Truth, box: Box
) -> tuple[Skeletons | None, str]:
    """Skeletons and what they are: read from a file, thinned truth, or none."""
    if config.skeletons == "none":
        return None, "none"
    if config.skeletons not in ("auto", "truth"):
        return read_skeletons(experiment.resolve(config.skeletons)), f"traced: {config.skeletons}"
    step = config.skeleton_lattice or lattice_step_vox(grid.voxel_size_nm)
    points = int(np.prod([-(-n // s) for n, s in zip(box.shape_vox, step, strict=True)]))
    if config.skeletons == "auto" and points > MOST_LATTICE_POINTS:
        return None, "none"
    spacing: Nm3 = tuple(s * v for s, v in zip(step, grid.voxel_size_nm, strict=True))  # type: ignore[assignment]
    middle = tuple(b + 0.5 for b in box.begin_vox)
    first: Nm3 = tuple(o + m * v for o, m, v in zip(grid.offset_nm, middle, grid.voxel_size_nm, strict=True))  # type: ignore[assignment]
    return skeletons_of(_lattice(truth, box, step), spacing, first), f"thinned truth, every {step} voxels"


def _lattice(truth: Truth, box: Box, step: tuple[int, int, int]) -> NDArray[np.uint64]:
    """Every step-th voxel of the truth inside the box, read piece by piece."""
    begin = np.array(box.begin_vox)
    lattice = np.zeros([-(-n // s) for n, s in zip(box.shape_vox, step, strict=True)], np.uint64)
    for piece in pieces(box, truth.labels.chunk_shape_vox):
        first = [-(-int(b) // s) for b, s in zip(np.array(piece.begin_vox) - begin, step, strict=True)]
        last = [-(-int(e) // s) for e, s in zip(np.array(piece.end_vox) - begin, step, strict=True)]
        if any(f >= e for f, e in zip(first, last, strict=True)):
            continue
        local = [f * s + int(o) - b for f, s, o, b in zip(first, step, begin, piece.begin_vox, strict=True)]
        taken = truth.read(piece)[tuple(slice(a, None, s) for a, s in zip(local, step, strict=True))]
        lattice[tuple(slice(f, e) for f, e in zip(first, last, strict=True))] = taken
    return lattice
