"""Optional records of a training for users, beside its curves: a profile of its steps, a run in MLflow.

They do not change a result, so they are not part of a training's key, and manifests omit those that are not used.
"""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from lsdflow_contract.model import StrictModel
from lsdflow_training.mlflow_uri import checked_uri


class RecordsConfig(StrictModel):
    """Options of the optional records; all off by default."""

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
        """Options of this class at their default. Manifests omit them, as manifests from before these options do."""
        return {name for name, field in RecordsConfig.model_fields.items() if getattr(self, name) == field.default}


@dataclass(frozen=True)
class Records:
    """profile_steps: 0 = none. mlflow: "local" or a URI, None = no. experiment: its name, shown in MLflow."""

    profile_steps: int = 0
    mlflow: str | None = None
    experiment: str = ""


def resolve_records(config: RecordsConfig, experiment: str) -> Records:
    """The options for the recipe. Raises ConfigError for a URI that cannot be used."""
    return Records(config.profile_steps, checked_uri(config.mlflow), experiment)
