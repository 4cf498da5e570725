"""Checkpoint bundles on disk: a folder with bundle.json and weights.safetensors, complete or absent.

1. All files are written to a temp folder next to the final one, and each is fsynced.
2. The temp folder is renamed to its final name, and the parent folder is fsynced.
3. Reading compares the sha256 of the weights with the one in bundle.json, so damage is always an error.
Only safetensors are read; a pickle (.pt, .ckpt) is refused, because opening it can run code.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from lsdflow_contract.checkpoint import BUNDLE_JSON, WEIGHTS, Bundle, bundle_folder, read_bundle
from lsdflow_contract.errors import BadData, ContractMismatch, MissingInput
from lsdflow_contract.files import TEMPORARY_SUFFIX, fsync_folder, storage_errors

_PICKLE_SUFFIXES = {".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".bin"}


def save_bundle(
    checkpoints: Path,
    bundle: Bundle,
    state_dict: Mapping[str, Tensor],
    extra_files: Mapping[str, bytes] | None = None,
) -> Bundle:
    """Write `checkpoints/<iteration:08d>/` atomically; returns the bundle with its weights_sha256.

    state_dict: the network's weights.  extra_files: name -> content, e.g. resume.pt.  An older folder of the same
    iteration is replaced.  Raises StorageFailure / PermissionDenied.
    """
    weights = save({name: value.detach().cpu().contiguous() for name, value in state_dict.items()})
    complete = bundle.model_copy(update={"weights_sha256": hashlib.sha256(weights).hexdigest()})
    files = {WEIGHTS: weights, **(extra_files or {}), BUNDLE_JSON: (complete.model_dump_json(indent=2) + "\n").encode()}
    final = bundle_folder(checkpoints, bundle.iteration)
    with storage_errors(final):
        checkpoints.mkdir(parents=True, exist_ok=True)
        partial = checkpoints / f".{final.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"
        try:
            _write_folder(partial, files)
            _replace_folder(partial, final)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return complete


def load_bundle(folder: Path, expect_kind: str | None = None) -> tuple[Bundle, dict[str, Tensor]]:
    """Bundle folder -> (description, weights on the CPU).

    Raises MissingInput (absent), BadData (damaged, or a pickle), ContractMismatch (other contract or kind).
    """
    if folder.suffix in _PICKLE_SUFFIXES:
        raise BadData(
            "pickled checkpoints are refused: opening one can run code",
            where=folder,
            wanted=f"a folder with {BUNDLE_JSON} and {WEIGHTS}",
            found=folder.name,
        )
    bundle = read_bundle(folder)
    if expect_kind is not None and bundle.kind != expect_kind:
        raise ContractMismatch(
            "the bundle holds another kind of network", where=folder, wanted=expect_kind, found=bundle.kind
        )
    return bundle, _read_weights(folder / WEIGHTS, bundle.weights_sha256)


def _read_weights(path: Path, wanted_sha256: str) -> dict[str, Tensor]:
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise MissingInput("the bundle has no weights", where=path) from error
    found = hashlib.sha256(content).hexdigest()
    if found != wanted_sha256:
        raise BadData(
            "the weights are damaged or were changed",
            where=path,
            wanted=f"sha256 {wanted_sha256}",
            found=f"sha256 {found}",
            fix="use an older checkpoint, or copy the bundle again",
        )
    try:
        # Networks that come with predict are stored in half precision.
        return {name: value.float() if value.dtype == torch.float16 else value for name, value in load(content).items()}
    except SafetensorError as error:
        raise BadData("the weights are not a safetensors file", where=path, found=error) from error


def _write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    folder.mkdir()
    for name, content in files.items():
        with (folder / name).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    fsync_folder(folder)


def _replace_folder(partial: Path, final: Path) -> None:
    """Rename a folder; an existing one is moved aside first, because a rename does not replace a non-empty folder."""
    if final.exists():
        aside = final.with_name(f".{final.name}.{uuid.uuid4().hex}.old{TEMPORARY_SUFFIX}")
        final.rename(aside)
        partial.rename(final)
        shutil.rmtree(aside, ignore_errors=True)
    else:
        partial.rename(final)
    fsync_folder(final.parent)


def tensors_equal(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    """True if two state dicts hold the same names and bit-identical values."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
