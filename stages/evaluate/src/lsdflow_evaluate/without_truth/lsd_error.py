"""Where the segmentation and the network disagree, without truth: its own LSDs against those that were predicted.

    volumes/segmentation --LSDs of every segment--.
    volumes/lsds (predicted)  --------------------+-- mean |difference| of the 10 channels --> volumes/lsd_error (uint8)

The network saw the raw data and told the local shape of the neuron around each voxel. A segment that is two neurons has
another shape there, and so has a piece of one: the map is bright where they are. Grey level 255 is a difference of 1.

Descriptors are taken on every n-th voxel of the target's grid (`lsd_error_downsample`), however the volume is cut, and
shown on all n^3; 0 is shown where there is no segment. Each block also leaves the sum of its grey levels and how many
it took, for every segment: rows of the collection overlaps_lsd_error (segment, sum, voxels taken).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.arrays import LSD_ERROR, dequantise_u8
from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.geometry import Box, Nm3, Vox3
from lsdflow_contract.graph import Overlaps
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest, work_key
from lsdflow_descriptors.label_descriptors import descriptors_of, radius_vox
from lsdflow_descriptors.stored_lsds import lsd_sigma_nm, stored_lsds
from lsdflow_evaluate.config import STAGE, EvaluateConfig
from lsdflow_runtime.blocks import Block, BlockPlan
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput, BlockTask
from lsdflow_runtime.io.target import target_grid
from lsdflow_runtime.io.volumes import OutputArray, Volume, open_volume

PART = "lsd_error"


@dataclass(frozen=True)
class Lattice:
    """Every `step`-th voxel of the target's grid; `sigma_nm` of the predicted LSDs."""

    step: int
    sigma_nm: Nm3
    voxel_size_nm: Nm3

    @property
    def context_vox(self) -> Vox3:
        """Voxels to read around a box, whole steps."""
        z, y, x = (radius * self.step for radius in radius_vox(self.sigma_nm, self.spacing_nm))
        return z, y, x

    @property
    def spacing_nm(self) -> Nm3:
        """Between the voxels that are taken."""
        z, y, x = (size * self.step for size in self.voxel_size_nm)
        return z, y, x

    def around(self, box: Box) -> Box:
        """The smallest box of whole steps that holds `box`."""
        begin = tuple(b // self.step * self.step for b in box.begin_vox)
        end = tuple(-(-e // self.step) * self.step for e in box.end_vox)
        return Box.from_bounds(_vox3(begin), _vox3(end))


def lsd_error_task(experiment: Experiment) -> BlockTask:
    """The blocks of the map, on the blocks of the segmentation.

    Raises MissingInput if the LSDs are not stored or the network that made them is not there, ConfigError without a
    sigma.
    """
    config, grid = experiment.table(STAGE, EvaluateConfig), target_grid(experiment)
    predict, segment = (read_manifest(experiment.layout, stage) for stage in ("predict", "segment"))
    lsds = open_volume(*stored_lsds(experiment, predict), grid)
    segmentation = open_volume(*segment.output_array(experiment.layout, "segmentation"), grid)
    given = config.lsd_sigma.to_nm(grid.voxel_size_nm) if config.lsd_sigma else None
    sigma_nm = lsd_sigma_nm(experiment, predict, given, "evaluate.lsd_sigma")
    lattice = Lattice(config.lsd_error_downsample, sigma_nm, grid.voxel_size_nm)
    shape = segmentation.chunk_shape_vox
    if config.block_shape is not None:
        shape = config.block_shape.to_vox(grid.voxel_size_nm, "evaluate.block_shape")
    box = segmentation.box.intersect(lsds.box)
    decided = {"sigma_nm": list(lattice.sigma_nm), "step": lattice.step, "block_shape_vox": list(shape)}
    parameters = {"part": PART, **decided}
    inputs = {"predict": predict.identity, "segment": segment.identity}
    key = work_key(STAGE, parameters, inputs)
    return BlockTask(
        stage=STAGE,
        experiment=experiment,
        key=key,
        config=parameters,
        inputs=inputs,
        plan=BlockPlan(box, shape, lattice.context_vox),
        outputs={PART: OutputArray(_container(experiment.layout, key), LSD_ERROR, grid, box, shape)},
        open=partial(_opened, segmentation, lsds, lattice),
    )


def _container(layout: ExperimentLayout, key: str) -> Path:
    """In the folder of the work, or where contracts before 2.1 have made the map of this very work."""
    with suppress(StageError):
        if open_volume(layout.lsd_error, LSD_ERROR.dataset).provenance.get("key") == key:
            return layout.lsd_error
    return layout.result(STAGE, key) / "lsd_error.zarr"


def error_of(
    labels: NDArray[np.uint64], inner: Box, predicted: NDArray[np.uint8], sigma_nm: Nm3, spacing_nm: Nm3
) -> NDArray[np.uint8]:
    """Mean difference of the channels (grey levels) at the voxels of `inner`, 0 where there is no label.

    labels: (z, y, x) with context; predicted: uint8 (10, *inner.shape_vox).
    """
    own = descriptors_of(labels, inner, sigma_nm, spacing_nm)
    difference = np.abs(own - dequantise_u8(predicted)).mean(axis=0)
    grey: NDArray[np.uint8] = np.round(difference * 255.0).astype(np.uint8)
    return np.where(labels[inner.slices()] != 0, grey, np.uint8(0))


@contextmanager
def _opened(segmentation: Volume, lsds: Volume, lattice: Lattice) -> Iterator[BlockFunction]:
    step = lattice.step

    def compare(block: Block) -> BlockOutput:
        cells = lattice.around(block.write)
        seen = cells.grow(lattice.context_vox)
        labels = segmentation.read(seen, outside="zero")
        coarse = np.ascontiguousarray(labels[::step, ::step, ::step])
        inner = Box(_vox3([c // step for c in lattice.context_vox]), _vox3([n // step for n in cells.shape_vox]))
        predicted = lsds.read(cells, outside="zero")[:, ::step, ::step, ::step]
        error = error_of(coarse, inner, predicted, lattice.sigma_nm, lattice.spacing_nm)
        shown = error
        for axis in range(3):
            shown = np.repeat(shown, step, axis)
        own = block.write.slices(cells.begin_vox)
        shown = np.where(labels[block.write.slices(seen.begin_vox)] != 0, shown[own], np.uint8(0))
        taken = _taken(block.write, cells, step)
        rows = error_by_segment(coarse[inner.slices()][taken], error[taken])
        return BlockOutput(arrays={PART: shown}, overlaps={PART: rows}, facts={"segments": len(rows)})

    yield compare


def error_by_segment(segments: NDArray[np.uint64], grey: NDArray[np.uint8]) -> Overlaps:
    """Sum of grey levels and number of voxels of each segment (not 0)."""
    inside = segments != 0
    ids, place, voxels = np.unique(segments[inside], return_inverse=True, return_counts=True)
    sums = np.zeros(len(ids), np.uint64)
    np.add.at(sums, place, grey[inside].astype(np.uint64))
    return Overlaps(ids, sums, voxels.astype(np.uint64))


def mean_errors(task: BlockTask) -> Overlaps:
    """The same of the whole map, from the finished blocks, in the memory of the segments."""
    found = Overlaps.empty()
    for number in range(len(task.plan)):
        rows = task.rag_store.read_overlaps(task.key, PART, number)
        both = [np.concatenate(pair) for pair in zip(_columns(found), _columns(rows), strict=True)]
        ids, place = np.unique(both[0], return_inverse=True)
        sums, voxels = np.zeros((2, len(ids)), np.uint64)
        np.add.at(sums, place, both[1])
        np.add.at(voxels, place, both[2])
        found = Overlaps(ids, sums, voxels)
    return found


def _columns(rows: Overlaps) -> tuple[NDArray[np.uint64], ...]:
    return rows.fragment, rows.truth, rows.size_vox


def _taken(write: Box, cells: Box, step: int) -> tuple[slice, slice, slice]:
    """Of the taken voxels of `cells`, those that lie in `write`: each belongs to one block."""
    bounds = zip(write.begin_vox, write.end_vox, cells.begin_vox, strict=True)
    z, y, x = (slice(-(-(b - c) // step), -(-(e - c) // step)) for b, e, c in bounds)
    return z, y, x


def _vox3(values: Any) -> Vox3:
    z, y, x = (int(v) for v in values)
    return z, y, x
