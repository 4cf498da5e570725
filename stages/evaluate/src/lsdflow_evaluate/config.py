"""The [evaluate] table of the experiment file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lsdflow_contract.geometry import LengthsField
from lsdflow_contract.model import StrictModel
from lsdflow_contract.region import RegionConfig

STAGE = "evaluate"
# What names skeletons in a database begins with.
MONGO = "mongo:"


class NamedRegion(StrictModel):
    """A region with scores of its own: a box, a mask, or both."""

    begin: LengthsField | None = Field(default=None, description="as of roi; none = wherever there is truth")
    shape: LengthsField | None = Field(default=None, description="as of roi; goes with begin")
    mask: str | None = Field(
        default=None, description="dataset in the target volume; only voxels where it is not 0 count"
    )

    @model_validator(mode="after")
    def _says_something(self) -> NamedRegion:
        if (self.begin is None) != (self.shape is None):
            msg = "a region needs begin and shape, or neither"
            raise ValueError(msg)
        if self.begin is None and self.mask is None:
            msg = "a region needs a box (begin, shape), a mask, or both"
            raise ValueError(msg)
        return self

    @property
    def box(self) -> RegionConfig | None:
        """The box; none = wherever there is truth."""
        if self.begin is None or self.shape is None:
            return None
        return RegionConfig(begin=self.begin, shape=self.shape)


class EvaluateConfig(StrictModel):
    """What is compared with the truth, how, and what the report shows."""

    truth_dataset: str = Field(default="volumes/labels/neuron_ids", description="truth in the target volume")
    roi: RegionConfig | None = Field(default=None, description="scores count here; none = wherever there is truth")
    threshold_roi: RegionConfig | None = Field(
        default=None, description="choose the threshold by truth here and report it on roi; none = segment's threshold"
    )
    regions: dict[Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")], NamedRegion] = Field(
        default_factory=dict, description="further regions with scores of their own, by name: [evaluate.regions.core]"
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
        description='ERL along: "truth" (thinned), "auto" (if small enough), "none", a file, or "mongo:NAME@URI_FILE"',
    )
    skeleton_lattice: tuple[int, int, int] | None = Field(
        default=None, description="voxels between points when truth is thinned, z,y,x; none = about two voxels"
    )
    merge_min_nodes: int | None = Field(
        default=None,
        ge=1,
        description="a segment merges neurons if it holds this many nodes of each; none = 1, or 5 for thinned truth",
    )
    worst: int = Field(
        default=20, ge=0, description="worst splits and merges that are listed with their places; 0 = none"
    )
    lsd_error: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="volumes/lsd_error: LSDs of the segmentation against those predicted; auto: where they are stored",
    )
    lsd_error_downsample: int = Field(
        default=2, ge=1, description="LSDs of the segmentation are computed on every n-th voxel, and shown on all"
    )
    lsd_sigma: LengthsField | None = Field(
        default=None, description="sigma of the predicted LSDs; none = as the network says that made them"
    )
    picture_edge_vox: int = Field(default=1024, ge=16, description="pictures show at most this many voxels across")
    viewer_url: str = Field(
        default="http://127.0.0.1:9000", description="where the experiment folder will be served for neuroglancer"
    )
