"""The [evaluate] table of the experiment file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lsdflow_contract.geometry import LengthsField
from lsdflow_contract.model import StrictModel


class RegionConfig(StrictModel):
    """A part of the target: where it begins, from the target's first voxel, and how large it is."""

    begin: LengthsField = Field(description='from the first voxel of the target: "0, 100, 100 vox" or "0, 800, 800 nm"')
    shape: LengthsField = Field(description='"250 vox" or "2000 nm"')


class EvaluateConfig(StrictModel):
    """What is compared with the truth, how, and what the report shows."""

    truth_dataset: str = Field(default="volumes/labels/neuron_ids", description="truth in the target volume")
    roi: RegionConfig | None = Field(default=None, description="scores count here; none = wherever there is truth")
    threshold_roi: RegionConfig | None = Field(
        default=None, description="choose the threshold by truth here and report it on roi; none = segment's threshold"
    )
    block_shape: LengthsField | None = Field(
        default=None, description='what a worker counts at once; none = a chunk of the fragments: "128 vox"'
    )
    zeros: Literal["label", "ignore", "singletons"] = Field(
        default="label", description="segmentation 0: one more label, left out, or each voxel its own segment"
    )
    voi_limit: float = Field(default=2.0, gt=0, description="success: VOI split + merge (bits) below this")
    skeletons: str = Field(
        default="auto",
        description='ERL along: "truth" (thinned), "auto" (truth if small enough), "none", or a file of skeletons',
    )
    skeleton_lattice: tuple[int, int, int] | None = Field(
        default=None, description="voxels between points when truth is thinned, z,y,x; none = about two voxels"
    )
    merge_min_nodes: int | None = Field(
        default=None,
        ge=1,
        description="a segment merges neurons if it holds this many nodes of each; none = 1, or 5 for thinned truth",
    )
    picture_edge_vox: int = Field(default=1024, ge=16, description="pictures show at most this many voxels across")
    viewer_url: str = Field(
        default="http://127.0.0.1:9000", description="where the experiment folder will be served for neuroglancer"
    )
