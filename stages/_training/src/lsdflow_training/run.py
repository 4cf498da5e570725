"""Run a training: read inputs, check, train with either backend, write a manifest."""

from __future__ import annotations

import importlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from lsdflow_command.experiment_lock import stage_lock
from lsdflow_command.monitoring import hand_over
from lsdflow_contract.checkpoint import (
    WEIGHTS,
    BestCheckpoint,
    Bundle,
    Kind,
    bundle_folder,
    read_best,
    read_bundle,
)
from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.hashing import hash_of, hash_of_file
from lsdflow_contract.manifest import Manifest, Writer, differences, read_manifest, work_key
from lsdflow_contract.trainings import (
    current_training,
    make_current,
    shortfall,
    training_outputs,
)
from lsdflow_training.checks import device_of_jobs, settings_problems, tensorflow_problems
from lsdflow_training.config import TrainingConfig
from lsdflow_training.data.volumes import (
    Source,
    chosen_volumes,
    common_voxel_size,
    labelled_sections,
    make_sources,
    prepared_probabilities,
    source_problems,
)
from lsdflow_training.mlflow_log import mlflow_problems
from lsdflow_training.processes.ranks import Ranks, ranks_of_environment
from lsdflow_training.resolve import resolve_settings
from lsdflow_training.schedule import limit_reached
from lsdflow_training.settings import TrainingSettings, training_parameters

LOG = logging.getLogger("lsdflow.training")
PATCHES_PER_STEP = "patches_per_step"  # key in the facts of the manifest
BY_LOSS = ("plateau", "overfit")  # verdicts of validation.py that end a training


@dataclass(frozen=True)
class TrainingResult:
    """Last iteration of a training, best checkpoint (None: another process has it), total minutes, and speed.

    ended_by: max_iteration, max_minutes, or the verdict on the validation loss (plateau, overfit).
    data_wait_share: share of the time spent waiting for batches.
    """

    iteration: int
    best: BestCheckpoint | None
    minutes: float
    it_per_s: float
    ended_by: str
    data_wait_share: float | None = None


@dataclass(frozen=True)
class Training:
    """A training that is ready to start: everything is resolved and checked, nothing is written."""

    experiment: Experiment
    config: TrainingConfig
    settings: TrainingSettings
    sources: list[Source]
    inputs: dict[str, str]

    @property
    def key(self) -> str:
        """Key of the training: a hash of its parameters and inputs."""
        return work_key(self.settings.stage, json.loads(json.dumps(training_parameters(self.settings))), self.inputs)

    @property
    def folder(self) -> Path:
        """The folder in the results that the training writes to; named by its key."""
        return self.experiment.layout.result(self.settings.stage, self.key)


def resolve_training(
    experiment: Experiment, config: TrainingConfig, stage: str, kind: Kind, lsd: Bundle | None = None
) -> Training:
    """Read the volumes' metadata, resolve the settings. Raises the first problem found, before anything is written."""
    made = read_manifest(experiment.layout, "prepare")
    inputs = {"prepare": made.identity}
    if lsd is not None:
        inputs["lsd_weights"] = lsd.weights_sha256
    probabilities = prepared_probabilities(made)
    volumes = chosen_volumes(experiment.layout, config, tuple(probabilities))
    device = device_of_jobs(experiment, config.backend) if experiment.descriptions else None
    size_nm = common_voxel_size(volumes)
    sections = labelled_sections(volumes, made)
    settings = resolve_settings(
        experiment, config, stage, kind, voxel_size_nm=size_nm, lsd=lsd, device=device, sections=sections
    )
    return Training(experiment, config, settings, make_sources(volumes, config, settings, probabilities), inputs)


def how_finished(training: Training, config: Mapping[str, Any]) -> str | None:
    """A text that says how the training, the current one, has finished; None if a run would change files.

    config: the options, as a manifest records them. The weights of the newest and the best checkpoint are compared with
    their sha256. Raises BadData (65) or MissingInput (66) without a manifest or a readable checkpoint.
    """
    layout, settings, folder = training.experiment.layout, training.settings, training.folder
    manifest = read_manifest(layout, settings.stage)
    facts, best = manifest.facts, read_best(folder / "best.json")
    iteration, ended_by = int(facts.get("iteration", -1)), facts.get("ended_by", "")
    ended = ended_by in BY_LOSS or limit_reached(settings.schedules, iteration, facts.get("minutes", 0.0))
    same = manifest.config == config and manifest.identity == _identity(training, best)
    if not ended or not same or current_training(layout, settings.stage) != folder.name:
        return None
    hashes = {(iteration, read_bundle(bundle_folder(folder / "checkpoints", iteration)).weights_sha256)}
    for number, sha256 in hashes | {(best.iteration, best.weights_sha256)}:
        if hash_of_file(bundle_folder(folder / "checkpoints", number) / WEIGHTS) != sha256:
            return None
    lacks = shortfall(facts)
    return f"it has finished at iteration {iteration} ({ended_by}){f'; it {lacks}' if lacks else ''}"


