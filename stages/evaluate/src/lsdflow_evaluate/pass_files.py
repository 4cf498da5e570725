"""Files with what the workers of a pass need beside the volumes; they find them by the key of the pass.

    store/evaluate/<key>/work.json     what decides the blocks of the pass, and the sha256 of the arrays; sealed, and
                                       written last: then all is there
    store/evaluate/<key>/<name>.npy    arrays, mapped by workers: a worker reads the part of its blocks only

The coordinator writes them before workers get blocks, and removes those of passes that are no longer wanted. The
functions take the folder of all of them, store/evaluate.
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
from lsdflow_contract.files import storage_errors, write_atomically
from lsdflow_contract.hashing import hash_of_file
from lsdflow_contract.sealing import read_sealed, require_sha256, write_sealed

PARAMETERS = "work.json"
_ARRAYS, _REPAIR = "arrays_sha256", "run: evaluate run"


@dataclass(frozen=True)
class PassFiles:
    """The files of one pass: its key and parameters; arrays are mapped, not read."""

    folder: Path
    parameters: dict[str, Any]
    sha256: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The key of the pass."""
        return self.folder.name

    def require_whole(self) -> None:
        """BadData (65) if an array is lost or damaged."""
        for name in self.sha256:
            self.array(name)

    def array(self, name: str) -> NDArray[Any]:
        """An array, mapped. BadData (65) if it is lost or damaged."""
        path = self.folder / f"{name}.npy"
        try:
            require_sha256(path, self.sha256.get(name), _REPAIR)
            found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise BadData("a file of the work is lost or damaged", where=path, found=error, fix=_REPAIR) from error
        return found


def write_pass_files(
    root: Path, key: str, parameters: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> PassFiles:
    """Write the files of a pass; those that exist undamaged are not written again."""
    folder = root / key
    with suppress(MissingInput, BadData):
        there = _read(folder)
        there.require_whole()
        return there
    for name, values in arrays.items():
        write_atomically(folder / f"{name}.npy", partial(_save, values))
    sha256 = {name: hash_of_file(folder / f"{name}.npy") for name in arrays}
    write_sealed(folder / PARAMETERS, {**parameters, _ARRAYS: sha256})
    return PassFiles(folder, dict(parameters), sha256)


def _save(values: NDArray[Any], file: BinaryIO) -> None:
    np.save(file, values, allow_pickle=False)


def find_pass_files(root: Path, key: str) -> PassFiles:
    """The files of the pass of a key. ContractMismatch (76) if no coordinator wrote them."""
    folder = root / key
    if not (folder / PARAMETERS).exists():
        raise ContractMismatch(
            "the coordinator processes a pass that this worker does not have",
            where=folder,
            found=f"key {key[:12]}",
            fix="let both run the same image and settings",
        )
    return _read(folder)


def _read(folder: Path) -> PassFiles:
    parameters = read_sealed(folder / PARAMETERS, _REPAIR)
    return PassFiles(folder, parameters, parameters.pop(_ARRAYS, {}))


def keys_of_pass_files(root: Path) -> list[str]:
    """Keys of the passes whose files were all written."""
    return sorted(path.parent.name for path in root.glob(f"*/{PARAMETERS}"))


def drop_pass_files(root: Path, wanted: Collection[str] = ()) -> None:
    """Remove the files of all passes but those of the keys `wanted`. Only for the coordinator."""
    with storage_errors(root):
        for folder in sorted(root.iterdir()) if root.is_dir() else ():
            if folder.name not in wanted:
                shutil.rmtree(folder)
