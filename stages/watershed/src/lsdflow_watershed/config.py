"""The [watershed] table of the experiment file."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from lsdflow_contract.geometry import Lengths, LengthsField
from lsdflow_contract.model import StrictModel

MUTEX_ONLY = ("method", "mutex_bias", "mutex_strides", "remove_debris_vox")


class WatershedConfig(StrictModel):
    """How fragments are made from affinities, and how the volume is cut into blocks."""

    block_shape: LengthsField = Field(
        default=Lengths.parse("256 vox"),
        description="a block (write box), which is also the write unit on disk",
        json_schema_extra={"default": "256 vox"},
    )
    context: LengthsField | None = Field(
        default=None,
        description="read beyond a block on every side; none = 48 of the shortest voxel edges, id_mode blocks 32",
    )
    method: Literal["seeded", "mutex"] = Field(
        default="seeded",
        description="seeded: basins of the distance to the nearest boundary; mutex: mutex watershed of all affinities",
    )
    fragments_in_xy: bool = Field(
        default=False, description="make fragments section by section (thick sections); false: in 3-D"
    )
    min_seed_distance_vox: int = Field(
        default=10, ge=2, description="a seed is the deepest voxel of a window with this edge; lower = more fragments"
    )
    epsilon_agglomerate: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="join fragments within a block up to this score (hist_quant_25); 0 = no",
    )
    filter_fragments: float = Field(
        default=0.0, ge=0.0, le=1.0, description="clear fragments whose mean affinity is below this; 0 = keep all"
    )
    mutex_bias: tuple[Annotated[float, Field(ge=-1, le=1)], ...] = Field(
        default=(),
        description="added to affinities (0 to 1): above 0 they attract, below 0 they repel; one for all channels, or "
        "one each; none = 0 for the three nearest voxels and -1 for others, -0.5 if there are no others",
    )
    mutex_strides: tuple[tuple[PositiveInt, PositiveInt, PositiveInt], ...] = Field(
        default=(),
        description="of every how many voxels (z,y,x) an affinity counts; one for all but the three nearest, or one "
        "for each channel; none = about 4 of the shortest voxel edges for all but the three nearest",
    )
    remove_debris_vox: int = Field(
        default=0, ge=0, description="clear fragments of fewer voxels (in the block and its context); 0 = keep all"
    )
    mask_file: str = Field(
        default="", description="container of a mask: no fragments where it is 0 (nor beyond its edge); empty = none"
    )
    mask_dataset: str = Field(default="volumes/labels/mask", min_length=1, description="dataset in mask_file")
    replace_sections: tuple[NonNegativeInt, ...] = Field(
        default=(), description="bad sections: z of the target volume, from 0"
    )
    replace_sections_with: Literal["zero", "copy"] = Field(
        default="zero", description="zero: no fragments in bad sections; copy: those of the nearest good section"
    )
    id_mode: Literal["blocks", "seamless"] = Field(
        default="seamless",
        description="seamless: fragments go on across block faces, id = 1 + place of the seed in the volume; "
        "blocks (published): they end there, id = block number * voxels per block + local number",
    )
    zarr_format: Literal[2, 3] = Field(default=3, description="format of volumes/fragments")

    @model_validator(mode="after")
    def _joined_once(self) -> Self:
        if self.id_mode == "seamless" and self.epsilon_agglomerate > 0:
            msg = 'epsilon_agglomerate joins what one block sees: leave that to agglomerate, or set id_mode = "blocks"'
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

    def parameters(self) -> dict[str, Any]:
        """All options as plain values; those of the mutex watershed only with it: fragments made before stay valid."""
        return self.model_dump(mode="json", exclude=set() if self.method == "mutex" else set(MUTEX_ONLY))
