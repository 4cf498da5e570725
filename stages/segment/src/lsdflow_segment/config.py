"""The [segment] table of the experiment file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lsdflow_contract.geometry import LengthsField
from lsdflow_contract.model import StrictModel
from lsdflow_contract.region import RegionConfig


class SegmentConfig(StrictModel):
    """Which edges, which thresholds, and which of them becomes the segmentation."""

    merge_function: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_]+$",
        description="edges that make the segmentation (collection edges_<merge_function>); none = agglomerate's first",
    )
    thresholds_minmax: tuple[float, float] = Field(
        default=(0.0, 1.0), description="lowest and highest threshold that get a table; merge more -> higher"
    )
    thresholds_step: float = Field(default=0.02, description="step between thresholds, at most four decimals")
    threshold: Literal["auto"] | float = Field(
        default="auto", description="threshold of the segmentation: auto (advice below), or one of those computed"
    )
    advice: Literal["auto", "truth", "stability"] = Field(
        default="auto",
        description="truth: smallest VOI; stability: steadiest partition; auto: truth where the target has it",
    )
    truth_dataset: str = Field(default="volumes/labels/neuron_ids", description="truth in the target volume")
    truth_roi: RegionConfig | None = Field(
        default=None,
        description="part of the truth that the advice may look at; none = all (then keep another part for scores)",
    )
    extra_thresholds: tuple[float, ...] = Field(
        default=(), description="further thresholds written as volumes/segmentation_<threshold>"
    )
    roi: RegionConfig | None = Field(default=None, description="write only this part; none = all fragments")
    block_shape: LengthsField | None = Field(
        default=None, description="block = write unit of the segmentation; changes no voxel; none = as the fragments"
    )
    run_type: str = Field(
        default="",
        pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]*)?$",
        description="sub-folder of luts/ for the tables; empty = none",
    )
    buffer_edges: int = Field(
        default=1 << 24,
        ge=1,
        description="edges held beyond one forest, about 34 bytes each; changes no result",
    )
    find: Literal["auto", "whole", "hierarchical"] = Field(
        default="auto",
        description="all nodes in one memory, or part by part; changes no result; auto: by nodes_in_memory",
    )
    nodes_in_memory: int = Field(
        default=1 << 24,
        ge=1,
        description="auto: more nodes are found part by part; nodes of a part, some 60 bytes each; changes no result",
    )
    zarr_format: Literal[2, 3] = Field(default=3, description="format of the segmentation")
