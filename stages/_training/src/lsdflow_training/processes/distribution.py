"""Resolved settings for optimizer steps and for sharing a training among processes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from lsdflow_contract.errors import ConfigError
from lsdflow_network.devices import gpu_count, require_precision
from lsdflow_training.distributed_config import DistributedConfig
from lsdflow_training.processes.ranks import Ranks


@dataclass(frozen=True)
class StepOptions:
    """How gradients become a step. effective_batch: patches per step in all processes together."""

    accumulate: int = 1
    effective_batch: int = 1
    optimizer: Literal["adam", "adamw"] = "adam"
    weight_decay: float = 0.0
    clip_gradient: float | None = None
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = "none"
    checkpoint_activations: bool = False

    def parameters(self) -> dict[str, Any]:
        """Options that affect the result and differ from their default; of the batch only its effective size counts."""
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        usual = {f.name: f.default for f in dataclasses.fields(self)}
        same = ("accumulate", "checkpoint_activations")
        return {name: value for name, value in found.items() if name not in same and value != usual[name]}


@dataclass(frozen=True)
class Distribution:
    """How many processes this node starts, and how all of them share the training. Does not affect what is learnt."""

    processes: int = 1
    strategy: Literal["ddp", "fsdp"] = "ddp"
    reshard: Literal["full", "grad_op", "hybrid", "none"] = "full"
    min_num_params: int = 1_000_000
    cpu_offload: bool = False
    peer_timeout_s: float = 240.0
    check_weights_every: int = 1000

    @property
    def sharded(self) -> bool:
        """True if each process holds only a share of the weights."""
        return self.strategy == "fsdp" and self.reshard != "none"


def resolve_distribution(config: DistributedConfig, device: str, ranks: Ranks) -> Distribution:
    """Processes and strategy. Raises ConfigError for what the device does not support."""
    processes = 1
    if not ranks.started_by_us:
        processes = _gpus(device) if config.processes == "auto" else config.processes
    if config.precision == "fp16" and (device == "cpu" or config.strategy == "fsdp"):
        raise ConfigError(
            "fp16 needs loss scaling, which is there for GPUs and strategy ddp",
            where="precision",
            wanted="auto, float32 or bf16",
            found=f"fp16 on {device} with {config.strategy}",
        )
    require_precision(device, config.precision, "precision")
    if config.fsdp_cpu_offload and device == "cpu":
        raise ConfigError("without a GPU there is nothing to offload", where="fsdp_cpu_offload", found=f"on {device}")
    return Distribution(
        processes=processes,
        strategy=config.strategy,
        reshard=config.fsdp_reshard,
        min_num_params=config.fsdp_min_num_params,
        cpu_offload=config.fsdp_cpu_offload,
        peer_timeout_s=config.peer_timeout_s,
        check_weights_every=config.check_weights_every,
    )


def resolve_step(config: DistributedConfig, processes: int) -> StepOptions:
    """The options of a step of `processes` processes in total."""
    return StepOptions(
        accumulate=config.accumulate,
        effective_batch=config.accumulate * processes,
        optimizer=config.optimizer,
        weight_decay=config.weight_decay,
        clip_gradient=config.clip_gradient,
        learning_rate_scaling=config.learning_rate_scaling,
        checkpoint_activations=config.checkpoint_activations,
    )


def _gpus(device: str) -> int:
    """One process per GPU; one if there is no GPU, or if one GPU is named."""
    if device != "cuda":
        return 1
    return max(1, gpu_count())
