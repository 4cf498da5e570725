"""The last check of segment: the written segmentation has the segments and voxels that the graph says."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.manifest import remove_manifest
from lsdflow_runtime.engine.block_task import BlockTask
from lsdflow_segment.graph import SegmentGraph
from lsdflow_segment.sizes import SegmentSizes, SizeCount
from lsdflow_segment.tables import ThresholdTable
from lsdflow_segment.work import open_fragments


def require_sizes(
    experiment: Experiment, task: BlockTask, graph: SegmentGraph, table: ThresholdTable
) -> dict[str, Any]:
    """Count the segmentation block by block; compare with the graph if all fragments were written.

    Gives facts for the manifest: number of segments, the largest, background, size histogram. Raises BadData, and takes
    the manifest away, if the sizes differ.
    """
    segmentation = task.outputs["segmentation"].open()
    count = SizeCount()
    for block in task.plan.blocks():
        count.add(segmentation.read(block.write))
    found = count.sizes()
    fragments = open_fragments(experiment, task.outputs["segmentation"].grid)
    if fragments.box == task.plan.total and not segmentation.holes:
        try:
            require_same_sizes(found, _sizes_of_graph(graph, table))
        except BadData:
            remove_manifest(experiment.layout, "segment", [task.key])
            raise
    edges, segments = found.histogram()
    largest, largest_vox = found.largest
    return {
        "segments": len(found.ids),
        "largest_segment": largest,
        "largest_segment_vox": largest_vox,
        "background_vox": found.background_vox,
        "size_edges_vox": edges.tolist(),
        "size_segments": segments.tolist(),
    }


def require_same_sizes(found: SegmentSizes, wanted: SegmentSizes) -> None:
    """Raise BadData naming the first segment whose voxels are not those of the graph."""
    if np.array_equal(found.ids, wanted.ids) and np.array_equal(found.voxels, wanted.voxels):
        return
    segment, voxels, expected = _first_difference(found, wanted)
    raise BadData(
        "the segmentation does not have the voxels that the graph says",
        wanted=f"{len(wanted.ids)} segments, segment {segment} with {expected} voxels",
        found=f"{len(found.ids)} segments, segment {segment} with {voxels} voxels",
        fix="fragments and graph come from different runs: run watershed again",
    )


def _first_difference(found: SegmentSizes, wanted: SegmentSizes) -> tuple[int, int, int]:
    ids: NDArray[np.uint64] = np.union1d(found.ids, wanted.ids)
    voxels = [np.zeros(len(ids), np.int64) for _ in range(2)]
    for column, sizes in zip(voxels, (found, wanted), strict=True):
        column[np.searchsorted(ids, sizes.ids)] = sizes.voxels
    first = int(np.flatnonzero(voxels[0] != voxels[1])[0])
    return int(ids[first]), int(voxels[0][first]), int(voxels[1][first])


def _sizes_of_graph(graph: SegmentGraph, table: ThresholdTable) -> SegmentSizes:
    """Voxels of each segment of the chosen threshold, added up from the nodes."""
    for threshold, pieces in zip(table.thresholds, graph.tables(), strict=True):
        if threshold == table.chosen:
            count = SizeCount()
            for piece in pieces:
                count.add_counts(piece.segments, piece.voxels.view(np.int64))
            return count.sizes()
    raise BadData("the chosen threshold is not among the tables", found=f"{table.chosen:.4f}")
