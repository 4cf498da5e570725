"""The folders of the host that a stage sees in its container: the experiment, its inputs, the file of the store's URI.

Every folder has the same path inside and outside, so that paths in the experiment file are valid in both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from lsdflow_contract.errors import ConfigError, StageError
from lsdflow_contract.experiment import STAGES, Experiment
from lsdflow_contract.files import read_json

URI_FILE_VARIABLE = "MONGO_URI_FILE"
_CONTAINER_SUFFIXES = {".zarr", ".n5"}
_LONGEST_PATH = 4096


@dataclass(frozen=True)
class Mount:
    """A file or folder of the host (`source`) and its path in the container (`target`)."""

    source: Path
    target: Path
    writable: bool = False


def mounts_of(experiment: Experiment, beside: Sequence[Path] = ()) -> list[Mount]:
    """Return the mounts, outer folders first.

    The experiment's folder and those in `beside` are writable; inputs elsewhere that its tables name are read-only.
    Raises ConfigError (78) if a table names the root of the file system.
    """
    root = experiment.path.parent
    found = {folder: Mount(folder, folder, writable=True) for folder in (root, *beside)}
    for path in (*_inputs(experiment), *_secrets(experiment)):
        if path == Path("/"):
            raise ConfigError("an input is the root of the file system", where=experiment.path)
        if not path.is_relative_to(root):
            found.setdefault(path, Mount(path.resolve(), path))
    return sorted(found.values(), key=lambda mount: (len(mount.target.parts), mount.target))


def uri_file_of(experiment: Experiment) -> Path | None:
    """Return the file that holds the URI of a mongo store; None for the files store or if no file is named."""
    if experiment.store.engine != "mongo":
        return None
    named = experiment.store.uri_file or os.environ.get(URI_FILE_VARIABLE)
    return _absolute(experiment.path.parent, named) if named else None


def _inputs(experiment: Experiment) -> Iterator[Path]:
    """Yield volumes, masks, skeletons, bundles: every existing path in a stage's table."""
    root = experiment.path.parent
    for text in _strings([experiment.tables.get(stage, {}) for stage in STAGES]):
        path = _absolute(root, text)
        if _exists(path):
            yield from _with_surroundings(path)


def _with_surroundings(path: Path) -> Iterator[Path]:
    """Yield the whole container of an array (its metadata may be above it), and the container of a JSON region."""
    outermost = [p for p in (path, *path.parents) if p.suffix in _CONTAINER_SUFFIXES]
    yield outermost[-1] if outermost else path
    if path.suffix.lower() != ".json" or not path.is_file():
        return
    try:
        content = read_json(path)
    except StageError:
        return  # the stage reports what is wrong with it
    container = content.get("container") if isinstance(content, dict) else None
    if isinstance(container, str) and _exists(named := _absolute(path.resolve().parent, container)):
        yield named


def _secrets(experiment: Experiment) -> Iterator[Path]:
    """Yield the file of the URI, and the certificates that the URI names."""
    path = uri_file_of(experiment)
    if path is None or not _exists(path):
        return
    yield path
    options = dict(parse_qsl(urlsplit(path.read_text(encoding="utf-8").strip()).query))
    for name in ("tlsCAFile", "tlsCertificateKeyFile"):
        if name in options and _exists(certificate := _absolute(path.parent, options[name])):
            yield certificate


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _strings(part)


def _absolute(folder: Path, text: str) -> Path:
    """Return the absolute path without `..` and with links unresolved, as the stage will open it."""
    return Path(os.path.normpath(folder / text))


def _exists(path: Path) -> bool:
    try:
        return len(str(path)) < _LONGEST_PATH and path.exists()
    except (OSError, ValueError):  # a name that is too long, or a NUL: the text is not a path
        return False
