"""The [agglomerate] table of the experiment file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from lsdflow_agglomerate.merge_functions import MERGE_FUNCTIONS, names_by_score
from lsdflow_contract.geometry import LengthsField, PositiveLengths
from lsdflow_contract.graph import DEFAULT_MERGE_FUNCTIONS
from lsdflow_contract.model import StrictModel

MergeFunction = Annotated[str, Field(json_schema_extra={"enum": list(MERGE_FUNCTIONS)})]


class AgglomerateConfig(StrictModel):
    """Options for the scores of touching fragments, and for the blocks."""

    merge_functions: tuple[MergeFunction, ...] = Field(
        default=DEFAULT_MERGE_FUNCTIONS,
        min_length=1,
        description="how the face between two regions is scored; each makes its own set of edges. "
        + ". ".join(f"{', '.join(names)}: {score}" for score, names in names_by_score().items()),
    )
    scored_from: Literal["affinities", "lsds"] = Field(
        default="affinities",
        description="affinities: scores from affinities; lsds: from the predicted LSDs alone (needs predict.store_lsds"
        " = true)",
    )
    lsd_sigma: PositiveLengths | None = Field(
        default=None, description="sigma of the predicted LSDs (default: that of the network that predicted them)"
    )
    block_shape: LengthsField | None = Field(
        default=None,
        description="size of a block, a multiple of the blocks of watershed (default: the blocks of watershed)",
    )
    context: LengthsField | None = Field(
        default=None, description="margin read around a block, at least 1 voxel (default: the context of watershed)"
    )
    super_block: LengthsField | None = Field(
        default=None,
        description="id_mode seamless: part of the volume whose graph fits into memory, in whole blocks (default: as "
        "many blocks as fit into 768 voxels along each axis)",
    )

    @field_validator("merge_functions")
    @classmethod
    def _known_and_once(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [name for name in names if name not in MERGE_FUNCTIONS]
        if unknown:
            msg = f"unknown merge function {', '.join(unknown)}; known: {', '.join(MERGE_FUNCTIONS)}"
            raise ValueError(msg)
        if len(set(names)) != len(names):
            msg = f"a merge function is named twice: {', '.join(names)}"
            raise ValueError(msg)
        return names

    def parameters(self) -> dict[str, Any]:
        """All options that can change the result, as plain values; the shape of super-blocks cannot.

        If scores are from affinities, the options of LSDs are left out: no key depends on them.
        """
        without = {"super_block", *(("scored_from", "lsd_sigma") if self.scored_from == "affinities" else ())}
        return self.model_dump(mode="json", exclude=without)
