"""The [watershed] table of the experiment file."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, NonNegativeInt, model_validator

from lsdflow_contract.geometry import Lengths, LengthsField
from lsdflow_contract.model import StrictModel


class WatershedConfig(StrictModel):
    """How fragments are made from affinities, and how the volume is cut into blocks."""

    block_shape: LengthsField = Field(
        default=Lengths.parse("256 vox"),
        description="a block (write box), which is also the write unit on disk",
        json_schema_extra={"default": "256 vox"},
    )
    context: LengthsField | None = Field(
        default=None,
        description="read beyond a block on every side; none = 32 of the shortest voxel edges, seamless 48",
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
        default="blocks",
        description="blocks: fragments end at block faces, id = block number * voxels per block + local number; "
        "seamless: they go on, id = 1 + place of the seed in the volume",
    )
    zarr_format: Literal[2, 3] = Field(default=3, description="format of volumes/fragments")

    @model_validator(mode="after")
    def _joined_once(self) -> Self:
        if self.id_mode == "seamless" and self.epsilon_agglomerate > 0:
            msg = 'epsilon_agglomerate joins what one block sees; with id_mode = "seamless" leave that to agglomerate'
            raise ValueError(msg)
        return self
