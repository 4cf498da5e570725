"""The [evaluate] table of the experiment file."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from lsdflow_contract.geometry import LengthsField, PositiveLengths, RegionConfig
from lsdflow_contract.model import StrictModel

STAGE = "evaluate"
OUTPUTS = {"report": "report/index.html", "scores": "report/scores.json", "viewer": "report/neuroglancer.json"}
# What names skeletons in a database begins with.
MONGO = "mongo:"


class NamedRegion(StrictModel):
    """A region with scores of its own: a box, a mask, or both."""

    begin: LengthsField | None = Field(
        default=None, description="first corner, as in evaluate.roi (default: wherever there is ground truth)"
    )
    shape: LengthsField | None = Field(default=None, description="size, as in evaluate.roi; needs begin")
    mask: str | None = Field(
        default=None, description="dataset in the target volume; only voxels where it is not 0 are scored"
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

    truth_dataset: str = Field(
        default="volumes/labels/neuron_ids", description="dataset of the ground truth in the target volume"
    )
    roi: RegionConfig | None = Field(
        default=None, description="region that is scored (default: wherever there is ground truth)"
    )
    threshold_roi: RegionConfig | None = Field(
        default=None,
        description="choose the threshold by ground truth in this region, and report it on roi (default: the threshold"
        " of segment)",
    )
    regions: dict[Annotated[str, Field(pattern="^[a-z][a-z0-9_]*$")], NamedRegion] = Field(
        default_factory=dict, description="further regions that are scored separately, by name: [evaluate.regions.core]"
    )
    block_shape: LengthsField | None = Field(
        default=None,
        description='size of a block of one worker, for example "128 vox" (default: a chunk of the fragments)',
    )
    zeros: Literal["label", "ignore", "singletons"] = Field(
        default="label",
        description="voxels without a segment (0): count them as one more segment, leave them out, or count each as "
        "its own segment",
    )
    voi_limit: float = Field(
        default=2.0, gt=0, description="the evaluation passes if VOI split + merge (bits) is below this"
    )
    skeletons: str = Field(
        default="auto",
        description='skeletons for ERL: "truth" (thinned ground truth), "auto" (the same, if it is small enough), '
        '"none", a file, or "mongo:NAME@URI_FILE"',
    )
    skeleton_unit: Literal["nm", "um", "vox"] | None = Field(
        default=None,
        description="unit of the positions in the file of skeletons: nm, um (micrometres), or vox, voxels from the"
        " first of the target (default: nm; required if most nodes would be in the volume in another unit, too)",
    )
    skeleton_lattice: tuple[int, int, int] | None = Field(
        default=None,
        description="distance of skeleton points when ground truth is thinned, z,y,x voxels (default: about two "
        "voxels)",
    )
    merge_min_nodes: int | None = Field(
        default=None,
        ge=1,
        description="a segment counts as a merge of neurons if it contains at least this many nodes of each (default: "
        "1, or 5 for thinned ground truth)",
    )
    worst: int = Field(
        default=20, ge=0, description="number of worst splits and merges that are listed with their positions; 0 = none"
    )
    lsd_error: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="write volumes/lsd_error, the difference between the LSDs of the segmentation and the predicted "
        "ones; auto: if predicted LSDs are stored",
    )
    lsd_error_downsample: int = Field(
        default=2, ge=1, description="compute LSDs of the segmentation on every n-th voxel only"
    )
    lsd_sigma: PositiveLengths | None = Field(
        default=None, description="sigma of the predicted LSDs (default: that of the network that predicted them)"
    )
    picture_edge_vox: int = Field(default=1024, ge=16, description="largest width of pictures, voxels")
    viewer_url: str = Field(
        default="http://127.0.0.1:9000",
        description="web address at which the experiment folder will be served to neuroglancer",
    )

    @property
    def skeletons_of_mongo(self) -> tuple[str, str] | None:
        """Name and source (a file with a URI, or a folder of a dump) of skeletons in a database; None if they are not
        in one. Either may be empty."""
        if not self.skeletons.startswith(MONGO):
            return None
        name, _, source = self.skeletons.removeprefix(MONGO).partition("@")
        return name, source
