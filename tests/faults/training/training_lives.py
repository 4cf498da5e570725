"""A training that is lived in several lives, and what it left, to be compared with an undisturbed one."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from training_death import digest

from lsdflow_contract.checkpoint import RESUME, bundle_folder, bundle_iterations
from lsdflow_contract.errors import StageError
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_contract.manifest import read_manifest
from lsdflow_network.bundle import load_bundle
from lsdflow_training.checkpoints import read_state
from lsdflow_training.testing import micro_experiment

KILLED = -signal.SIGKILL
OPTIONS = {
    "input_shape_vox": [20, 20, 20],
    "predict_input_shape_vox": [20, 20, 20],
    "checkpoint_every": 2,
    "keep_checkpoints": 2,
    "snapshot_every": 3,
    "validation_every": 4,
    "validation_fraction": 0.3,
}


class LifeServer:
    """The process that forks lives."""

    def __init__(self, folder: Path) -> None:
        program = Path(__file__).with_name("training_life_server.py")
        self.errors = (folder / "server.log").open("w")
        self.process = subprocess.Popen(
            [sys.executable, str(program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def live(self, **life: Any) -> int:
        """Fork a life and wait for its end; exit code, -9 if killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(life) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"the server of lives has ended: {Path(self.errors.name).read_text()[-3000:]}"
        return int(json.loads(answer)["code"])

    def close(self) -> None:
        self.process.communicate()
        self.errors.close()


@dataclass
class Training:
    """One experiment with a micro training, and the notes of its lives."""

    server: LifeServer
    root: Path
    options: dict[str, Any]
    stage: str = "train-acrlsd"
    mode: str = "mtlsd"
    toml: Path = field(init=False)

    def __post_init__(self) -> None:
        self.toml = self.root / "experiment.toml"
        if not self.toml.exists():
            micro_experiment(self.root, self.mode, {**OPTIONS, **self.options})

    def copy(self, root: Path) -> Training:
        """The same, in its present state, in another folder."""
        shutil.copytree(self.root, root, symlinks=True)
        return Training(self.server, root, self.options, self.stage, self.mode)

    @property
    def folder(self) -> Path:
        return (self.root / "train" / self.stage).resolve()

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    def live(self, places: bool = False, **death: Any) -> int:
        """Run the stage once."""
        return self.server.live(
            command=[self.stage, "run", "--experiment", str(self.toml)],
            log=str(self.root / "log"),
            steps=str(self.root / "steps"),
            places=str(self.root / "places") if places else None,
            death=death,
        )

    def log(self) -> str:
        return (self.root / "log").read_text()

    def notes(self) -> list[dict[str, Any]]:
        path = self.root / "steps"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def steps(self) -> dict[int, set[tuple[str, str]]]:
        """Iteration -> what was seen there in all lives (losses and weights, exact)."""
        seen: dict[int, set[tuple[str, str]]] = {}
        for note in self.notes():
            if "iteration" in note:
                exact = (json.dumps(note["losses"], sort_keys=True), note["weights"])
                seen.setdefault(note["iteration"], set()).add(exact)
        return seen

    def last(self) -> int:
        """Iteration of the last step of the last life."""
        noted = [note.get("iteration", note.get("resumed")) for note in self.notes()]
        return int(noted[-1]) if noted else 0

    def resumed(self) -> int:
        """Where the last life began."""
        return int([note["resumed"] for note in self.notes() if "resumed" in note][-1])

    def torn(self) -> list[str]:
        """Checkpoints that have a name, but cannot be read."""
        found = []
        folders = sorted(self.checkpoints.iterdir()) if self.checkpoints.exists() else []
        for folder in (f for f in folders if f.name.isdigit()):
            try:
                load_bundle(folder)
                read_state(folder / RESUME)
            except StageError as error:
                found.append(f"{folder.name}: {error}")
        return found

    def left(self) -> dict[str, Any]:
        """All that a finished training left, but for times: to be equal with that of another."""
        iterations = bundle_iterations(self.checkpoints)
        with (self.folder / "loss.csv").open() as file:
            rows = [{**row, "it_per_s": ""} for row in csv.DictReader(file)]
        manifest = read_manifest(ExperimentLayout(self.root), self.stage)
        return {
            "weights": {i: digest(load_bundle(bundle_folder(self.checkpoints, i))[1]) for i in iterations},
            "states": {i: _state(bundle_folder(self.checkpoints, i) / RESUME) for i in iterations},
            "best": json.loads((self.folder / "best.json").read_text()),
            "curve": rows,
            "identity": manifest.identity,
            "files": sorted(
                str(path.relative_to(self.root)) for path in self.folder.rglob("*") if "events.out" not in path.name
            ),
        }


def _state(path: Path) -> str:
    """Digest of optimizer and random state."""
    state = read_state(path)
    tensors = {"rng": state.torch_rng}
    for index, values in state.optimizer["state"].items():
        tensors |= {f"{index} {name}": torch.as_tensor(value) for name, value in values.items()}
    return digest(tensors)
