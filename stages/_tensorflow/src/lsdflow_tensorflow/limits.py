"""Check up front that TensorFlow can do a training, and count the patches of its steps."""

from __future__ import annotations

from dataclasses import replace

from lsdflow_contract.errors import ConfigError
from lsdflow_tensorflow.cluster import Cluster
from lsdflow_training.recipe import Recipe


def require_possible(recipe: Recipe, cluster: Cluster) -> None:
    """Raise ConfigError for the first option that only torch supports, or if a step is not one patch per replica."""
    step, how = recipe.step, recipe.distribution
    only_torch = {
        "precision": (recipe.precision, recipe.precision in ("auto", "float32")),
        "optimizer": (step.optimizer, step.optimizer == "adam"),
        "weight_decay": (step.weight_decay, step.weight_decay == 0),
        "clip_gradient": (step.clip_gradient, step.clip_gradient is None),
        "accumulate": (step.accumulate, step.accumulate == 1),
        "checkpoint_activations": (step.checkpoint_activations, not step.checkpoint_activations),
        "strategy": (how.strategy, how.strategy == "ddp"),
        "average_decay": (recipe.steering.average_decay, recipe.steering.average_decay is None),
        "patience_iterations": (recipe.steering.patience, recipe.steering.patience is None),
        "profile_steps": (recipe.records.profile_steps, recipe.records.profile_steps == 0),
        "mlflow": (recipe.records.mlflow, recipe.records.mlflow is None),
    }
    for name, (value, possible) in only_torch.items():
        if not possible:
            raise ConfigError(
                "this option is there with torch only",
                where=f"{recipe.stage}.{name}",
                found=f'{value} with backend = "tensorflow"',
                fix='leave it out, or choose backend = "torch"',
            )
    if step.effective_batch != cluster.size * how.processes:
        raise ConfigError(
            "a step is not one patch of each replica",
            where=recipe.stage,
            wanted=f"{cluster.size} processes x {how.processes} devices",
            found=f"{step.effective_batch} patches",
        )


def shared_among(recipe: Recipe, cluster: Cluster) -> Recipe:
    """The recipe with one patch per replica in each step. TF_CONFIG may list processes that SLURM does not have."""
    patches = cluster.size * recipe.distribution.processes
    return replace(recipe, step=replace(recipe.step, effective_batch=patches * recipe.step.accumulate))
