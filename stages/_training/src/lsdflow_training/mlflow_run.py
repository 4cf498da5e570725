"""The MLflow run of a training: create or continue it, and write to it.  train/<stage>/mlflow_run.json names it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_contract.files import read_json, write_json
from lsdflow_training.recipe import Recipe

T = TypeVar("T")
# Limits of MLflow's servers for one request, and of older servers for the length of a value.
METRICS_AT_ONCE, PARAMETERS_AT_ONCE, LONGEST_VALUE = 1000, 100, 500


@dataclass(frozen=True)
class Point:
    """Values of one iteration; time_ms since 1970."""

    iteration: int
    time_ms: int
    values: Mapping[str, float]


@dataclass(frozen=True)
class RunFacts:
    """Name, tags and parameters of a run."""

    training_key: str
    name: str
    tags: Mapping[str, str]
    parameters: Mapping[str, str]


class MlflowRun:
    """One run. Raises what MLflow's client raises."""

    def __init__(self, mlflow: Any, where: str, uri: str, folder: Path, facts: RunFacts) -> None:
        self._mlflow = mlflow
        self._client = mlflow.MlflowClient(tracking_uri=uri)
        mine = {"where": where, "training_key": facts.training_key}
        found = self._found(folder / "mlflow_run.json", mine)
        if found is None:
            run = self._client.create_run(self._experiment_id(), run_name=facts.name, tags=dict(facts.tags))
            self.run_id: str = run.info.run_id
            write_json(folder / "mlflow_run.json", {**mine, "run_id": self.run_id})
        else:
            self.run_id = found.info.run_id
            self._client.update_run(self.run_id, status="RUNNING")
        # a killed run may have logged points beyond its last checkpoint, which the resumed run makes again
        self._last = {} if found is None else {name: self._last_iteration(name) for name in found.data.metrics}
        self._write_parameters(facts.parameters, {} if found is None else found.data.params)

    def log(self, points: Sequence[Point]) -> None:
        """Log the values that the run does not have yet."""
        metric = self._mlflow.entities.Metric
        new = [
            metric(name, value, point.time_ms, point.iteration)
            for point in points
            for name, value in point.values.items()
            if point.iteration > self._last.get(name, -1)
        ]
        for some in _parts(new, METRICS_AT_ONCE):
            self._client.log_batch(self.run_id, metrics=some)

    def end(self, status: str, tags: Mapping[str, str]) -> None:
        """Set the status and tags at the end; a later run may continue it."""
        self._tag(tags)
        self._client.set_terminated(self.run_id, status=status)

    def _tag(self, tags: Mapping[str, str]) -> None:
        tag = self._mlflow.entities.RunTag
        self._client.log_batch(self.run_id, tags=[tag(name, value[:LONGEST_VALUE]) for name, value in tags.items()])

    def _found(self, path: Path, mine: Mapping[str, str]) -> Any:
        """The run to continue; None if there is none, or if it was deleted."""
        try:
            kept = read_json(path)
        except (MissingInput, BadData):
            return None
        if not isinstance(kept, dict) or any(kept.get(name) != value for name, value in mine.items()):
            return None
        try:
            run = self._client.get_run(str(kept.get("run_id")))
        except self._mlflow.MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise
        return run if run.info.lifecycle_stage == "active" else None

    def _experiment_id(self) -> str:
        """The id of experiment MLFLOW_EXPERIMENT_NAME; several trainings may create it at the same time."""
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "lsdflow")
        found = self._client.get_experiment_by_name(name)
        if found is None:
            try:
                return str(self._client.create_experiment(name))
            except self._mlflow.MlflowException:
                found = self._client.get_experiment_by_name(name)
                if found is None:
                    raise
        return str(found.experiment_id)

    def _last_iteration(self, metric: str) -> int:
        return max((m.step for m in self._client.get_metric_history(self.run_id, metric)), default=-1)

    def _write_parameters(self, wanted: Mapping[str, str], known: Mapping[str, str]) -> None:
        """Write parameters. MLflow never changes the value of a parameter, so a changed one becomes a tag."""
        param = self._mlflow.entities.Param
        new = [param(name, value) for name, value in wanted.items() if name not in known]
        for some in _parts(new, PARAMETERS_AT_ONCE):
            self._client.log_batch(self.run_id, params=some)
        changed = {f"changed.{name}": value for name, value in wanted.items() if known.get(name, value) != value}
        if changed:
            self._tag(changed)


def run_facts(recipe: Recipe, training_key: str) -> RunFacts:
    """The facts that are logged for this training."""
    name = f"{recipe.records.experiment} {recipe.stage}".strip()
    tags = {
        "stage": recipe.stage,
        "experiment": recipe.records.experiment,
        "training_key": training_key,
        "contract": CONTRACT_VERSION,
    }
    return RunFacts(training_key, name, tags, parameters(recipe))


def parameters(recipe: Recipe) -> dict[str, str]:
    """The recipe as flat text: "targets.sigma_nm" = "[24, 24, 24]"; without values that are None, and records."""
    everything = {f.name: getattr(recipe, f.name) for f in dataclasses.fields(recipe) if f.name != "records"}
    everything["unet"] = recipe.unet.model_dump(mode="json", exclude_none=True)
    return {name: value[:LONGEST_VALUE] for name, value in _flat("", everything)}


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    elif value is not None:
        yield name, value if isinstance(value, str) else json.dumps(value)


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[begin : begin + size] for begin in range(0, len(items), size))
