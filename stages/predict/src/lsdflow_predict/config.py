"""The [predict] table of the experiment file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from lsdflow_contract.geometry import LengthsField, RegionConfig
from lsdflow_contract.model import StrictModel


class PredictConfig(StrictModel):
    """Where the networks come from, which region of the target is predicted, and in which tiles and blocks."""

    checkpoint: int | str = Field(
        default="best", description='network to use: "best", an iteration, or the path of a bundle'
    )
    lsd_checkpoint: int | str = Field(
        default="trained_with",
        description='LSD network (mode acrlsd): "trained_with" (the one the affinity network was trained with), an '
        "iteration, or a path",
    )
    allow_lsd_mismatch: bool = Field(
        default=False, description="accept an LSD network other than the one trained with; this is recorded"
    )
    allow_voxel_size_mismatch: bool = Field(
        default=False, description="accept a target with another voxel size than the training volumes; this is recorded"
    )
    setup: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$",
        description="folder under predictions/ (default: the name of the mode)",
    )
    store_lsds: bool = Field(default=False, description="also write volumes/lsds")
    roi: RegionConfig | None = Field(default=None, description="predict only this region (default: the whole target)")
    mask: str | None = Field(
        default=None, description="dataset in the target volume; where it is 0, nothing is computed and the result is 0"
    )
    outside: Literal["mirror", "zero"] = Field(
        default="mirror", description="how the target is continued beyond its edge, as input of the networks"
    )
    tile_shape: LengthsField | None = Field(
        default=None,
        description="largest output shape of one network evaluation, which determines GPU memory (default: from the "
        "bundle)",
    )
    block_shape: LengthsField | None = Field(
        default=None,
        description="largest block, rounded down to whole tiles, which determines main memory; does not change the "
        "result (default: chosen automatically)",
    )
    precision: Literal["auto", "float32", "tf32", "bf16", "fp16"] = Field(
        default="auto",
        description="auto: fp16 on a GPU, float32 on a CPU. bf16: also on some CPUs; tf32: float32 multiplied in TF32. "
        "In 16 bits, the first tile is compared with float32",
    )
    allow_mixed_devices: bool = Field(
        default=False,
        description="accept workers on different kinds of GPU, or on GPU and CPU, for one result: its low bits then "
        "depend on which worker took a block",
    )
    lsd_cache_mb: int | None = Field(
        default=None,
        ge=0,
        description="memory in MB for LSD tiles that a worker keeps for its next blocks (default: 1024 on a CPU, 0.3 "
        "of the free memory of a GPU)",
    )
    zarr_format: Literal[2, 3] = Field(default=3, description="zarr format of the predictions")
