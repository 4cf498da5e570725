"""resume.pt: everything apart from the weights that is needed to resume a training without a difference.

It is a zip file, as torch writes it.  torch does not compare its checksums, so a flipped bit would give a slightly
different optimizer state. They are compared here before anything is read.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lsdflow_contract.errors import BadData


@dataclass(frozen=True)
class TrainingState:
    """Optimizer state, torch's random state, minutes trained so far; the hash of bundle.json ("" in old files).

    scaler: state of the loss scaling of fp16. weights: those of the last step, if the bundle has their average.
    Both are otherwise empty and not in the file.
    """

    optimizer: dict[str, Any]
    torch_rng: Tensor
    minutes: float
    description_sha256: str = ""
    scaler: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)


_NOT_IF_EMPTY = ("scaler", "weights")


def state_to_bytes(state: TrainingState) -> bytes:
    """Content of resume.pt: only tensors and plain values, so that it can be read with weights_only."""
    buffer = io.BytesIO()
    torch.save({name: value for name, value in vars(state).items() if name not in _NOT_IF_EMPTY or value}, buffer)
    return buffer.getvalue()


def read_state(path: Path) -> TrainingState:
    """Read resume.pt (weights_only: no code in it is executed). Raises BadData if it is absent or damaged."""
    try:
        file = io.BytesIO(path.read_bytes())
        damaged = zipfile.ZipFile(file).testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"{damaged} does not have its checksum")
        file.seek(0)
        content = torch.load(file, map_location="cpu", weights_only=True)
        described = str(content.get("description_sha256", ""))
        minutes, later = float(content["minutes"]), {name: dict(content.get(name, {})) for name in _NOT_IF_EMPTY}
        return TrainingState(content["optimizer"], content["torch_rng"], minutes, described, **later)
    except Exception as error:  # torch.load fails with many types on damaged files
        raise BadData("the training state is missing or damaged", where=path, found=error) from error
