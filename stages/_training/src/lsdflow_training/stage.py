"""TrainStage: a stage that trains a network. train-lsd and train-acrlsd define what; the commands are here."""

from __future__ import annotations

import logging
from abc import abstractmethod
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lsdflow_command.stage import Stage
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
from lsdflow_contract.errors import BadData, MissingInput, StageError, UsageError, problems_of
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import write_json
from lsdflow_contract.hashing import hash_of
from lsdflow_contract.manifest import Manifest, Writer, read_manifest
from lsdflow_network.costs import multiply_adds
from lsdflow_training.checks import training_problems
from lsdflow_training.config import TrainingConfig
from lsdflow_training.data.volumes import Source
from lsdflow_training.measured import measure_training
from lsdflow_training.profiles import PROFILES
from lsdflow_training.run import PATCHES_PER_STEP, Training, how_finished, resolve_training, run_training
from lsdflow_training.settings import make_bundle

if TYPE_CHECKING:
    from lsdflow_training.build import FrozenLsd


LOG = logging.getLogger("lsdflow.training")
# The network to check settings with if the LSD network before it is not trained.
WITHOUT_LSDS: Kind = "affinities"
# Key in the inputs of the manifest: sha256 of the checkpoint's files.
IMPORTED_CHECKPOINT = "imported_checkpoint"


class TrainStage(Stage):
    """A stage that trains one network from the prepared training volumes."""

    config: ClassVar[type[TrainingConfig]]

    @abstractmethod
    def kind(self, experiment: Experiment) -> Kind:
        """The kind of network, which determines what it predicts."""

    def not_needed(self, experiment: Experiment) -> str | None:
        """A text that says why the experiment does not train this network; None if it does."""
        if experiment.tables.get("prepare", {}).get("training") or self.name in experiment.stages:
            return None
        return "[predict] names a trained network, and there are no volumes to train on"

    def lsd_bundle(self, experiment: Experiment) -> Bundle | None:
        """The description of the trained LSD network that this network depends on; None if it depends on none."""
        del experiment
        return None

    def frozen_lsd(self, experiment: Experiment) -> FrozenLsd | None:
        """The same LSD network with its weights."""
        del experiment
        return None

    def resolve(self, experiment: Experiment) -> Training:
        """The training, with all settings resolved. Raises the errors that can be found before it starts."""
        table = experiment.table(self.name, self.config)
        return resolve_training(experiment, table, self.name, self.kind(experiment), self.lsd_bundle(experiment))

    def run(self, experiment: Experiment) -> None:
        """Train. If the network is not needed or was imported, log that and do nothing."""
        reason = self._nothing_to_do(experiment)
        if reason is None:
            reason = self._finished(experiment)
        if reason is not None:
            LOG.info("%s: nothing to do, %s", self.name, reason)
            return
        run_training(self.resolve(experiment), self.frozen_lsd(experiment))

    def _finished(self, experiment: Experiment) -> str | None:
        """A text that says how this training has finished; None if there is something left to do or to repair.

        A training is the same on all devices and in all precisions, and only they need torch, which takes seconds to
        load. So it is looked up as one on CPUs.
        """
        table = {**experiment.tables.get(self.name, {}), "precision": "auto", "fsdp_cpu_offload": False}
        compute = experiment.compute.model_copy(update={"device": "cpu"})
        on_cpu = replace(experiment, compute=compute, tables={**experiment.tables, self.name: table})
        try:
            return how_finished(self.resolve(on_cpu), experiment.table(self.name, self.config).model_dump(mode="json"))
        except (StageError, OSError):
            return None  # the run itself reports what is wrong

    def validate(self, experiment: Experiment) -> list[StageError]:
        """All problems that can be found before a training."""
        if self._nothing_to_do(experiment):
            return []
        table, kind = experiment.table(self.name, self.config), self.kind(experiment)
        try:
            lsd = self.lsd_bundle(experiment)
        except StageError as error:
            return [*training_problems(experiment, table, self.name, WITHOUT_LSDS), error]
        problems = training_problems(experiment, table, self.name, kind, lsd)
        return problems or problems_of([lambda: _warn_of_short(self.resolve(experiment))])

    def plan(self, experiment: Experiment) -> dict[str, Any]:
        """The plan of a run, or why there is nothing to do."""
        reason = self._nothing_to_do(experiment)
        return training_plan(self.resolve(experiment)) if reason is None else {"nothing_to_do": reason}

    def describe(self, experiment: Experiment) -> None:
        """Write the description of the network to be trained to `experiment.descriptions`."""
        if self._nothing_to_do(experiment) is None:
            describe_network(self.resolve(experiment), self.lsd_bundle(experiment))

    def measure(self, experiment: Experiment, folder: Path) -> dict[str, Any]:
        """Speed and memory of some steps, whose files are written to `folder`."""
        reason = self._nothing_to_do(experiment)
        if reason is not None:
            raise UsageError(f"{self.name} has nothing to do: {reason}")
        return measure_training(self.resolve(experiment), folder, self.frozen_lsd(experiment))

    def status(self, experiment: Experiment) -> dict[str, Any]:
        """The status of the training so far."""
        reason = self._nothing_to_do(experiment)
        if reason is not None:
            return {**training_status(experiment, self.name), "nothing_to_do": reason}
        profile, table = PROFILES[experiment.common.profile], experiment.table(self.name, self.config)
        wanted = table.max_iteration or profile.max_iteration[self.kind(experiment)]
        return {"max_iteration": wanted, **training_status(experiment, self.name)}

    def verify(self, experiment: Experiment) -> dict[str, Any]:
        """Load the best bundle of the finished training and check its weights."""
        reason = self.not_needed(experiment)
        return verify_training(experiment, self.name) if reason is None else {"nothing_to_do": reason, "verified": True}

    def _nothing_to_do(self, experiment: Experiment) -> str | None:
        return self.not_needed(experiment) or imported(experiment, self.name)


