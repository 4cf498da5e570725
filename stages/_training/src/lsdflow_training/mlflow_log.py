"""Log the curves of a training also to MLflow: one MLflow run per training, however often it is resumed.

A thread of our own sends the points: the client's asynchronous logging makes Python wait at its end until a server
that is slow has taken everything, which may be longer than SLURM leaves.  Any failure gives one warning, and the
training continues without MLflow.  MLflow reads user and password from its own environment variables or file.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import BadData, ConfigError, Interrupted, MissingInput, NotInstalled
from lsdflow_contract.files import read_json, write_json
from lsdflow_training.settings import TrainingSettings

LOG = logging.getLogger("lsdflow.training")
LOCAL = "local"
# A server, or an absolute folder of this machine; no user, password or query, because the address is logged and kept.
ADDRESS = re.compile(r"local|https?://(\[[\da-fA-F:.]+\]|[\w.-]+)(:\d+)?(/[^\s@?#]*)?|file://(localhost)?/[^@?#]*")
# Points of this many seconds are sent in one request; the end of a training waits at most CLOSE_S for MLflow.
COLLECT_S, CLOSE_S = 1.0, 10.0
# What MLflow answers for a run that does not exist, or was deleted. After another error there is no new run.
NO_SUCH_RUN = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
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
    if uri is None or ADDRESS.fullmatch(uri):
        return uri
    raise ConfigError(
        "this address of MLflow cannot be used",
        where="mlflow",
        wanted='"local" (train/mlruns), http(s)://host:port or file:///folder, without a user, a password or a query',
        fix="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD (or MLFLOW_TRACKING_TOKEN) in the environment, "
        "or write ~/.mlflow/credentials (mode 0600)",
    )


def mlflow_problems(uri: str | None) -> list[NotInstalled]:
    """An error if MLflow is requested and not installed, else []."""
    if uri is None or importlib.util.find_spec("mlflow") is not None:
        return []
    fix = "`make setup-mlflow`, or leave mlflow out: loss.csv and log/ (TensorBoard) are written anyway"
    return [NotInstalled("this environment has no MLflow", where="mlflow", wanted="mlflow-skinny", fix=fix)]


def tracking_uri(uri: str, training_folder: Path) -> str:
    """The URI for MLflow; "local" is train/mlruns, which all trainings in results/ share."""
    return (training_folder.parents[2] / "train" / "mlruns").resolve().as_uri() if uri == LOCAL else uri


def import_mlflow() -> Any:
    """Import mlflow without telemetry and without its own log messages: our one warning is enough."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import mlflow

    for noisy in ("mlflow", "urllib3.connectionpool"):
        logging.getLogger(noisy).setLevel(logging.ERROR)
    return mlflow


def parameters(settings: TrainingSettings) -> dict[str, str]:
    """The settings as flat text: "targets.sigma_nm" = "(24.0, 24.0, 24.0)"; without records and without None."""
    everything = dataclasses.asdict(settings)
    del everything["records"]
    return dict(_flat({**everything, "unet": settings.unet.model_dump(mode="json")}))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield f"{prefix}{name}", str(value)


class MlflowLog:
    """Accepts points without delay and sends them in a thread, which begins with the first point.

    ended_by: returns what ended the training, None if a signal did.
    """

    def __init__(
        self, settings: TrainingSettings, folder: Path, training_key: str, ended_by: Callable[[], str | None]
    ) -> None:
        self._mlflow = import_mlflow()
        self._settings, self._folder, self._key, self._ended_by = settings, folder, training_key, ended_by
        self._uri = tracking_uri(settings.records.mlflow or LOCAL, folder)
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closing, self._end = threading.Event(), ("", "")
        # a daemon: Python does not wait for it when it exits
        self._thread = threading.Thread(target=self._send_all, name="mlflow", daemon=True)

    def add(self, iteration: int, values: Mapping[str, float]) -> None:
        """Add values of an iteration.  The first call starts the thread, because workers are forked before it."""
        if self._thread.ident is None:
            self._thread.start()
        if self._thread.is_alive():
            now = int(1000 * time.time())
            for name, value in values.items():
                self._waiting.put(self._mlflow.entities.Metric(name, value, now, iteration))

    def close(self, error: BaseException | None) -> None:
        """Send the remaining points and how the training ended; gives up after CLOSE_S."""
        if self._thread.ident is None:
            return
        reason = self._ended_by()
        if error is not None and not isinstance(error, Interrupted):
            self._end = "FAILED", f"{type(error).__name__}: {error}".splitlines()[0]
        elif error is not None or reason is None:
            self._end = "KILLED", "interrupted"
        else:
            self._end = "FINISHED", reason
        self._closing.set()
        self._thread.join(CLOSE_S)
        if self._thread.is_alive():
            LOG.warning("MLflow has not taken the last points within %g s; loss.csv has all", CLOSE_S)

    def _send_all(self) -> None:
        try:
            client = self._mlflow.MlflowClient(tracking_uri=self._uri)
            run_id = self._resumed(client) or self._created(client)
            LOG.info("MLflow: run %s", run_id)
            closing = False
            while not closing:
                closing = self._closing.wait(COLLECT_S)
                metrics = [self._waiting.get() for _ in range(self._waiting.qsize())]
                client.log_batch(run_id, metrics=metrics)
            status, reason = self._end
            client.set_tag(run_id, "ended_by", reason)
            client.set_terminated(run_id, status)
        except Exception as error:  # noqa: BLE001 - no error of MLflow may end a training
            said = f"{type(error).__name__}: {error}".splitlines()[0]
            LOG.warning("MLflow cannot be used, the training continues without it: %s", said)

    def _resumed(self, client: Any) -> str | None:
        """The run of an earlier start, running again; None if there is none, or it was deleted."""
        try:
            kept = read_json(self._folder / "mlflow_run.json")
            if kept["uri"] != self._settings.records.mlflow:
                return None
            client.update_run(kept["run_id"], status="RUNNING")
            return str(kept["run_id"])
        except (MissingInput, BadData, LookupError, TypeError):
            return None
        except self._mlflow.MlflowException as error:
            if error.error_code in NO_SUCH_RUN:
                return None
            raise

    def _created(self, client: Any) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "lsdflow")
        with suppress(self._mlflow.MlflowException):  # it exists, or another training creates it
            client.create_experiment(name)
        experiment_id = client.get_experiment_by_name(name).experiment_id
        stage, title = self._settings.stage, self._settings.records.experiment
        tags = {"stage": stage, "experiment": title, "training_key": self._key}
        run_id = str(client.create_run(experiment_id, run_name=f"{title} {stage}".strip(), tags=tags).info.run_id)
        params = [self._mlflow.entities.Param(*item) for item in parameters(self._settings).items()]
        client.log_batch(run_id, params=params)
        # last: MLflow never changes a parameter, so a resumed training writes none
        write_json(self._folder / "mlflow_run.json", {"uri": self._settings.records.mlflow, "run_id": run_id})
        return run_id
