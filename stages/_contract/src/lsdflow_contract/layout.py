"""The experiment folder: the only place where paths of artefacts are joined."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lsdflow_contract.errors import MissingInput
from lsdflow_contract.manifest import read_manifest


@dataclass(frozen=True)
class ExperimentLayout:
    """Paths of every artefact of the experiment whose folder is `root`."""

    root: Path

    @property
    def experiment_toml(self) -> Path:
        """The experiment file."""
        return self.root / "experiment.toml"

    @property
    def schema_json(self) -> Path:
        """The JSON schema of the experiment file, for editors."""
        return self.root / "experiment.schema.json"

    @property
    def plan(self) -> Path:
        """The plan of a run: predicted blocks, storage and time."""
        return self.root / "plan.json"

    @property
    def scaling(self) -> Path:
        """The speed of a training with several numbers of processes."""
        return self.root / "scaling.json"

    @property
    def images_env(self) -> Path:
        """The pinned images."""
        return self.root / "images.env"

    def prepared_volume(self, label: str) -> Path:
        """The container of the volume "target" or "training/NAME" in the manifest of prepare.

        Without a manifest, or if it does not name the volume, a path in the results that prepare never writes. Raises
        BadData (65) if the manifest is damaged, ContractMismatch (76) if it has another contract major.
        """
        try:
            named = read_manifest(self, "prepare").outputs
        except MissingInput:
            named = {}
        return self.root / named[label] if label in named else self.results / "prepare" / f"{label}.zarr"

    def training_volume(self, name: str) -> Path:
        """A prepared training volume (zarr format 2). Raises as prepared_volume."""
        return self.prepared_volume(f"training/{name}")

    @property
    def target_volume(self) -> Path:
        """The prepared volume to segment. Raises as prepared_volume."""
        return self.prepared_volume("target")

    def train_dir(self, stage: str) -> Path:
        """The current training of a stage, a link to its folder in the results (trainings.py)."""
        return self.root / "train" / stage

    def checkpoints(self, stage: str) -> Path:
        """Bundles of a training stage, one folder per iteration."""
        return self.train_dir(stage) / "checkpoints"

    def best_checkpoint(self, stage: str) -> Path:
        """The file that names the bundle the next stage uses."""
        return self.train_dir(stage) / "best.json"

    @property
    def results(self) -> Path:
        """The results of all stages, one folder per pass; they are never overwritten."""
        return self.root / "results"

    def result(self, stage: str, key: str) -> Path:
        """The folder of the pass with this key: its arrays, and its manifest once it has finished."""
        return self.results / stage / key[:8]

    @property
    def luts(self) -> Path:
        """Fragment -> segment tables, one folder per graph."""
        return self.root / "luts"

    @property
    def store(self) -> Path:
        """The files store: done marks and the graph."""
        return self.root / "store"

    @property
    def report(self) -> Path:
        """index.html, scores.json, neuroglancer.json."""
        return self.root / "report"

    def manifest(self, stage: str) -> Path:
        """Identity, inputs and outputs of the current result of a stage."""
        return self.root / "manifests" / f"{stage}.json"

    @property
    def metrics(self) -> Path:
        """The metrics of running stages for Prometheus, one file per process."""
        return self.root / "metrics"

    @property
    def runs(self) -> Path:
        """What ran: a folder for each stage, submissions, and the lock of the command that runs several stages."""
        return self.root / "runs"

    def stage_runs(self, stage: str) -> Path:
        """All runs of a stage: resolved config, logs, and the lock of the one that runs."""
        return self.runs / stage
