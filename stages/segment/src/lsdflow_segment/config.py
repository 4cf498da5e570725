"""The [segment] table of the experiment file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lsdflow_contract.geometry import LengthsField, RegionConfig
from lsdflow_contract.model import StrictModel


class SegmentConfig(StrictModel):
    """Which edges, which thresholds, and which of them becomes the segmentation."""

    merge_function: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_]+$",
        description="merge function whose edges are used (default: the one that select-checkpoint chose with the "
        "network, else the first one of agglomerate)",
    )
    thresholds_minmax: tuple[float, float] = Field(
        default=(0.0, 1.0), description="lowest and highest threshold that are computed; a higher threshold merges more"
    )
    thresholds_step: float = Field(default=0.02, description="step between thresholds, at most four decimals")
    threshold: Literal["auto"] | float = Field(
        default="auto",
        description="threshold of the segmentation: auto (chosen as set by `advice`), or one of the computed "
        "thresholds",
    )
    advice: Literal["auto", "truth", "network", "stability"] = Field(
        default="auto",
        description="how `auto` chooses. truth: lowest VOI against ground truth; network: the threshold that was "
        "calibrated with the network; stability: where the segmentation changes least with the threshold; auto: the "
        "first of these that is known",
    )
    truth_dataset: str = Field(
        default="volumes/labels/neuron_ids", description="dataset of the ground truth in the target volume"
    )
    truth_roi: RegionConfig | None = Field(
        default=None,
        description="part of the ground truth used to choose the threshold; the rest can then be used for scores "
        "(default: all)",
    )
    extra_thresholds: tuple[float, ...] = Field(
        default=(), description="further thresholds, written as volumes/segmentation_<threshold>"
    )
    min_segment_vox: int = Field(
        default=0,
        ge=0,
        description="segments with fewer voxels in the whole volume become background, in the tables too (default: "
        "none)",
    )
    roi: RegionConfig | None = Field(default=None, description="write only this region (default: all fragments)")
    block_shape: LengthsField | None = Field(
        default=None,
        description="size of a block and of the write unit of the segmentation; does not change the result (default: "
        "as the fragments)",
    )
    run_type: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]*)?$",
        description="sub-folder of luts/ for the lookup tables; empty = none",
    )
    nodes_in_memory: int = Field(
        default=1 << 24,
        ge=1,
        description="graphs with more nodes are processed in parts of this many nodes, some 60 bytes each; does not "
        "change the result",
    )
    zarr_format: Literal[2, 3] = Field(default=3, description="zarr format of the segmentation")
