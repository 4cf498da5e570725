"""What train-lsd and train-acrlsd share: read inputs, check, train, write a manifest."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsdflow_command.monitoring import hand_over
from lsdflow_contract.checkpoint import (
    BUNDLE_JSON,
    PLANNED,
    BestCheckpoint,
    Bundle,
    Kind,
    bundle_folder,
    bundle_iterations,
    read_best,
    write_best,
)
from lsdflow_contract.errors import BadData, MissingInput, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import write_json
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import Manifest, Writer, differences, read_manifest
from lsdflow_contract.trainings import make_current, training_outputs
from lsdflow_network.costs import multiply_adds
from lsdflow_training.backends import tensorflow_backend
from lsdflow_training.bundle_facts import make_bundle
from lsdflow_training.checks import device_of_jobs, recipe_problems
from lsdflow_training.config import TrainingConfig
from lsdflow_training.data.sampling import (
    chosen_volumes,
    common_voxel_size,
    make_sources,
    prepared_probabilities,
    source_problems,
)
from lsdflow_training.data.volumes import Source, TrainingVolume
from lsdflow_training.mlflow_uri import mlflow_problems
from lsdflow_training.prepared import Prepared
from lsdflow_training.processes.ranks import ranks_of_environment
from lsdflow_training.resolve import resolve_recipe

if TYPE_CHECKING:
    from lsdflow_training.outcome import Outcome

LOG = logging.getLogger("lsdflow.training")
PATCHES_PER_STEP = "patches_per_step"


def prepare_training(
    experiment: Experiment, config: TrainingConfig, stage: str, kind: Kind, lsd: Bundle | None = None
) -> Prepared:
    """Read the volumes' metadata and resolve the recipe. Raises the first problem found, before anything is written."""
    made = read_manifest(experiment.layout, "prepare")
    inputs = {"prepare": made.identity}
    if lsd is not None:
        inputs["lsd_weights"] = lsd.weights_sha256
    probabilities = prepared_probabilities(made)
    volumes = _volumes(experiment, config, probabilities)
    device = device_of_jobs(experiment) if experiment.descriptions else None
    size_nm = common_voxel_size(volumes)
    recipe = resolve_recipe(experiment, config, stage, kind, voxel_size_nm=size_nm, lsd=lsd, device=device)
    return Prepared(experiment, config, recipe, make_sources(volumes, config, recipe, probabilities), inputs)


def run_training(prepared: Prepared, lsd: Any = None) -> None:
    """Train in the folder of the key and write a manifest; the training becomes the current one when it begins.

    Raises what trainer.train raises.
    """
    recipe = prepared.recipe
    problems = [*mlflow_problems(prepared.config.mlflow), *recipe_problems(recipe)]
    problems += source_problems(prepared.sources, recipe)
    if problems:
        raise problems[0]
    if prepared.config.backend == "tensorflow":
        _train_with_tensorflow(prepared, lsd)
        return
    ranks, how = ranks_of_environment(os.environ), recipe.distribution
    if how.processes > 1:
        from lsdflow_training.processes.local_processes import run_local_processes

        if ranks.rank == 0:  # the first process on the first node exports the metrics instead of this one
            hand_over()
        run_local_processes(prepared.experiment, recipe.stage, how, ranks)
        return
    from lsdflow_training.processes.group import open_group
    from lsdflow_training.trainer import train

    with open_group(ranks, recipe.device, how.peer_timeout_s) as group:
        if group.writes:
            _report_other_settings(prepared)
            make_current(prepared.experiment.layout, recipe.stage, prepared.key)
        group.wait_for_all()
        outcome = train(recipe, prepared.sources, prepared.folder, prepared.key, lsd, group)
        if outcome.best is not None:
            _leave_manifest(prepared, outcome, outcome.best)


def _train_with_tensorflow(prepared: Prepared, lsd: Any) -> None:
    backend = tensorflow_backend()
    shared, writes = backend.prepare(prepared)
    if writes:
        _report_other_settings(shared)
        make_current(shared.experiment.layout, shared.recipe.stage, shared.key)
    outcome = backend.train(shared.recipe, shared.sources, shared.folder, shared.key, lsd)
    if outcome.best is not None:
        _leave_manifest(shared, outcome, outcome.best)


def _report_other_settings(prepared: Prepared) -> None:
    """Log how the training differs from the current one, which stays in the results."""
    with suppress(StageError):
        earlier = read_manifest(prepared.experiment.layout, prepared.recipe.stage)
        changed = differences(earlier, prepared.config.recorded(), prepared.inputs)
        if earlier.key != prepared.key:
            LOG.warning(
                "%s: another training than the current one (%s): %s. It has a folder of its own in results/; "
                "`lsdflow use` makes the earlier one current again",
                prepared.recipe.stage,
                earlier.key[:8],
                changed or "another number of processes",
            )


