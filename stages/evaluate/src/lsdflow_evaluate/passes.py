"""The passes of evaluate over blocks. A worker finds its pass by the key that its coordinator names.

    counting        fragments x truth in every region             (scores/counting)
    nodes           the fragment of every skeleton node           (skeletons/nodes), where there are skeletons
    fault places    where the worst splits and merges are         (errors/split_merge_sites), where there are any
    lsd_error       segmentation against predicted LSDs           (self_consistency/lsd_error), truth or not

The counting follows from the settings, later passes from files that the coordinator wrote (pass_files). Everything that
a pass leaves stays, so another threshold costs no second reading.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.arrays import LSD_ERROR
from lsdflow_contract.errors import MissingInput, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Geometry
from lsdflow_contract.hashing import hash_of, hash_of_array
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.lut import Lut
from lsdflow_contract.manifest import read_manifest, work_key
from lsdflow_descriptors.stored_lsds import lsd_sigma_nm, stored_lsds
from lsdflow_evaluate.config import STAGE, EvaluateConfig
from lsdflow_evaluate.errors import split_merge_sites
from lsdflow_evaluate.errors.contacts import Parts
from lsdflow_evaluate.errors.ranking import SplitOrMerge
from lsdflow_evaluate.inputs import NO_TRUTH, Counting, find_counting
from lsdflow_evaluate.pass_files import PassFiles, find_pass_files, keys_of_pass_files, write_pass_files
from lsdflow_evaluate.scores.counting import ROI, CountedVolumes, Rows, vox3
from lsdflow_evaluate.scores.run_length import Skeletons
from lsdflow_evaluate.self_consistency import lsd_error
from lsdflow_evaluate.skeletons import nodes as skeleton_nodes
from lsdflow_evaluate.skeletons.files import read_skeletons, read_skeletons_of_mongo
from lsdflow_evaluate.skeletons.skeletonise import lattice_points, lattice_step_vox, thin_truth
from lsdflow_evaluate.skeletons.units import in_nm
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.engine.block_task import BlockFunction, BlockTask, task_of_stage
from lsdflow_runtime.io.target import target_grid
from lsdflow_runtime.io.volumes import OutputArray, open_volume

# Thinning truth holds the whole lattice in memory: beyond this many points "auto" leaves it out.
MOST_LATTICE_POINTS = 1 << 27
# A thinned skeleton can touch its neighbour's voxels at a face: a few nodes are no merge.
MERGE_NODES_OF_THINNED_TRUTH = 5


@dataclass(frozen=True)
class Traced:
    """Skeletons, what they are, and how many nodes of each of two neurons make a segment a merger."""

    skeletons: Skeletons | None
    kind: str
    merge_min_nodes: int


def trace(experiment: Experiment, config: EvaluateConfig, volumes: CountedVolumes) -> Traced:
    """The skeletons that the config asks for: from a file or a database, thinned truth, or none."""
    if config.skeletons == "none":
        return Traced(None, "none", config.merge_min_nodes or 1)
    if config.skeletons not in ("auto", "truth"):
        found = read_traced(experiment, config, volumes.grid)
        return Traced(found, f"traced: {config.skeletons}", config.merge_min_nodes or 1)
    box, step = volumes.regions[ROI].box, config.skeleton_lattice or lattice_step_vox(volumes.grid.voxel_size_nm)
    if config.skeletons == "auto" and lattice_points(box, step) > MOST_LATTICE_POINTS:
        return Traced(None, "none", config.merge_min_nodes or 1)
    thinned = thin_truth(volumes.truth, box, volumes.grid, step)
    merge_min_nodes = config.merge_min_nodes or MERGE_NODES_OF_THINNED_TRUTH
    return Traced(thinned, f"thinned truth, every {step} voxels", merge_min_nodes)


def read_traced(experiment: Experiment, config: EvaluateConfig, grid: Geometry) -> Skeletons:
    """The skeletons of a file or a database. Raises BadData (65) if they are outside the volume of `grid`."""
    if named := config.skeletons_of_mongo:
        found = read_skeletons_of_mongo(experiment.resolve(named[1]), named[0], experiment.store.retry_s)
    else:
        found = read_skeletons(experiment.resolve(config.skeletons))
    return in_nm(found, config.skeleton_unit, grid, config.skeletons)


def pass_files_root(layout: ExperimentLayout) -> Path:
    """The folder of the files of all later passes."""
    return layout.store / STAGE


def rows_of(task: BlockTask) -> Rows:
    """The rows that the blocks of a pass left."""
    return partial(task.rag_store.read_overlaps, task.key)


def nodes_task(counting: Counting, skeletons: Skeletons) -> tuple[BlockTask, PassFiles]:
    """The look-up of the nodes of `skeletons` in the blocks of the counting; its files are written for the workers."""
    voxels = skeleton_nodes.voxels_of(skeletons.positions_nm, counting.volumes.grid)
    parameters = {"part": skeleton_nodes.PART, "nodes": hash_of_array(voxels), "counting": counting.task.key}
    return _begin_pass(counting, parameters, skeleton_nodes.nodes_by_block(voxels, counting.task.plan))


def sites_task(counting: Counting, errors: Sequence[tuple[str, SplitOrMerge]], lut: Lut) -> tuple[BlockTask, PassFiles]:
    """The search for the sites of (region, error) in the blocks of the counting; its files are written for workers."""
    arrays = split_merge_sites.arrays_of([error for _, error in errors], lut)
    parameters = {
        "part": split_merge_sites.PART,
        "counting": counting.task.key,
        "regions": [region for region, _ in errors],
        "reach_nm": split_merge_sites.reach_of(counting.volumes.grid.voxel_size_nm),
        "arrays": hash_of([hash_of_array(values) for values in arrays.values()]),
    }
    return _begin_pass(counting, parameters, arrays)


def _begin_pass(
    counting: Counting, parameters: dict[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> tuple[BlockTask, PassFiles]:
    key = work_key(STAGE, parameters, dict(counting.task.inputs))
    files = write_pass_files(pass_files_root(counting.task.layout), key, parameters, arrays)
    return later_pass(counting, files), files


def parts_of(volumes: CountedVolumes, files: PassFiles) -> Parts:
    """The parts of the errors of a search."""
    names = ("cells", "fragments", "segments")
    return Parts(volumes, files.parameters["regions"], *(files.array(name) for name in names))


def later_pass(counting: Counting, files: PassFiles) -> BlockTask:
    """The look-up of nodes or the search for sites, from its files."""
    volumes, plan = counting.volumes, counting.task.plan

    def open_lookup() -> AbstractContextManager[BlockFunction]:
        """Open the block function that looks up the fragment at each skeleton node."""
        return skeleton_nodes.lookup_blocks(volumes, *(files.array(name) for name in ("node", "voxel", "starts")))

    def open_search() -> AbstractContextManager[BlockFunction]:
        """Open the block function that searches for the sites of splits and merges."""
        reach_nm = float(files.parameters["reach_nm"])
        return split_merge_sites.search_blocks(parts_of(volumes, files), rows_of(counting.task), reach_nm)

    is_lookup = files.parameters["part"] == skeleton_nodes.PART
    if not is_lookup:
        context = vox3(np.ceil(files.parameters["reach_nm"] / np.array(volumes.grid.voxel_size_nm)))
        plan = BlockPlan(plan.total, plan.write_shape_vox, context)
    return replace(
        counting.task,
        key=files.key,
        config=files.parameters,
        plan=plan,
        open=open_lookup if is_lookup else open_search,
    )


def lsd_error_task(experiment: Experiment) -> BlockTask:
    """The blocks of the map of LSD errors, on the blocks of the segmentation.

    Raises MissingInput if the LSDs are not stored or the network that made them does not exist, ConfigError without a
    sigma.
    """
    config, grid = experiment.table(STAGE, EvaluateConfig), target_grid(experiment.layout)
    predict, segment = (read_manifest(experiment.layout, stage) for stage in ("predict", "segment"))
    lsds = open_volume(*stored_lsds(experiment.layout, predict), grid)
    segmentation = open_volume(*segment.output_array(experiment.layout, "segmentation"), grid)
    given = config.lsd_sigma.to_nm(grid.voxel_size_nm) if config.lsd_sigma else None
    sigma_nm = lsd_sigma_nm(predict, given, "evaluate.lsd_sigma")
    lattice = lsd_error.Lattice(config.lsd_error_downsample, sigma_nm, grid.voxel_size_nm)
    shape = segmentation.chunk_shape_vox
    if config.block_shape is not None:
        shape = config.block_shape.to_vox(grid.voxel_size_nm, "evaluate.block_shape")
    box = segmentation.box.intersect(lsds.box)
    decided = {"sigma_nm": list(lattice.sigma_nm), "step": lattice.step, "block_shape_vox": list(shape)}
    parameters = {"part": lsd_error.PART, **decided}
    inputs = {"predict": predict.identity, "segment": segment.identity}
    key = work_key(STAGE, parameters, inputs)
    output = OutputArray(experiment.layout.result(STAGE, key) / "lsd_error.zarr", LSD_ERROR, grid, box, shape)
    return BlockTask(
        **task_of_stage(STAGE, experiment),
        key=key,
        config=parameters,
        inputs=inputs,
        plan=BlockPlan(box, shape, lattice.context_vox),
        outputs={lsd_error.PART: output},
        open=partial(lsd_error.lsd_error_blocks, segmentation, lsds, lattice),
    )


def pass_of_key(experiment: Experiment, key: str) -> BlockTask:
    """The counting, or a later pass whose files the coordinator wrote. ContractMismatch (76) for another key."""
    counting = find_counting(experiment)
    if counting is not None and counting.task.key == key:
        return counting.task
    return _pass_of_files(experiment, counting, find_pass_files(pass_files_root(experiment.layout), key))


def passes_begun(experiment: Experiment) -> list[BlockTask]:
    """The counting, if there is truth, and the later passes whose files belong to what the experiment holds now."""
    counting, root = find_counting(experiment), pass_files_root(experiment.layout)
    found = [] if counting is None else [counting.task]
    for key in keys_of_pass_files(root):
        # A run writes damaged files again, and decides again whether there can be a map of LSD errors.
        with suppress(StageError):
            files = find_pass_files(root, key)
            known = files.parameters.get("counting")
            if known is None or (counting is not None and counting.task.key == known):
                task = _pass_of_files(experiment, counting, files)
                found += [task] if task.key == key else []
    return found


def _pass_of_files(experiment: Experiment, counting: Counting | None, files: PassFiles) -> BlockTask:
    if files.parameters["part"] == lsd_error.PART:
        return lsd_error_task(experiment)
    if counting is None:
        raise MissingInput(NO_TRUTH, where=experiment.layout.target_volume)
    return later_pass(counting, files)
