"""Streams one volume from its sources to the prepared arrays, brick by brick, with all checks.

A brick consists of whole output chunks, and is chosen for few decodes of the input in bounded memory: at least one
input chunk, rounded up to whole output chunks, then extended along x, y and z as memory allows. Long rows are read
fastest, and TIFF slices are decoded only once if a whole plane fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_command.progress import Progress
from lsdflow_contract.arrays import LABELS, MASK, RAW, ArraySpec
from lsdflow_contract.geometry import Box, Vox3
from lsdflow_prepare import findings as rules
from lsdflow_prepare.greyscale import to_u8
from lsdflow_prepare.inputs import VolumeInputs
from lsdflow_prepare.statistics import LabelStatistics, RawStatistics, SlabComponents
from lsdflow_prepare.survey import refuse_missing_chunks
from lsdflow_runtime.formats.prepared import CHUNK_VOX, PreparedArrays

MEMORY_BYTES = 512 << 20
# Source values, float64 for the map to 8 bits, result; ids, states, comparisons and components.
RAW_BYTES_PER_VOXEL = 20
LABEL_BYTES_PER_VOXEL = 40

Made = tuple[dict[str, NDArray[Any]], dict[str, Any]]
Count = Callable[[Mapping[str, NDArray[Any]], Mapping[str, Any]], None]
Job = tuple[str, tuple[ArraySpec, ...], int, Vox3 | None]


def brick_shape(shape_vox: Vox3, chunk_vox: int, bytes_per_voxel: int, source_chunk_vox: Vox3 | None = None) -> Vox3:
    """Shape of a brick: multiples of `chunk_vox` that fit into memory, at least one chunk."""
    limit = max(MEMORY_BYTES // bytes_per_voxel, chunk_vox**3)
    whole = [_round_up(length, chunk_vox) for length in shape_vox]
    wanted = source_chunk_vox or (chunk_vox,) * 3
    edges = [min(_round_up(length, chunk_vox), most) for length, most in zip(wanted, whole, strict=True)]
    for axis in (0, 1, 2):
        while edges[0] * edges[1] * edges[2] > limit and edges[axis] > chunk_vox:
            edges[axis] = _round_up(edges[axis] // 2, chunk_vox)
    for axis in (2, 1):
        others = edges[0] * edges[1] * edges[2] // edges[axis]
        edges[axis] = max(edges[axis], min(whole[axis], limit // others // chunk_vox * chunk_vox))
    return (edges[0], edges[1], edges[2])


def bricks(shape_vox: Vox3, edge_vox: Vox3) -> list[Box]:
    """Bricks in order of z, y, x; those at the end of the volume are cropped."""
    return list(_bricks(shape_vox, edge_vox))


def _bricks(shape_vox: Vox3, edge_vox: Vox3) -> Iterator[Box]:
    for z, y, x in product(*(range(0, n, e) for n, e in zip(shape_vox, edge_vox, strict=True))):
        end = tuple(min(b + e, n) for b, e, n in zip((z, y, x), edge_vox, shape_vox, strict=True))
        yield Box.from_bounds((z, y, x), (end[0], end[1], end[2]))


def _round_up(length: int, step: int) -> int:
    return max(step, -(-length // step) * step)


@dataclass
class VolumeSummary:
    """The statistics of a volume after all of it was read."""

    raw: RawStatistics = field(default_factory=RawStatistics)
    labels: LabelStatistics | None = None
    components: dict[int, int] | None = None
    identity: dict[str, str] = field(default_factory=dict)

    def warnings(self, inputs: VolumeInputs) -> list[str]:
        """All warnings about the volume."""
        found = rules.shape_warnings(inputs.region.shape_vox, inputs.role) + rules.raw_warnings(self.raw)
        if self.labels is not None:
            found += rules.label_warnings(self.labels, complete=True)
        return found + rules.component_warnings(self.components or {})


@dataclass(frozen=True)
class WritePlan:
    """A group of arrays of a volume that is written together, and its bricks (index 0 = first voxel written)."""

    arrays: PreparedArrays
    bricks: list[Box]
    whole_planes: bool


def write_plans(inputs: VolumeInputs, container: Path, provenance: Mapping[str, Any]) -> list[WritePlan]:
    """The plans for writing a volume: one for raw, and one for labels with mask if there are labels."""
    geometry = inputs.output_geometry
    jobs: list[Job] = [("raw", (RAW,), RAW_BYTES_PER_VOXEL, inputs.raw.chunk_shape_vox)]
    if inputs.labels is not None:
        jobs.append(("labels", (LABELS, MASK), LABEL_BYTES_PER_VOXEL, inputs.labels.source.chunk_shape_vox))
    plans = []
    for job, specs, memory, chunk in jobs:
        arrays = PreparedArrays(container, job, specs, geometry, provenance)
        edge = brick_shape(geometry.shape_vox, CHUNK_VOX, memory, chunk)
        whole = edge[1] >= geometry.shape_vox[1] and edge[2] >= geometry.shape_vox[2]
        plans.append(WritePlan(arrays, bricks(geometry.shape_vox, edge), whole))
    return plans


def write_volume(inputs: VolumeInputs, plans: list[WritePlan], progress: Progress) -> VolumeSummary:
    """Write the bricks that are not written yet; returns the statistics of the whole volume.

    Raises:
        BadData: problems that only the whole data show: NaN, values out of range, negative labels, missing chunks.
        StorageFailure: the disk is full or fails.
    """
    summary = VolumeSummary()
    for plan in plans:
        if plan.arrays.job == "raw":
            _write_raw(inputs, plan, summary, progress)
        else:
            _write_labels(inputs, plan, summary, progress)
        summary.identity[plan.arrays.job] = plan.arrays.identity()
    return summary


def _write_raw(inputs: VolumeInputs, plan: WritePlan, summary: VolumeSummary, progress: Progress) -> None:
    def count(values: Mapping[str, NDArray[Any]], facts: Mapping[str, Any]) -> None:
        summary.raw.add(values[RAW.dataset], int(facts["clipped"]))

    _write(inputs, plan, count, progress)


def _write_labels(inputs: VolumeInputs, plan: WritePlan, summary: VolumeSummary, progress: Progress) -> None:
    labels = summary.labels = LabelStatistics()
    pieces = SlabComponents() if plan.whole_planes else None

    def count(values: Mapping[str, NDArray[Any]], _facts: Mapping[str, Any]) -> None:
        labels.add(values[LABELS.dataset], values[MASK.dataset])
        if pieces is not None:
            pieces.add(values[LABELS.dataset])

    _write(inputs, plan, count, progress)
    summary.components = pieces.per_label() if pieces is not None else None


def make_brick(inputs: VolumeInputs, plan: WritePlan, box: Box) -> Made:
    """The arrays of a brick, computed from the sources, and its record. Raises the errors of `write_volume`."""
    _refuse_missing(inputs, plan, box)
    source_box = box.translate(inputs.region.begin_vox)
    if plan.arrays.job == "raw":
        grey = to_u8(inputs.read_raw(source_box), inputs.table.raw_range, f"{inputs.raw.where} {source_box}")
        return {RAW.dataset: grey.values}, {"clipped": grey.clipped}
    block = inputs.read_labels(source_box)
    return {LABELS.dataset: block.ids, MASK.dataset: block.states}, {}


def _write(inputs: VolumeInputs, plan: WritePlan, count: Count, progress: Progress) -> None:
    """Write bricks in order; those recorded by an earlier run are read back for the statistics instead."""
    notes = plan.arrays.start()
    for number, box in enumerate(plan.bricks):
        note = notes.get(number)
        values = None if note is None else plan.arrays.noted_brick(box, note)
        if note is not None and values is not None:
            count(values, note.facts)
        else:
            made, facts = make_brick(inputs, plan, box)
            plan.arrays.write(number, box, made, facts)
            count(made, facts)
        progress.advance(box.size)
    plan.arrays.finish()


def _refuse_missing(inputs: VolumeInputs, plan: WritePlan, box: Box) -> None:
    source_box = box.translate(inputs.region.begin_vox)
    if plan.arrays.job == "raw":
        refuse_missing_chunks(inputs.raw, source_box, inputs.table.sparse)
        return
    for overlay in (inputs.labels, inputs.mask):
        if overlay is not None:
            part = overlay.covered.intersect(source_box)
            begin = overlay.placed.begin_vox
            own = part.translate((-begin[0], -begin[1], -begin[2]))
            refuse_missing_chunks(overlay.source, own, inputs.table.sparse)


def bytes_needed(shape: Vox3, with_labels: bool) -> int:
    """Expected bytes on disk: raw is hardly compressible, labels compress to a twentieth."""
    voxels = int(np.prod(shape))
    return voxels + (voxels * 9 // 20 if with_labels else 0)
