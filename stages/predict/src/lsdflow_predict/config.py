"""The [predict] table of the experiment file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lsdflow_contract.geometry import LengthsField
from lsdflow_contract.model import StrictModel
from lsdflow_contract.region import RegionConfig


class PredictConfig(StrictModel):
    """Where the networks come from, what part of the target is predicted, and how it is cut into pieces."""

    checkpoint: int | str = Field(default="best", description='network: "best", an iteration, or the path of a bundle')
    lsd_checkpoint: int | str = Field(
        default="trained_with",
        description='LSD network (mode acrlsd): "trained_with" (as the affinity network says), an iteration, or a path',
    )
    allow_lsd_mismatch: bool = Field(
        default=False, description="accept another LSD network than the one trained with; recorded"
    )
    allow_voxel_size_mismatch: bool = Field(
        default=False, description="accept a target with another voxel size; recorded"
    )
    setup: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$",
        description="folder under predictions/; none = the mode's name",
    )
    passes: Literal["one", "two"] = Field(
        default="one",
        description="one: LSDs stay in memory; two: they are stored first, then read back; same bits (mode acrlsd)",
    )
    part: Literal["all", "lsds"] = Field(
        default="all", description="lsds: stop after the first of two passes, with only the LSDs stored"
    )
    store_lsds: bool = Field(default=False, description="also write volumes/lsds (always written with passes = two)")
    roi: RegionConfig | None = Field(default=None, description="predict only this part; none = the whole target")
    mask: str | None = Field(
        default=None, description="dataset in the target volume; where it is 0 the outputs are 0, and work is skipped"
    )
    outside: Literal["mirror", "zero"] = Field(
        default="mirror", description="what the networks see beyond the target's edge"
    )
    tile_shape: LengthsField | None = Field(
        default=None,
        description="largest output of one network evaluation (sets GPU memory); none = as the bundle says",
    )
    block_shape: LengthsField | None = Field(
        default=None,
        description="largest block (sets main memory), rounded down to whole tiles; changes no bit; none = chosen",
    )
    precision: Literal["float32", "bf16"] = Field(default="float32", description="bf16: faster on GPUs, other low bits")
    lsd_cache_mb: int = Field(default=1024, ge=0, description="LSD tiles a worker keeps for its next block, MB")
    measure: bool = Field(default=False, description="plan: run one tile of each network and tell the time")
    zarr_format: Literal[2, 3] = Field(default=3, description="format of the predicted arrays")
