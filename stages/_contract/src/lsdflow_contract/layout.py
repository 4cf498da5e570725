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
        """What the experiment file may hold, for editors."""
        return self.root / "experiment.schema.json"

    @property
    def plan(self) -> Path:
        """What a run was predicted to take."""
        return self.root / "plan.json"

    @property
    def images_env(self) -> Path:
        """The pinned images."""
        return self.root / "images.env"

    @property
    def data(self) -> Path:
        """Where contract 1 kept the prepared volumes."""
        return self.root / "data"

    def prepared_volume(self, label: str) -> Path:
        """The container of the volume "target" or "training/NAME", as the manifest of prepare names it.

        Without such a manifest, or if it does not name the volume: where contract 1 kept it. Raises BadData (65) if the
        manifest is damaged, ContractMismatch (76) if it is of another contract major.
        """
        try:
            named = read_manifest(self, "prepare").outputs
        except MissingInput:
            named = {}
        return self.root / named[label] if label in named else self.data / f"{label}.zarr"

    def training_volume(self, name: str) -> Path:
        """A prepared training volume (zarr format 2). Raises as prepared_volume."""
        return self.prepared_volume(f"training/{name}")

    @property
    def target_volume(self) -> Path:
        """The prepared volume to segment. Raises as prepared_volume."""
        return self.prepared_volume("target")

    def train_dir(self, stage: str) -> Path:
        """The current training of a stage, which is a link to its folder in the results: trainings.py."""
        return self.root / "train" / stage

    def checkpoints(self, stage: str) -> Path:
        """Bundles of a training stage, one folder an iteration."""
        return self.train_dir(stage) / "checkpoints"

    def best_checkpoint(self, stage: str) -> Path:
        """The file that names the bundle the next stage uses."""
        return self.train_dir(stage) / "best.json"

    @property
    def results(self) -> Path:
        """What the stages make: a folder for each work, never overwritten."""
        return self.root / "results"

    def result(self, stage: str, key: str) -> Path:
        """The folder of the work that is named by `key`: its arrays, and its manifest when it has finished."""
        return self.results / stage / key[:8]

    def results_lock(self, stage: str) -> Path:
        """The file that a stage without blocks locks while it writes results."""
        return self.results / stage / f".{stage}.lock"

    @property
    def lsd_error(self) -> Path:
        """Where contracts before 2.1 kept volumes/lsd_error."""
        return self.root / "lsd_error.zarr"

    @property
    def luts(self) -> Path:
        """Fragment -> segment tables, a folder for each graph."""
        return self.root / "luts"

    @property
    def store(self) -> Path:
        """The files store: blocks and graph."""
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

    def stage_runs(self, stage: str) -> Path:
        """All runs of a stage: resolved config, logs."""
        return self.root / "runs" / stage
