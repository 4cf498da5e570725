"""Early stopping and averaged weights: options and their resolved form."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from lsdflow_contract.model import StrictModel


class SteeringConfig(StrictModel):
    """Options of early stopping and of averaged weights; all off by default."""

    patience_iterations: int | None = Field(
        default=None,
        ge=1,
        description="early stopping: end the training when the validation loss has not improved for this many "
        "iterations (default: never)",
    )
    min_improvement: float = Field(
        default=0.005,
        ge=0,
        lt=1,
        description="early stopping: fraction by which a validation loss must be lower to count as an improvement",
    )
    average_decay: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="save the moving average of the weights with this decay, for example 0.999, instead of the last "
        "weights (default: last weights)",
    )


@dataclass(frozen=True)
class Steering:
    """patience: iterations, None = never stop early. average_decay: None = no average."""

    patience: int | None = None
    min_improvement: float = 0.005
    average_decay: float | None = None


def resolve_steering(config: SteeringConfig) -> Steering:
    """The options for the recipe."""
    return Steering(config.patience_iterations, config.min_improvement, config.average_decay)