def _identity(training: Training, best: BestCheckpoint) -> str:
    return hash_of({"key": training.key, "weights": best.weights_sha256})


def run_training(training: Training, lsd: Any = None) -> None:
    """Train in the folder of the key and write a manifest; the training becomes the current one when it begins.

    Raises what trainer.train raises.
    """
    settings = training.settings
    problems = [*mlflow_problems(training.config.mlflow), *settings_problems(settings)]
    problems += source_problems(training.sources, settings)
    if problems:
        raise problems[0]
    if training.config.validation_fraction is None and settings.validation_fraction == 0:
        LOG.info("%s: nothing is held out (validation_fraction): too few labelled sections", settings.stage)
    if training.config.backend == "tensorflow":
        _train_with_tensorflow(training, lsd)
        return
    ranks = ranks_of_environment(os.environ)
    # Processes that this command starts on this node train under its lock.
    with _lock_of_stage(training, holds=ranks.rank == 0 and not ranks.started_locally):
        _train_with_torch(training, lsd, ranks)


def _lock_of_stage(training: Training, holds: bool) -> AbstractContextManager[None]:
    """The lock of the stage, which the one process of a training `holds` that writes its results."""
    return stage_lock(training.experiment.layout, training.settings.stage) if holds else nullcontext()


def _train_with_torch(training: Training, lsd: Any, ranks: Ranks) -> None:
    settings = training.settings
    distribution = settings.distribution
    if distribution.processes > 1:
        from lsdflow_training.processes.launch import run_local_processes

        if ranks.rank == 0:  # the first process on the first node exports the metrics instead of this one
            hand_over()
        run_local_processes(training.experiment, settings.stage, distribution, ranks)
        return
    from lsdflow_training.processes.collectives import open_group
    from lsdflow_training.trainer import train

    with open_group(ranks, settings.device, distribution.peer_timeout_s) as group:
        if group.writes:
            _begin(training)
        group.wait_for_all()
        result = train(settings, training.sources, training.folder, training.key, lsd, group)
        if result.best is not None:
            _write_manifest(training, result, result.best)


def tensorflow_backend() -> ModuleType:
    """The module lsdflow_tensorflow.trainer, which imports this package. Raises NotInstalled (78) if it is missing."""
    problems = tensorflow_problems("tensorflow")
    if problems:
        raise problems[0]
    return importlib.import_module("lsdflow_tensorflow.trainer")


def _train_with_tensorflow(training: Training, lsd: Any) -> None:
    backend = tensorflow_backend()
    shared, cluster = backend.share_among_cluster(training)
    with _lock_of_stage(shared, holds=cluster.is_chief):
        if cluster.is_chief:
            _begin(shared)
        result = backend.train(shared.settings, shared.sources, shared.folder, shared.key, lsd, cluster)
        if result.best is not None:
            _write_manifest(shared, result, result.best)


def _begin(training: Training) -> None:
    """Make the training the current one. Log how it differs from the one before, which stays in the results."""
    with suppress(StageError):
        earlier = read_manifest(training.experiment.layout, training.settings.stage)
        changed = differences(earlier, training.config.model_dump(mode="json"), training.inputs)
        if earlier.key != training.key:
            LOG.warning(
                "%s: another training than the current one (%s): %s. It has a folder of its own in results/; "
                "`lsdflow use` makes the earlier one current again",
                training.settings.stage,
                earlier.key[:8],
                changed or "another number of processes",
            )
    make_current(training.experiment.layout, training.settings.stage, training.key)


def _write_manifest(training: Training, result: TrainingResult, best: BestCheckpoint) -> None:
    facts = {
        "iteration": result.iteration,
        "max_iteration": training.settings.schedules.max_iteration,
        "ended_by": result.ended_by,
        "best_iteration": best.iteration,
        "validation_loss": best.validation_loss,
        "minutes": round(result.minutes, 3),
        "seconds": round(60 * result.minutes, 1),
        "it_per_s": round(result.it_per_s, 4),
        "kind": training.settings.kind,
        "validation_fraction": training.settings.validation_fraction,
    }
    if training.settings.step.effective_batch > 1:
        facts[PATCHES_PER_STEP] = training.settings.step.effective_batch
        facts["samples_per_s"] = round(result.it_per_s * training.settings.step.effective_batch, 4)
    if result.data_wait_share is not None:
        facts["data_wait_share"] = round(result.data_wait_share, 4)
    stage = training.settings.stage
    # A network that begins with trained weights has learnt before: its loss need not fall.
    if training.settings.initial is None:
        from lsdflow_training.curves import loss_fell  # torch takes seconds to load

        facts |= loss_fell(training.folder, result.iteration)
    Manifest(
        writer=Writer.of(stage),
        key=training.key,
        config=training.config.model_dump(mode="json"),
        inputs=training.inputs,
        outputs=training_outputs(training.experiment.layout, stage, training.key),
        facts=facts,
        identity=_identity(training, best),
    ).finish(training.experiment.layout)
    LOG.info("%s: %s", stage, facts)
    if lacks := shortfall(facts):
        LOG.warning("%s %s", stage, lacks)
