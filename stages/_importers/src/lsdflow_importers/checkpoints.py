"""Read checkpoints of other programs: of TensorFlow 1 (train_net_checkpoint_<n>) and of gunpowder with torch
(model_checkpoint_<n>).

No code in them is executed: TensorFlow's own reader reads arrays, torch reads with weights_only.
"""

from __future__ import annotations

import importlib
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from lsdflow_contract.errors import BadData, ConfigError, MissingInput, PermissionDenied
from lsdflow_contract.geometry import Vox3
from lsdflow_contract.hashing import hash_of, hash_of_file
from lsdflow_importers import funlib, tf1
from lsdflow_importers.tf1 import require_same_graph
from lsdflow_importers.unet import ReadNetwork, as_bundled
from lsdflow_training.checks import how_to_get_tensorflow

_TENSORFLOW_READER = "lsdflow_tensorflow.v1_checkpoints"
_TF1_PART = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_ITERATION = re.compile(r"_(\d+)(\.ckpt|\.pt|\.pth)?$")
# Keys used by gunpowder's Train and by training frameworks for torch.
_STATE_KEYS = ("model_state_dict", "state_dict")


@dataclass(frozen=True)
class ExternalCheckpoint:
    """A checkpoint that was read: its network, the iteration in its name, and a hash of its files."""

    path: Path
    network: ReadNetwork
    iteration: int | None
    sha256: str


def read_external(path: Path, factors: tuple[Vox3, ...] | None = None) -> ExternalCheckpoint:
    """Read a checkpoint of TensorFlow 1 or torch.

    path: the file of torch, or the common prefix of the files of TensorFlow (or one of these files).
    factors: pooling factors z,y,x, only needed if the upsampling has no weights that show them.
    Raises MissingInput, BadData (damaged, no U-Net of this lineage, code in it), UsageError (factors are needed),
    ConfigError (TensorFlow is needed and not installed).
    """
    if path.is_dir():
        there = sorted({_TF1_PART.sub("", p.name) for p in path.iterdir() if "checkpoint_" in p.name})
        raise MissingInput(
            "this is a folder, not a checkpoint", where=path, wanted="--from FOLDER/NAME", found=", ".join(there)[:500]
        )
    prefix = path.with_name(_TF1_PART.sub("", path.name))
    if prefix != path or any(path.parent.glob(f"{path.name}.data-*")) or path.with_name(f"{path.name}.index").exists():
        network, files = _read_tf1(prefix, factors)
    elif path.is_file():
        network, files = as_bundled(funlib.unet_of(_torch_state(path), path), factors, path), [path]
    else:
        raise MissingInput(
            "there is no such checkpoint",
            where=path,
            wanted="train_net_checkpoint_<iteration> (.index, .data-...) or model_checkpoint_<iteration>",
            fix="--from is the path without .index",
        )
    number = _ITERATION.search(prefix.name)
    return ExternalCheckpoint(prefix, network, int(number[1]) if number else None, _hash_of_files(files))


def _read_tf1(prefix: Path, factors: tuple[Vox3, ...] | None) -> tuple[ReadNetwork, list[Path]]:
    reader = _tensorflow_reader()
    files: list[Path] = reader.checkpoint_files(prefix)
    names = tf1.network_variables(reader.variable_shapes(prefix), prefix)
    values = reader.variable_values(prefix, names)
    network = as_bundled(tf1.unet_of(values, factors, prefix), factors, prefix)
    require_same_graph(reader.graph_nodes(prefix), network.unet, prefix.with_name(prefix.name + ".meta"))
    return network, files


def _tensorflow_reader() -> ModuleType:
    """The only module that reads with TensorFlow; it is in the optional environment."""
    try:
        return importlib.import_module(_TENSORFLOW_READER)
    except ModuleNotFoundError as error:
        raise ConfigError(
            "a checkpoint of TensorFlow can be read only where TensorFlow is installed",
            where=_TENSORFLOW_READER,
            found=error,
            fix=how_to_get_tensorflow(),
        ) from error


def _torch_state(path: Path) -> dict[str, Tensor]:
    """The state dict in a file of torch; with weights_only, no code in it is executed."""
    content: Any
    try:
        _compare_checksums(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except BadData:
        raise
    except PermissionError as error:
        raise PermissionDenied("may not read", where=path) from error
    except Exception as error:  # torch.load fails with many types on damaged files
        code = "eights only load failed" in str(error)
        raise BadData(
            "the checkpoint holds more than weights: reading it could run code, so it is refused"
            if code
            else "the checkpoint is damaged, or no file of torch",
            where=path,
            wanted="a file that torch.load reads with weights_only=True",
            found=_reason(error),
            fix="where it was made: torch.save({'model_state_dict': model.state_dict()}, path)" if code else "",
        ) from error
    if isinstance(content, dict):
        content = next((content[key] for key in _STATE_KEYS if isinstance(content.get(key), dict)), content)
    if not isinstance(content, dict) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise BadData(
            "the file holds no weights of a model",
            where=path,
            wanted=f"a dict with {' or '.join(_STATE_KEYS)}",
            found=sorted(map(str, content))[:8] if isinstance(content, dict) else type(content).__name__,
        )
    return {str(name): value for name, value in content.items()}


def _compare_checksums(path: Path) -> None:
    """Raise BadData for a flipped bit in a file of torch. It is a zip file, whose checksums torch does not compare."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as file:
        damaged = file.testzip()
    if damaged is not None:
        raise BadData("the checkpoint is damaged", where=path, found=f"wrong checksum of {damaged}")


def _reason(error: Exception) -> str:
    """The error in one line, without torch's advice to load the file anyway."""
    text = [line.strip() for line in str(error).splitlines() if "nsupported" in line or "failed" in line.lower()]
    line = next((each for each in text if "nsupported" in each), next(iter(text), ""))
    return f"{type(error).__name__}: {line[:160]}" if line else type(error).__name__


def _hash_of_files(files: list[Path]) -> str:
    if len(files) == 1:
        return hash_of_file(files[0])
    return hash_of([[file.name, hash_of_file(file)] for file in files])