def _warn_of_short(training: Training) -> None:
    """Warn about a training that ends before its learning rate is reached: what it leaves is noise."""
    schedules = training.settings.schedules
    if schedules.schedule == "one_cycle" and schedules.max_iteration < schedules.warmup_iterations:
        LOG.warning(
            "warning: %s: %d iterations are too few to learn anything, the learning rate alone rises for %d: raise "
            "max_iteration",
            training.settings.stage,
            schedules.max_iteration,
            schedules.warmup_iterations,
        )


def imported(experiment: Experiment, stage: str) -> str | None:
    """A text that says what the network of a stage was imported from; None if it was not imported.

    An imported network is not used without the link train/<stage>: a user removes the link to train a network.
    """
    try:
        manifest = read_manifest(experiment.layout, stage)
    except MissingInput:
        return None
    if IMPORTED_CHECKPOINT not in manifest.inputs or not experiment.layout.train_dir(stage).exists():
        return None
    return f"the network of iteration {manifest.facts.get('iteration')} was imported from {manifest.facts.get('from')}"


def training_plan(training: Training) -> dict[str, Any]:
    """The facts of a run that `plan` reports."""
    settings = training.settings
    return {
        "kind": settings.kind,
        "volumes": {s.volume.name: round(s.probability, 4) for s in training.sources},
        "regions": {s.volume.name: _region(s) for s in training.sources},
        "raw_shape_vox": settings.shapes.raw_vox,
        "output_shape_vox": settings.shapes.output_vox,
        "voxel_size_nm": settings.targets.voxel_size_nm,
        "sigma_nm": settings.targets.sigma_nm,
        "max_iteration": settings.schedules.max_iteration,
        "max_minutes": settings.schedules.max_minutes,
        "done_iterations": max(bundle_iterations(training.folder / "checkpoints"), default=0),
        "device": settings.device,
        "workers": settings.num_workers,
        "processes": settings.step.effective_batch // settings.step.patches,
        PATCHES_PER_STEP: settings.step.effective_batch,
        "multiply_adds": settings.step.effective_batch
        * multiply_adds(settings.unet, settings.shapes.network_input_vox),
    }


def describe_network(training: Training, lsd: Bundle | None) -> None:
    """Write the bundle that a training would write, without weights, a best.json for it, and a manifest."""
    layout, settings = training.experiment.layout, training.settings
    weights = f"{PLANNED}{training.key}"
    bundle = make_bundle(
        settings, settings.schedules.max_iteration or 0, training.key, None, lsd.weights_sha256 if lsd else None
    ).model_copy(update={"weights_sha256": weights})
    folder = bundle_folder(layout.checkpoints(settings.stage), bundle.iteration)
    folder.mkdir(parents=True)
    write_json(folder / BUNDLE_JSON, bundle.model_dump(mode="json"))
    write_best(
        layout.best_checkpoint(settings.stage), BestCheckpoint(iteration=bundle.iteration, weights_sha256=weights)
    )
    Manifest(
        writer=Writer.of(settings.stage),
        key=training.key,
        config=training.config.model_dump(mode="json"),
        inputs=training.inputs,
        outputs={},
        identity=hash_of({"key": training.key, "weights": weights}),
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