def _leave_manifest(prepared: Prepared, outcome: Outcome, best: BestCheckpoint) -> None:
    facts = {
        "iteration": outcome.iteration,
        "ended_by": outcome.ended_by,
        "best_iteration": best.iteration,
        "validation_loss": best.validation_loss,
        "minutes": round(outcome.minutes, 3),
        "seconds": round(60 * outcome.minutes, 1),
        "it_per_s": round(outcome.it_per_s, 4),
        "kind": prepared.recipe.kind,
    }
    if prepared.recipe.step.effective_batch > 1:
        facts[PATCHES_PER_STEP] = prepared.recipe.step.effective_batch
        facts["samples_per_s"] = round(outcome.it_per_s * prepared.recipe.step.effective_batch, 4)
    if outcome.data_wait_share is not None:
        facts["data_wait_share"] = round(outcome.data_wait_share, 4)
    stage = prepared.recipe.stage
    Manifest(
        writer=Writer.of(stage),
        key=prepared.key,
        config=prepared.config.recorded(),
        inputs=prepared.inputs,
        outputs=training_outputs(prepared.experiment.layout, stage, prepared.key),
        facts=facts,
        identity=hash_of({"key": prepared.key, "weights": best.weights_sha256}),
    ).finish(prepared.experiment.layout)
    LOG.info("%s: %s", stage, facts)


def training_plan(prepared: Prepared) -> dict[str, Any]:
    """The facts of a run that `plan` reports."""
    recipe = prepared.recipe
    return {
        "kind": recipe.kind,
        "volumes": {s.volume.name: round(s.probability, 4) for s in prepared.sources},
        "regions": {s.volume.name: _region(s) for s in prepared.sources},
        "raw_shape_vox": recipe.shapes.raw_vox,
        "output_shape_vox": recipe.shapes.output_vox,
        "voxel_size_nm": recipe.targets.voxel_size_nm,
        "sigma_nm": recipe.targets.sigma_nm,
        "max_iteration": recipe.schedules.max_iteration,
        "max_minutes": recipe.schedules.max_minutes,
        "done_iterations": max(bundle_iterations(prepared.folder / "checkpoints"), default=0),
        "device": recipe.device,
        "workers": recipe.num_workers,
        "processes": recipe.step.effective_batch // recipe.step.accumulate,
        PATCHES_PER_STEP: recipe.step.effective_batch,
        "multiply_adds": recipe.step.effective_batch * multiply_adds(recipe.unet, recipe.shapes.network_input_vox),
    }


def describe_network(prepared: Prepared, lsd: Bundle | None) -> None:
    """Write the bundle that a training would write, without weights, a best.json for it, and a manifest."""
    layout, recipe = prepared.experiment.layout, prepared.recipe
    weights = f"{PLANNED}{prepared.key}"
    bundle = make_bundle(
        recipe, recipe.schedules.max_iteration or 0, prepared.key, None, lsd.weights_sha256 if lsd else None
    ).model_copy(update={"weights_sha256": weights})
    folder = bundle_folder(layout.checkpoints(recipe.stage), bundle.iteration)
    folder.mkdir(parents=True)
    write_json(folder / BUNDLE_JSON, bundle.model_dump(mode="json"))
    write_best(layout.best_checkpoint(recipe.stage), BestCheckpoint(iteration=bundle.iteration, weights_sha256=weights))
    Manifest(
        writer=Writer.of(recipe.stage),
        key=prepared.key,
        config=prepared.config.recorded(),
        inputs=prepared.inputs,
        outputs={},
        identity=hash_of({"key": prepared.key, "weights": weights}),
    ).write(layout)


def _region(source: Source) -> dict[str, Any]:
    """The region of a volume with labels, in voxels of its raw, and how many sections at its end in z are held out."""
    labels = source.volume.labels
    return {
        "raw_shape_vox": source.volume.raw.shape_vox,
        "labels_begin_vox": labels.begin_vox,
        "labels_shape_vox": labels.shape_vox,
        "held_out_sections": source.validation.shape_vox[0] if source.validation else 0,
    }


def training_status(experiment: Experiment, stage: str) -> dict[str, Any]:
    """The status of a training so far."""
    done = bundle_iterations(experiment.layout.checkpoints(stage))
    facts: dict[str, Any] = {"stage": stage, "iterations": done, "finished": False}
    try:
        facts["best"] = read_best(experiment.layout.best_checkpoint(stage)).model_dump()
        manifest = read_manifest(experiment.layout, stage)
    except MissingInput:
        return facts
    return {**facts, "finished": True, **manifest.facts}


def verify_training(experiment: Experiment, stage: str) -> dict[str, Any]:
    """Load the best bundle of a finished training. Its weights must match its description and best.json.

    Raises MissingInput (66) if the training has not finished, BadData (65) if they do not match.
    """
    from lsdflow_network.bundle import load_bundle

    layout = experiment.layout
    manifest = read_manifest(layout, stage)
    best = read_best(layout.best_checkpoint(stage))
    bundle, _ = load_bundle(bundle_folder(layout.checkpoints(stage), best.iteration))
    if bundle.weights_sha256 != best.weights_sha256:
        raise BadData(
            "the best checkpoint is not the one that was chosen",
            where=layout.best_checkpoint(stage),
            wanted=best.weights_sha256[:12],
            found=bundle.weights_sha256[:12],
            fix=f"run {stage} again",
        )
    return {"iteration": best.iteration, "identity": manifest.identity, "verified": True}


def lsd_bundle_folder(experiment: Experiment, wanted: str | int) -> Path:
    """Folder of the LSD bundle for an affinity training. Raises MissingInput if train-lsd has no best checkpoint."""
    layout = experiment.layout
    if wanted == "best":
        wanted = read_best(layout.best_checkpoint("train-lsd")).iteration
    return bundle_folder(layout.checkpoints("train-lsd"), int(wanted))


def _volumes(
    experiment: Experiment, config: TrainingConfig, probabilities: Mapping[str, float]
) -> Sequence[TrainingVolume]:
    return chosen_volumes(experiment.layout, config, tuple(probabilities))
