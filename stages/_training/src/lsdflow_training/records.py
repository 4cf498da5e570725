"""What a training leaves for people beside its curves, only if asked to: a profile of its steps, a run in MLflow.

None of it changes a result: it is no part of a training's key, and manifests do not have what is not used.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from lsdflow_contract.model import StrictModel
from lsdflow_training.mlflow_uri import checked_uri


class RecordsConfig(StrictModel):
    """Options of what is left for people; all off by default."""

    profile_steps: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="number of steps that torch.profiler records, after two steps of warm-up; 0 = none",
    )
    mlflow: str | None = Field(
        default=None,
        description='also log to MLflow, if installed: "local" (train/mlruns), http(s)://..., file:///... (default: do'
        " not)",
    )

    def unused_records(self) -> set[str]:
        """Options of this class that are not set; manifests do not have them, as those of before."""
        return {name for name, field in RecordsConfig.model_fields.items() if getattr(self, name) == field.default}


@dataclass(frozen=True)
class Records:
    """profile_steps: 0 = none. mlflow: "local" or a URI, None = no. experiment: its name, for people to find it."""

    profile_steps: int = 0
    mlflow: str | None = None
    experiment: str = ""


def resolve_records(config: RecordsConfig, experiment: str) -> Records:
    """The options as a part of the recipe. ConfigError for a URI that cannot be used."""
    return Records(config.profile_steps, checked_uri(config.mlflow), experiment)
