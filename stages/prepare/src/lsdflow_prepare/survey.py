"""A check of the data before anything is written: random blocks of the volume, as many as a few seconds allow."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.arrays import MaskState
from lsdflow_contract.errors import BadData
from lsdflow_contract.geometry import Box
from lsdflow_prepare import findings as rules
from lsdflow_prepare.findings import Findings
from lsdflow_prepare.greyscale import refuse_non_finite, refuse_unknown_range
from lsdflow_prepare.inputs import VolumeInputs
from lsdflow_prepare.statistics import LabelStatistics, RawStatistics
from lsdflow_runtime.formats.source import SourceVolume

SAMPLE_EDGE_VOX = 128
MOST_CHUNKS_COUNTED = 50_000
MOST_BOXES = 4096


def survey(inputs: VolumeInputs, findings: Findings, seconds: float) -> None:
    """Read blocks in random order (fixed seed) until all are read or `seconds` have passed; report problems."""
    deadline = time.monotonic() + seconds
    boxes, whole = sample_boxes(inputs.region)
    for text in rules.shape_warnings(inputs.output_geometry.shape_vox, inputs.role):
        findings.warn(inputs.name, text)
    for source, box in _read_boxes(inputs):
        if source.grid is None or _count_chunks(source, box) > MOST_CHUNKS_COUNTED:
            continue  # checked while the volume is streamed
        with findings.collecting():
            missing = refuse_missing_chunks(source, box, inputs.table.sparse)
            if missing:
                fill, other = source.grid.fill_value or 0, source.other_file()
                text = f"{missing} chunks do not exist in {source.where}, they are read as {fill}"
                findings.warn(inputs.name, text + f"; {other} is no chunk by the metadata" * (other is not None))
    half = deadline - seconds / 2 if inputs.labels else deadline
    _survey_raw(inputs, findings, boxes, half, whole=whole)
    if inputs.labels is not None:
        _survey_labels(inputs, findings, boxes, deadline, whole=whole)


def refuse_missing_chunks(source: SourceVolume, box: Box, sparse: bool) -> int:
    """Number of missing chunks, if the user declared the source to be sparse.

    Raises:
        BadData: names the number of missing chunks and the first one, if the source is not sparse, or has no chunk.
    """
    missing = source.missing_chunks(box) or []
    none = box == source.box and len(missing) == _count_chunks(source, box)
    if none or (missing and not sparse):
        other = source.other_file()
        fix = "copy the volume again" + "; if empty chunks were left out on purpose: sparse = true" * (not none)
        if other is not None:
            fix = "correct shape, chunks and their names in the metadata, or copy the volume again"
        low, high = np.min(missing, axis=0).tolist(), np.max(missing, axis=0).tolist()
        file = "" if source.grid is None or source.grid.file is None else f", {source.grid.file(missing[0])}"
        raise BadData(
            f"{len(missing)} of {_count_chunks(source, box)} chunks were never written",
            where=source.where,
            wanted="every chunk of the volume",
            found=f"no chunk {missing[0]}{file} (missing ones lie within {low} ... {high}, axes {source.axes})"
            + f"; {other} is there, but no chunk by the metadata" * (other is not None),
            fix=fix,
        )
    return len(missing)


def _count_chunks(source: SourceVolume, box: Box) -> int:
    chunk = source.chunk_shape_vox or (1, 1, 1)
    spans = zip(box.begin_vox, box.end_vox, chunk, strict=True)
    z, y, x = (-(-end // size) - begin // size for begin, end, size in spans)
    return z * y * x


def _read_boxes(inputs: VolumeInputs) -> list[tuple[SourceVolume, Box]]:
    """Each source with the box that is read from it, in its own voxels."""
    boxes = [(inputs.raw, inputs.region)]
    for overlay in (inputs.labels, inputs.mask):
        if overlay is not None:
            begin = overlay.placed.begin_vox
            boxes.append((overlay.source, overlay.covered.translate((-begin[0], -begin[1], -begin[2]))))
    return boxes


def sample_boxes(region: Box) -> tuple[list[Box], bool]:
    """Boxes of the region in random order, and whether they cover it; a large volume has a few thousand."""
    counts = [-(-length // SAMPLE_EDGE_VOX) for length in region.shape_vox]
    total = counts[0] * counts[1] * counts[2]
    chosen = np.random.default_rng(0).choice(total, min(total, MOST_BOXES), replace=False)
    boxes = []
    for z, y, x in zip(*(axis.tolist() for axis in np.unravel_index(chosen, counts)), strict=True):
        corner = Box((z * SAMPLE_EDGE_VOX, y * SAMPLE_EDGE_VOX, x * SAMPLE_EDGE_VOX), (SAMPLE_EDGE_VOX,) * 3)
        boxes.append(corner.translate(region.begin_vox).intersect(region))
    return boxes, len(boxes) == total


def _survey_raw(inputs: VolumeInputs, findings: Findings, boxes: list[Box], deadline: float, *, whole: bool) -> None:
    statistics = RawStatistics()
    where = inputs.raw.where

    def sample(box: Box) -> None:
        """Add the raw of a box to the statistics."""
        block: NDArray[np.generic] = inputs.read_raw(box)
        statistics.add(block)
        refuse_non_finite(block, f"{where} {box}")

    with findings.collecting():
        complete = read_until(boxes, deadline, sample) and whole
        sampled = "" if complete else "in a sample: "
        if inputs.table.raw_range is None:
            refuse_unknown_range(inputs.raw.dtype, statistics.minimum, statistics.maximum, where, sampled)
    for text in rules.raw_warnings(statistics):
        findings.warn(inputs.name, text)


def _survey_labels(inputs: VolumeInputs, findings: Findings, boxes: list[Box], deadline: float, *, whole: bool) -> None:
    statistics, usable, where = LabelStatistics(), 0, inputs.labels.source.where if inputs.labels else ""

    def sample(box: Box) -> None:
        """Add the labels of a box to the statistics."""
        nonlocal usable
        block = inputs.read_labels(box)
        statistics.add(block.ids, block.states)
        usable += int(np.count_nonzero(block.ids[block.states == MaskState.TRAIN]))

    with findings.collecting():
        if read_until(boxes, deadline, sample) and whole:
            for text in rules.label_warnings(statistics):
                findings.warn(inputs.name, text)
            rules.refuse_unlabelled(statistics, usable > 0, where, inputs.role)
        elif not usable:
            findings.warn(inputs.name, f"{where} has no neuron in a sample of {statistics.voxels} voxels: is it empty?")


def read_until(boxes: list[Box], deadline: float, read: Callable[[Box], None]) -> bool:
    """Call `read` for boxes until the deadline, at least once; returns whether all boxes were read."""
    for number, box in enumerate(boxes):
        if number and time.monotonic() > deadline:
            return False
        read(box)
    return True
