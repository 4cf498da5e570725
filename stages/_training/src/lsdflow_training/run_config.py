"""Options of both training stages for how a training runs: steps, processes, early stopping, records for users."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from lsdflow_contract.model import StrictModel

MOST_PROCESSES = 256


class DistributedConfig(StrictModel):
    """Optimizer, effective batch, processes. With the defaults, a training is one process."""

    precision: Literal["auto", "float32", "bf16", "fp16"] = Field(
        default="auto",
        description="auto: bf16 if the device supports it, else fp16 with scaled losses (GPUs) or float32 (CPUs)",
    )
    accumulate: int = Field(
        default=1, ge=1, le=10_000, description="patches per process and step; their gradients are averaged"
    )
    optimizer: Literal["adam", "adamw"] = Field(
        default="adam", description="adam, or adamw with decoupled weight decay"
    )
    weight_decay: float = Field(default=0.0, ge=0, le=1, description="weight decay of the optimizer")
    clip_gradient: float | None = Field(
        default=None, gt=0, description="largest norm of the gradient (default: not limited)"
    )
    checkpoint_activations: bool = Field(
        default=False,
        description="recompute the levels of the network in the backward pass: less memory, same gradients",
    )
    processes: Literal["auto"] | int = Field(
        default=1, description="training processes on each node; auto = one per GPU"
    )
    strategy: Literal["ddp", "fsdp"] = Field(
        default="ddp", description="with several processes: each holds the whole network (ddp) or a share of it (fsdp)"
    )
    fsdp_reshard: Literal["full", "grad_op", "hybrid", "none"] = Field(
        default="full",
        description="fsdp: when a process frees the shares of the others: after each use (full), after the step "
        "(grad_op); hybrid: full within a node, each node has the whole network; none: never, as ddp",
    )
    fsdp_min_num_params: int = Field(
        default=1_000_000, ge=1, description="fsdp: levels with at least this many parameters are sharded separately"
    )
    fsdp_cpu_offload: bool = Field(
        default=False, description="fsdp: keep shares and optimizer state in the host's memory (GPUs only)"
    )
    peer_timeout_s: float = Field(
        default=240.0,
        gt=0,
        le=1e6,
        description="a process that waits this many seconds for another one ends with exit code 75 and can be resumed",
    )

    @field_validator("processes")
    @classmethod
    def _at_least_one(cls, value: str | int) -> str | int:
        if isinstance(value, int) and not 1 <= value <= MOST_PROCESSES:
            msg = f"processes is 1 to {MOST_PROCESSES}, or auto"
            raise ValueError(msg)
        return value


class RegularizationConfig(StrictModel):
    """Options against overfitting: early stopping and averaged weights; all off by default."""

    patience_iterations: int | None = Field(
        default=None,
        ge=1,
        description="early stopping: end the training when the validation loss has not improved for this many "
        "iterations (default: never)",
    )
    average_decay: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="save the moving average of the weights with this decay, for example 0.999, instead of the last "
        "weights (default: last weights)",
    )


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
