"""StrictModel: the base of every config table. Frozen, unknown keys refused."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictModel(BaseModel):
    """A frozen pydantic model that refuses unknown keys and never coerces silently into NaN or infinity."""

    # Errors of the library quote the value, which may be a secret at the wrong place; ours show what is not one.
    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True, hide_input_in_errors=True
    )
