"""Check the address of MLflow and whether it is installed, before a training begins and without importing it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from urllib.parse import urlsplit

from lsdflow_contract.errors import ConfigError, NotInstalled

LOCAL = "local"


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
        fix='"local" needs no server: the runs lie in train/mlruns',
    )
