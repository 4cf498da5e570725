"""Entry points of train-lsd and train-acrlsd with backend = "tensorflow"; lsdflow_training.backends imports them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lsdflow_tensorflow.cluster import Cluster, find_cluster
from lsdflow_tensorflow.limits import require_possible, shared_among
from lsdflow_tensorflow.trainer import TensorflowTrainer, train
from lsdflow_training.build import FrozenLsd
from lsdflow_training.data.pipeline import Source
from lsdflow_training.outcome import Outcome
from lsdflow_training.prepared import Prepared
from lsdflow_training.recipe import Recipe

__all__ = ["prepare", "train", "train_alone"]


def prepare(prepared: Prepared) -> tuple[Prepared, bool]:
    """The training as shared by the processes of TF_CONFIG or SLURM, and whether this process writes the results.

    Raises ConfigError (78) for options that are not available with TensorFlow.
    """
    cluster = find_cluster(os.environ)
    recipe = shared_among(prepared.recipe, cluster)
    require_possible(recipe, cluster)
    return replace(prepared, recipe=recipe), cluster.is_chief


def train_alone(
    recipe: Recipe, sources: Sequence[Source], folder: Path, training_key: str, lsd: FrozenLsd | None = None
) -> Outcome:
    """Train in this process alone and ignore TF_CONFIG and SLURM. Used to measure a few steps."""
    alone = Cluster()
    shared = shared_among(recipe, alone)
    require_possible(shared, alone)
    return TensorflowTrainer(shared, sources, folder, training_key, lsd, alone).run()
