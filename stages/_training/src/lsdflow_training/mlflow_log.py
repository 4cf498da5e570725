"""Log the curves of a training also to MLflow: one MLflow run per training, however often it is resumed.

A separate thread talks to MLflow, so that no step waits for it.  Any failure gives one warning, and the training
continues without MLflow.  MLflow reads user and password from its own environment variables or file.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from lsdflow_contract import CONTRACT_VERSION
from lsdflow_contract.errors import BadData, ConfigError, Interrupted, MissingInput, NotInstalled
from lsdflow_contract.files import read_json, write_json
from lsdflow_training.settings import TrainingSettings

LOG = logging.getLogger("lsdflow.training")
LOCAL = "local"
T = TypeVar("T")
# Points of this many seconds are sent in one request.
COLLECT_S = 1.0
# How long the end of a training may wait for MLflow: less than the time that SLURM leaves after its signal.
CLOSE_S = 10.0
# Variables that are already set stay.  No jitter: it would use the random numbers of the training.
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_BACKOFF_JITTER": "0",
}


def checked_uri(uri: str | None) -> str | None:
    """The option unchanged. Raises ConfigError, which never shows the URI, if it is invalid or holds a password."""
    if uri is None or uri == LOCAL:
        return uri
    try:
        parts = urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError:  # a port that is not a number, unbalanced brackets
        raise _unusable() from None
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise ConfigError(
            "the address of MLflow is no place for a user, a password or a query: it is logged and kept",
            where="mlflow",
            fix="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or MLFLOW_TRACKING_TOKEN) in the "
            "environment, or write ~/.mlflow/credentials (mode 0600)",
        )
    if not (_is_server(parts.scheme, host) or _is_folder(parts.scheme, parts.netloc, parts.path)):
        raise _unusable()
    return uri


def mlflow_problems(uri: str | None) -> list[NotInstalled]:
    """An error if MLflow is requested and not installed, else []."""
    if uri is None or importlib.util.find_spec("mlflow") is not None:
        return []
    return [
        NotInstalled(
            "this environment has no MLflow",
            where="mlflow",
            wanted="the package mlflow-skinny",
            fix="`make setup-mlflow`, or leave mlflow out: loss.csv and log/ (TensorBoard) are written anyway",
        )
    ]


def tracking_uri(uri: str, training_folder: Path) -> str:
    """The URI for MLflow; "local" is train/mlruns, which all trainings in results/ share."""
    return (training_folder.parents[2] / "train" / "mlruns").resolve().as_uri() if uri == LOCAL else uri


def _is_server(scheme: str, host: str | None) -> bool:
    return scheme in ("http", "https") and bool(host)


def _is_folder(scheme: str, netloc: str, path: str) -> bool:
    """True for an absolute path on this machine: a relative one would depend on the working directory."""
    return scheme == "file" and netloc in ("", "localhost") and path.startswith("/")


def _unusable() -> ConfigError:
    return ConfigError(
        "MLflow cannot be reached this way",
        where="mlflow",
        wanted='"local", http(s)://host:port, or file:///folder',
        fix='"local" needs no server: the runs are stored in train/mlruns',
    )


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
        for some in _chunks(new, METRICS_AT_ONCE):
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
        for some in _chunks(new, PARAMETERS_AT_ONCE):
            self._client.log_batch(self.run_id, params=some)
        changed = {f"changed.{name}": value for name, value in wanted.items() if known.get(name, value) != value}
        if changed:
            self._tag(changed)


def run_facts(settings: TrainingSettings, training_key: str) -> RunFacts:
    """The facts that are logged for this training."""
    name = f"{settings.records.experiment} {settings.stage}".strip()
    tags = {
        "stage": settings.stage,
        "experiment": settings.records.experiment,
        "training_key": training_key,
        "contract": CONTRACT_VERSION,
    }
    return RunFacts(training_key, name, tags, parameters(settings))


def parameters(settings: TrainingSettings) -> dict[str, str]:
    """The settings as flat text: "targets.sigma_nm" = "[24, 24, 24]"; without values that are None, and records."""
    everything = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings) if f.name != "records"}
    everything["unet"] = settings.unet.model_dump(mode="json", exclude_none=True)
    return {name: value[:LONGEST_VALUE] for name, value in _flat("", everything)}


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}" if name else str(key), inner)
    elif value is not None:
        yield name, value if isinstance(value, str) else json.dumps(value)


def _chunks(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[begin : begin + size] for begin in range(0, len(items), size))


@dataclass(frozen=True)
class End:
    """How a run of the training ended. status: of MLflow (FINISHED, KILLED, FAILED)."""

    status: str
    reason: str
    iteration: int


class MlflowLog:
    """Accepts points without delay and sends them in a thread.

    ended: returns what ended the training (None: a signal), and the iteration.
    """

    def __init__(self, uri: str, folder: Path, facts: RunFacts, ended: Callable[[], tuple[str | None, int]]) -> None:
        self._module = import_mlflow()
        self._uri, self._folder, self._facts, self._ended = uri, folder, facts, ended
        self._waiting: queue.SimpleQueue[Point | End] = queue.SimpleQueue()
        self._closing = threading.Event()
        # a daemon: Python does not wait for it when it exits
        self._thread = threading.Thread(target=self._send_all, name="mlflow", daemon=True)

    def add(self, iteration: int, values: Mapping[str, float]) -> None:
        """Add values of an iteration.  The first call starts the thread, because workers are forked before it."""
        if self._thread.ident is None:
            self._thread.start()
        if self._thread.is_alive():
            self._waiting.put(Point(iteration, int(1000 * time.time()), dict(values)))

    def close(self, error: BaseException | None) -> None:
        """Send the remaining points and how the training ended; gives up after CLOSE_S."""
        if self._thread.ident is None:
            return
        self._waiting.put(self._end(error))
        self._closing.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            LOG.warning("MLflow has not taken the last points within %g s; loss.csv has all", CLOSE_S)

    def _end(self, error: BaseException | None) -> End:
        reason, iteration = self._ended()
        if error is not None and not isinstance(error, Interrupted):
            return End("FAILED", f"{type(error).__name__}: {error}".splitlines()[0], iteration)
        if reason is None or error is not None:
            return End("KILLED", "interrupted", iteration)
        return End("FINISHED", reason, iteration)

    def _send_all(self) -> None:
        try:
            run = MlflowRun(self._module, self._uri, tracking_uri(self._uri, self._folder), self._folder, self._facts)
            LOG.info("MLflow: run %s", run.run_id)
            end = None
            while end is None:
                points, end = self._taken()
                run.log(points)
            run.end(end.status, {"ended_by": end.reason, "iteration": str(end.iteration)})
        except Exception as error:  # noqa: BLE001 - no error of MLflow may end a training
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            LOG.warning("MLflow cannot be used, the training continues without it: %s", said)

    def _taken(self) -> tuple[list[Point], End | None]:
        """Wait for a point, then collect more for COLLECT_S."""
        taken = [self._waiting.get()]
        self._closing.wait(COLLECT_S)
        while not self._waiting.empty():
            taken.append(self._waiting.get())
        ends = [item for item in taken if isinstance(item, End)]
        return [item for item in taken if isinstance(item, Point)], ends[0] if ends else None


def open_mlflow(
    settings: TrainingSettings, folder: Path, training_key: str, ended: Callable[[], tuple[str | None, int]]
) -> MlflowLog | None:
    """The log in MLflow that the settings ask for, or None."""
    uri = settings.records.mlflow
    return None if uri is None else MlflowLog(uri, folder, run_facts(settings, training_key), ended)


def import_mlflow() -> Any:
    """Import mlflow without telemetry and without its own log messages: our one warning is enough."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import mlflow

    for noisy in ("mlflow", "urllib3.connectionpool"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    return mlflow
