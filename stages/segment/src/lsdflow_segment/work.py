"""The block work of segment: fragments of a block in, its segments out, for the chosen and the extra thresholds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from lsdflow_contract.arrays import SEGMENTATION, ArraySpec
from lsdflow_contract.errors import BadData
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Geometry, region_box
from lsdflow_contract.lut import Lut, lut_name, read_lut
from lsdflow_contract.manifest import read_manifest, work_key
from lsdflow_runtime.blocks import Block, BlockPlan, block_plan
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask, container_of
from lsdflow_runtime.io.target import target_grid
from lsdflow_runtime.io.volumes import OutputArray, Volume, open_volume
from lsdflow_segment.config import SegmentConfig
from lsdflow_segment.graph import GraphSource
from lsdflow_segment.part_files import mapped
from lsdflow_segment.relabel import relabel
from lsdflow_segment.tables import graph_folder, luts_folder, mapped_lut_path

STAGE = "segment"


def open_fragments(experiment: Experiment, grid: Geometry) -> Volume:
    """The fragments that watershed finished, addressed on the target's grid."""
    watershed = read_manifest(experiment.layout, "watershed")
    return open_volume(*watershed.output_array(experiment.layout, "fragments"), grid)


def relabelling_task(
    experiment: Experiment, config: SegmentConfig, source: GraphSource, merge_function: str, chosen: float
) -> BlockTask:
    """The work of writing the segmentation of threshold `chosen`, and those of the extra thresholds."""
    grid = target_grid(experiment)
    fragments = open_fragments(experiment, grid)
    plan = _plan(config, grid, fragments)
    arrays = {"segmentation": chosen, **{f"segmentation_{t:.4f}": t for t in config.extra_thresholds}}
    parameters = _parameters(config, plan, merge_function, chosen)
    key = work_key(STAGE, parameters, source.inputs)
    container = container_of(experiment.layout, STAGE, key, "segmentation", "segmentation.zarr")
    return BlockTask(
        stage=STAGE,
        experiment=experiment,
        key=key,
        config={**config.model_dump(mode="json"), "resolved": parameters},
        inputs=source.inputs,
        plan=plan,
        outputs={
            name: OutputArray(container, _spec(name), grid, plan.total, plan.write_shape_vox, config.zarr_format)
            for name in arrays
        },
        open=partial(_opened, fragments, _lut_paths(experiment, config, source, merge_function, arrays)),
        may_have_holes=True,
    )


def _lut_paths(
    experiment: Experiment, config: SegmentConfig, source: GraphSource, merge_function: str, arrays: dict[str, float]
) -> dict[str, tuple[Path, Path]]:
    """Of each array the lookup table, and the same to be mapped: where that is, nobody needs all of it."""
    luts, edges = experiment.layout.luts, source.agglomerate.identity
    folder, parts = graph_folder(luts, config.run_type, edges), luts_folder(luts, config.run_type)
    return {
        name: (folder / lut_name(merge_function, t), mapped_lut_path(parts, edges, merge_function, t))
        for name, t in arrays.items()
    }


def _plan(config: SegmentConfig, grid: Geometry, fragments: Volume) -> BlockPlan:
    box = region_box(config.roi, grid.voxel_size_nm, fragments.box, "segment.roi")
    if config.block_shape is None:
        return BlockPlan(box, fragments.chunk_shape_vox)
    return block_plan(box, config.block_shape.to_vox(grid.voxel_size_nm, "segment.block_shape"), (0, 0, 0), "segment")


def _parameters(config: SegmentConfig, plan: BlockPlan, merge_function: str, chosen: float) -> dict[str, Any]:
    """What decides the voxels and chunks that are written."""
    return {
        "merge_function": merge_function,
        "threshold": chosen,
        "extra_thresholds": list(config.extra_thresholds),
        "begin_vox": list(plan.total.begin_vox),
        "shape_vox": list(plan.total.shape_vox),
        "block_shape_vox": list(plan.write_shape_vox),
        "zarr_format": config.zarr_format,
    }


def _spec(name: str) -> ArraySpec:
    """`segmentation`, or `segmentation_<threshold>` beside it."""
    group = SEGMENTATION.dataset.rpartition("/")[0]
    return ArraySpec(f"{group}/{name}", SEGMENTATION.dtype, SEGMENTATION.channels, SEGMENTATION.kind)


@contextmanager
def _opened(fragments: Volume, luts: Mapping[str, tuple[Path, Path]]) -> Iterator[BlockFunction]:
    """Read or map the tables once per worker; yields the function of a block."""
    tables = {name: _sorted_lut(*paths) for name, paths in luts.items()}

    def relabel_block(block: Block) -> BlockOutput:
        ids = fragments.read(block.write)
        arrays = {n: relabel(ids, lut.fragments, lut.segments, where=str(block)) for n, lut in tables.items()}
        return BlockOutput(arrays, facts={"voxels": ids.size, "background_vox": int((ids == 0).sum())})

    yield relabel_block


def _sorted_lut(path: Path, mapped_path: Path) -> Lut:
    if mapped_path.exists():
        return Lut(*mapped(mapped_path))
    lut = read_lut(path)
    if not bool((lut.fragments[1:] > lut.fragments[:-1]).all()):
        raise BadData("the lookup table is not ascending", where=path, fix="run segment again")
    return lut
