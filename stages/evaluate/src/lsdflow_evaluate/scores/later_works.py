"""Works of evaluate after the counting: what their workers need lies in files, so that they find it by the work's key.

    store/evaluate/<key>/work.json     what decides the work's blocks, and the sha256 of the arrays; sealed, and
                                       written last: then all is there
    store/evaluate/<key>/<name>.npy    arrays, mapped by workers: a worker reads the part of its blocks only

The coordinator writes them before workers get blocks, and removes those of works that are no longer wanted.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import storage_errors, write_atomically
from lsdflow_contract.hashing import hash_of_file
from lsdflow_contract.sealing import read_sealed, require_sha256, write_sealed

FOLDER, WORK = "evaluate", "work.json"
_ARRAYS, _REPAIR = "arrays_sha256", "run: evaluate run"


@dataclass(frozen=True)
class LaterWork:
    """What was left of a work: its key and parameters; arrays are mapped, not read."""

    folder: Path
    parameters: dict[str, Any]
    sha256: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The work's key."""
        return self.folder.name

    def require_whole(self) -> None:
        """BadData (65) if an array of the work is lost or damaged."""
        for name in self.sha256:
            self.array(name)

    def array(self, name: str) -> NDArray[Any]:
        """An array of the work, mapped. BadData if it is lost or damaged."""
        path = self.folder / f"{name}.npy"
        try:
            require_sha256(path, self.sha256.get(name), _REPAIR)
            found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise BadData("a file of the work is lost or damaged", where=path, found=error, fix=_REPAIR) from error
        return found


def leave_work(
    experiment: Experiment, key: str, parameters: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> LaterWork:
    """Write the files of a work for its workers; those that are there and undamaged are not written again."""
    folder = experiment.layout.store / FOLDER / key
    with suppress(MissingInput, BadData):
        there = _read_work(folder)
        there.require_whole()
        return there
    for name, values in arrays.items():
        write_atomically(folder / f"{name}.npy", partial(_save, values))
    sha256 = {name: hash_of_file(folder / f"{name}.npy") for name in arrays}
    write_sealed(folder / WORK, {**parameters, _ARRAYS: sha256})
    return LaterWork(folder, dict(parameters), sha256)


def _save(values: NDArray[Any], file: BinaryIO) -> None:
    np.save(file, values, allow_pickle=False)


def find_work(experiment: Experiment, key: str) -> LaterWork:
    """The work of a key. ContractMismatch (76) if no coordinator left it here."""
    folder = experiment.layout.store / FOLDER / key
    if not (folder / WORK).exists():
        raise ContractMismatch(
            "the coordinator processes a pass that this worker does not have",
            where=folder,
            found=f"key {key[:12]}",
            fix="let both run the same image and settings",
        )
    return _read_work(folder)


def _read_work(folder: Path) -> LaterWork:
    parameters = read_sealed(folder / WORK, _REPAIR)
    return LaterWork(folder, parameters, parameters.pop(_ARRAYS, {}))


def kept_works(experiment: Experiment) -> list[str]:
    """Keys of the works that are there whole."""
    root = experiment.layout.store / FOLDER
    return sorted(path.parent.name for path in root.glob(f"*/{WORK}"))


def drop_works(experiment: Experiment, wanted: Collection[str]) -> None:
    """Remove the files of all works but those of the keys `wanted`. Only for the coordinator."""
    root = experiment.layout.store / FOLDER
    with storage_errors(root):
        for folder in sorted(root.iterdir()) if root.is_dir() else ():
            if folder.name not in wanted:
                shutil.rmtree(folder)
