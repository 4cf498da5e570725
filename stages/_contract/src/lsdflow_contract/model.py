"""StrictModel: the base of every config table. It is frozen and refuses unknown keys."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, field_validator

from lsdflow_contract.files import refuse_extremes


class StrictModel(BaseModel):
    """A frozen pydantic model that refuses unknown keys and never coerces silently into NaN or infinity."""

    # pydantic's errors quote the value, which may be a misplaced secret; those of lsdflow contain no secret values.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, hide_input_in_errors=True
    )

    @field_validator("*")
    @classmethod
    def _is_usable(cls, value: Any) -> Any:
        refuse_extremes(value)
        return value
