"""The [watershed] table of the experiment file."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from lsdflow_contract.geometry import Lengths, LengthsField
from lsdflow_contract.model import StrictModel

Boundary = Literal["affinity", "distance"]
MUTEX_ONLY = ("method", "mutex_bias", "mutex_strides", "remove_debris_vox")


class WatershedConfig(StrictModel):
    """Options for the computation of fragments from affinities, and for the blocks."""

    block_shape: LengthsField = Field(
        default=Lengths.parse("256 vox"),
        description="size of a block, which is also the write unit on disk",
        json_schema_extra={"default": "256 vox"},
    )
    context: LengthsField | None = Field(
        default=None,
        description="margin read around a block on every side (default: 48 times the shortest voxel edge; 32 times if "
        "id_mode = blocks)",
    )
    method: Literal["seeded", "mutex"] = Field(
        default="seeded",
        description="seeded: watershed of the distance to the nearest boundary; mutex: mutex watershed of all "
        "affinities",
    )
    fragments_in_xy: bool = Field(
        default=False, description="true: make fragments in each section separately (thick sections); false: in 3-D"
    )
    min_seed_distance_vox: int = Field(
        default=10,
        ge=2,
        description="each seed is the deepest voxel of a window with this edge, voxels; lower = more fragments",
    )
    boundary: Boundary | None = Field(
        default=None,
        description="who gets the voxels of the boundary, whose mean affinity is at most one half. affinity: the seed "
        "reached along the highest affinities; distance (as published): the nearest seed (default: affinity; "
        "distance if id_mode = blocks)",
    )
    epsilon_agglomerate: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="merge fragments within a block up to this score (hist_quant_25); 0 = no",
    )
    filter_fragments: float = Field(
        default=0.0, ge=0.0, le=1.0, description="remove fragments below this mean affinity; 0 = keep all"
    )
    mutex_bias: tuple[Annotated[float, Field(ge=-1, le=1)], ...] = Field(
        default=(),
        description="added to the affinities (0 to 1); sums above 0 attract, below 0 repel. One value for all "
        "channels, or one for each (default: 0 for the three nearest neighbours and -1 for others; -0.5 if"
        " there are no others)",
    )
    mutex_strides: tuple[tuple[PositiveInt, PositiveInt, PositiveInt], ...] = Field(
        default=(),
        description="use an affinity only at every n-th voxel (z,y,x): one stride for all channels but the three "
        "nearest, or one for each channel (default: about 4 of the shortest voxel edges, for all but the "
        "three nearest)",
    )
    remove_debris_vox: int = Field(
        default=0,
        ge=0,
        description="remove fragments with fewer voxels than this (in a block and its context); 0 = keep all",
    )
    mask_file: str = Field(
        default="",
        description="container of a mask; no fragments where the mask is 0 or outside of it; empty = no mask",
    )
    mask_dataset: str = Field(default="volumes/labels/mask", min_length=1, description="dataset in mask_file")
    replace_sections: tuple[NonNegativeInt, ...] = Field(
        default=(), description="bad sections: their z index in the target volume, from 0"
    )
    replace_sections_with: Literal["zero", "copy"] = Field(
        default="zero",
        description="zero: no fragments in bad sections; copy: copy the fragments of the nearest good section",
    )
    id_mode: Literal["blocks", "seamless"] = Field(
        default="seamless",
        description="seamless: fragments continue across block faces, id = 1 + position of the seed in the volume; "
        "blocks (as published): fragments end at block faces, id = block number * voxels per block + local"
        " number",
    )
    zarr_format: Literal[2, 3] = Field(default=3, description="zarr format of volumes/fragments")

    @model_validator(mode="after")
    def _of_the_id_mode(self) -> Self:
        if self.id_mode == "seamless" and self.epsilon_agglomerate > 0:
            msg = 'epsilon_agglomerate joins what one block sees: leave that to agglomerate, or set id_mode = "blocks"'
            raise ValueError(msg)
        if self.id_mode == "blocks" and self.boundary == "affinity":
            msg = 'boundary = "affinity" needs id_mode = "seamless"; the fragments of "blocks" are those published'
            raise ValueError(msg)
        return self

    @model_validator(mode="after")
    def _of_the_method(self) -> Self:
        if self.method == "mutex" and self.id_mode == "seamless":
            msg = 'fragments of method = "mutex" have no seed to be named by: id_mode = "blocks"'
            raise ValueError(msg)
        changed = [name for name in MUTEX_ONLY if name != "method" and getattr(self, name)]
        if self.method == "seeded" and changed:
            msg = f'{", ".join(changed)}: only with method = "mutex"'
            raise ValueError(msg)
        return self

    @property
    def boundary_rule(self) -> Boundary:
        """The setting, or the default of the id mode."""
        return self.boundary or ("affinity" if self.id_mode == "seamless" else "distance")

    def parameters(self) -> dict[str, Any]:
        """All options as plain values, without those of a method that is not used: no key depends on them.

        The published rule of the boundary is not named, because results that are older than the other have its key.
        """
        unused = {"boundary"} if self.method == "mutex" else {"boundary", *MUTEX_ONLY}
        rule = {"boundary": "affinity"} if self.boundary_rule == "affinity" else {}
        return self.model_dump(mode="json", exclude=unused) | rule
