"""The comparison with the truth, pass by pass; each is block work of the same workers, of which everything stays.

    counting    fragments x truth in every region             (counting)
    nodes       the fragment of every skeleton node           (skeleton_nodes), where there are skeletons
    places      where the worst splits and merges are         (fault_places), where there are any

and, truth or not, lsd_error (disagreement).

A worker finds its pass by the key of the work that its coordinator names.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.lut import luts_of, read_lut
from lsdflow_evaluate.artefacts import Segmented
from lsdflow_evaluate.config import EvaluateConfig
from lsdflow_evaluate.faults import places as fault_places
from lsdflow_evaluate.faults.places import Place
from lsdflow_evaluate.faults.ranking import Fault, worst_faults
from lsdflow_evaluate.scores.counting import CountedVolumes, counting_task, open_counted
from lsdflow_evaluate.scores.later_works import find_work, kept_works
from lsdflow_evaluate.scores.scored_regions import THRESHOLD_ROI
from lsdflow_evaluate.scores.scores_file import NO_TRUTH
from lsdflow_evaluate.scores.truth_scores import Traced, TruthScores, score_against_truth, trace
from lsdflow_evaluate.skeletons import nodes as skeleton_nodes
from lsdflow_evaluate.skeletons.nodes import Nodes
from lsdflow_evaluate.without_truth import lsd_error
from lsdflow_runtime.engine.block_task import BlockTask
from lsdflow_runtime.engine.blockwise import run_blocks

LOG = logging.getLogger("lsdflow.evaluate")


@dataclass(frozen=True)
class Compared:
    """Scores, the worst faults of each region with their places, and the keys of the later works."""

    scores: TruthScores
    worst: dict[str, list[tuple[Fault, Place | None]]]
    works: tuple[str, ...]


def compare(experiment: Experiment, config: EvaluateConfig, segmented: Segmented) -> Compared:
    """Count, look up and score. Raises MissingInput if the chosen threshold has no table."""
    counting = require_counting(experiment)
    run_blocks(counting)
    volumes = open_counted(experiment)
    traced = trace(experiment, config, volumes)
    nodes, works = _nodes(counting, volumes, traced)
    found = score_against_truth(config, segmented, counting, volumes.regions, traced, nodes)
    if found.chosen_score is None:
        raise MissingInput(
            "no table of the chosen threshold",
            where=luts_of(experiment.layout, segmented.manifest),
            wanted=f"{found.chosen[0]} at {found.chosen[1]:.4f}",
            fix="run segment again",
        )
    worst, more = _worst(config, counting, volumes, segmented, found)
    return Compared(found, worst, (*works, *more))


def require_counting(experiment: Experiment) -> BlockTask:
    """The counting. MissingInput if there is no truth."""
    task = counting_task(experiment)
    if task is None:
        raise MissingInput(NO_TRUTH, where=experiment.layout.target_volume)
    return task


def work_of(experiment: Experiment, key: str) -> BlockTask:
    """The work of a key: the counting, or one that the coordinator left. ContractMismatch (76) for another key."""
    counting = counting_task(experiment)
    if counting is not None and counting.key == key:
        return counting
    work = find_work(experiment, key)
    part = work.parameters["part"]
    if part == lsd_error.PART:
        return lsd_error.lsd_error_task(experiment)
    remade = {skeleton_nodes.PART: skeleton_nodes.nodes_task_of, fault_places.PART: fault_places.places_task_of}
    return remade[part](require_counting(experiment), work)


def works_there(experiment: Experiment) -> list[BlockTask]:
    """The counting, if there is truth, and the later works that were left and belong to what is there now."""
    counting = counting_task(experiment)
    found = [] if counting is None else [counting]
    for key in kept_works(experiment):
        try:
            known = find_work(experiment, key).parameters.get("counting")
        except BadData:
            continue  # a run writes its files again
        if known is None or (counting is not None and counting.key == known):
            task = work_of(experiment, key)
            found += [task] if task.key == key else []
    return found


def _nodes(counting: BlockTask, volumes: CountedVolumes, traced: Traced) -> tuple[dict[str, Nodes], tuple[str, ...]]:
    """The skeletons of each region with their fragments, and the key of the look-up."""
    skeletons = traced.skeletons
    if skeletons is None:
        return {}, ()
    task = skeleton_nodes.nodes_task(counting, skeletons)
    run_blocks(task)
    work = find_work(counting.experiment, task.key)
    found = {name: skeleton_nodes.looked_up(task, work, skeletons, name) for name in volumes.regions}
    return {name: nodes for name, nodes in found.items() if nodes is not None}, (task.key,)


def _worst(
    config: EvaluateConfig, counting: BlockTask, volumes: CountedVolumes, segmented: Segmented, found: TruthScores
) -> tuple[dict[str, list[tuple[Fault, Place | None]]], tuple[str, ...]]:
    """The worst faults of the chosen threshold with their places, by region, and the key of the search."""
    known = next(lut for lut in segmented.luts if (lut.merge_function, lut.threshold) == found.chosen)
    lut = read_lut(known.path)
    faults: list[tuple[str, Fault]] = []
    for name, region in found.regions.items():
        if name != THRESHOLD_ROI:
            table = region.table.relabel(lut.fragments, lut.segments)
            faults += [(name, fault) for fault in worst_faults(table, config.worst, config.zeros)]
    if not faults:
        return {}, ()
    task = fault_places.places_task(counting, faults, lut, fault_places.reach_of(volumes.grid.voxel_size_nm))
    run_blocks(task)
    places = fault_places.places_of(task, find_work(counting.experiment, task.key))
    worst: dict[str, list[tuple[Fault, Place | None]]] = {}
    for (name, fault), place in zip(faults, places, strict=True):
        worst.setdefault(name, []).append((fault, place))
    return worst, (task.key,)
