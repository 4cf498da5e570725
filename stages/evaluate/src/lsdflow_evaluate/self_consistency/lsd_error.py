"""Where the segmentation and the network disagree, without truth: its own LSDs against those that were predicted.

    volumes/segmentation --LSDs of every segment--.
    volumes/lsds (predicted)  --------------------+-- mean |difference| of the 10 channels --> volumes/lsd_error (uint8)

The network predicted the local shape of the neuron around each voxel from the raw data. A segment that is two neurons
has another shape there, and so has a part of one: the map is bright where they are. Grey level 255: a difference of 1.

Descriptors are taken on every n-th voxel of the target's grid (`lsd_error_downsample`), however the volume is cut, and
written to all n^3; 0 where there is no segment. Each block also leaves the sum of its grey levels and how many it
took, for every segment: rows of the collection overlaps_lsd_error (segment, sum, voxels taken).

scores.json: `lsd_error`; report/lsd_error.csv: segments by mean error, the most likely wrong first. Segments of very
few voxels are left out: their shape is that of noise.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.arrays import dequantise_u8
from lsdflow_contract.files import write_if_changed
from lsdflow_contract.geometry import Box, Nm3, Vox3
from lsdflow_contract.graph import Overlaps
from lsdflow_descriptors.label_descriptors import descriptors_of, radius_vox
from lsdflow_evaluate.scores.counting import Rows, vox3
from lsdflow_runtime.blocks import Block
from lsdflow_runtime.engine.block_task import BlockFunction, BlockOutput
from lsdflow_runtime.io.volumes import Volume

# Segments with fewer voxels taken are not listed; the CSV lists at most so many, scores.json the first of them.
FEWEST_TAKEN, MOST_IN_CSV, MOST_IN_SCORES = 64, 10_000, 20
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
        return Box.from_bounds(vox3(begin), vox3(end))


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
def lsd_error_blocks(segmentation: Volume, lsds: Volume, lattice: Lattice) -> Iterator[BlockFunction]:
    """The block function of the map."""
    step = lattice.step

    def compare(block: Block) -> BlockOutput:
        """The error u8 (z, y, x) of one block, and its sums for each segment."""
        cells = lattice.around(block.write)
        around = cells.grow(lattice.context_vox)
        labels = segmentation.read(around, outside="zero")
        coarse = np.ascontiguousarray(labels[::step, ::step, ::step])
        inner = Box(vox3([c // step for c in lattice.context_vox]), vox3([n // step for n in cells.shape_vox]))
        predicted = lsds.read(cells, outside="zero")[:, ::step, ::step, ::step]
        error = error_of(coarse, inner, predicted, lattice.sigma_nm, lattice.spacing_nm)
        grey = error
        for axis in range(3):
            grey = np.repeat(grey, step, axis)
        own = block.write.slices(cells.begin_vox)
        grey = np.where(labels[block.write.slices(around.begin_vox)] != 0, grey[own], np.uint8(0))
        taken = _taken(block.write, cells, step)
        rows = error_by_segment(coarse[inner.slices()][taken], error[taken])
        return BlockOutput(arrays={PART: grey}, overlaps={PART: rows}, facts={"segments": len(rows)})

    yield compare


def error_by_segment(segments: NDArray[np.uint64], grey: NDArray[np.uint8]) -> Overlaps:
    """Sum of grey levels and number of voxels of each segment (not 0)."""
    inside = segments != 0
    ids, place, voxels = np.unique(segments[inside], return_inverse=True, return_counts=True)
    sums = np.zeros(len(ids), np.uint64)
    np.add.at(sums, place, grey[inside].astype(np.uint64))
    return Overlaps(ids, sums, voxels.astype(np.uint64))


def mean_errors(rows: Rows, blocks: int) -> Overlaps:
    """The same of the whole map, from the rows of all blocks, in the memory of the segments."""
    found = Overlaps.empty()
    for number in range(blocks):
        both = [np.concatenate(pair) for pair in zip(_columns(found), _columns(rows(PART, number)), strict=True)]
        ids, place = np.unique(both[0], return_inverse=True)
        sums, voxels = np.zeros((2, len(ids)), np.uint64)
        np.add.at(sums, place, both[1])
        np.add.at(voxels, place, both[2])
        found = Overlaps(ids, sums, voxels)
    return found


def _columns(rows: Overlaps) -> tuple[NDArray[np.uint64], ...]:
    return rows.fragment, rows.truth, rows.size_vox


def _taken(write: Box, cells: Box, step: int) -> tuple[slice, slice, slice]:
    """Of the taken voxels of `cells`, those in `write`: each belongs to one block."""
    bounds = zip(write.begin_vox, write.end_vox, cells.begin_vox, strict=True)
    z, y, x = (slice(-(-(b - c) // step), -(-(e - c) // step)) for b, e, c in bounds)
    return z, y, x


def most_likely_wrong(found: Overlaps) -> list[tuple[int, float, int]]:
    """Segments by falling mean error: id, mean in [0, 1], voxels taken."""
    mean = found.truth / np.maximum(found.size_vox, 1) / 255.0
    order = np.lexsort((found.fragment, -mean))
    listed = order[found.size_vox[order] >= FEWEST_TAKEN][:MOST_IN_CSV]
    return [(int(found.fragment[i]), float(mean[i]), int(found.size_vox[i])) for i in listed.tolist()]


def lsd_error_facts(
    found: Overlaps, ranked: Sequence[tuple[int, float, int]], volume: str, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """For scores.json. `ranked`: see `most_likely_wrong`; volume: where the map is; parameters of the pass."""
    mean = int(found.truth.sum()) / max(int(found.size_vox.sum()), 1) / 255
    listed = [{"segment": s, "mean": mean_of, "voxels_taken": voxels} for s, mean_of, voxels in ranked[:MOST_IN_SCORES]]
    settings = {name: parameters[name] for name in ("sigma_nm", "step")}
    return {"made": True, "volume": volume, "mean": mean, "segments": len(found), **settings, "worst": listed}


def write_lsd_error(path: Path, ranked: Sequence[tuple[int, float, int]]) -> None:
    """The list as a CSV."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["rank", "segment", "mean_error", "voxels_taken"])
    table.writerows([rank, *row] for rank, row in enumerate(ranked, start=1))
    write_if_changed(path, text.getvalue().encode())
