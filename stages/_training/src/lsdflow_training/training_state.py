"""resume.pt: what beside the weights is needed to go on as if nothing had happened.

It is a zip file, as torch writes it.  torch does not compare the checksums in it, so a flipped bit would go on as a
slightly other optimizer state: here they are compared before anything is read.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lsdflow_contract.errors import BadData


@dataclass(frozen=True)
class TrainingState:
    """Optimizer state, torch's random state, minutes trained so far; the hash of bundle.json ("" in old files)."""

    optimizer: dict[str, Any]
    torch_rng: Tensor
    minutes: float
    description_sha256: str = ""


def state_to_bytes(state: TrainingState) -> bytes:
    """Content of resume.pt; only tensors and plain values, so that it can be read with weights_only."""
    buffer = io.BytesIO()
    torch.save(vars(state), buffer)
    return buffer.getvalue()


def read_state(path: Path) -> TrainingState:
    """Read resume.pt (weights_only: nothing in it is executed). BadData if absent or damaged."""
    try:
        file = io.BytesIO(path.read_bytes())
        damaged = zipfile.ZipFile(file).testzip()
        if damaged is not None:
            raise zipfile.BadZipFile(f"{damaged} does not have its checksum")
        file.seek(0)
        content = torch.load(file, map_location="cpu", weights_only=True)
        described = str(content.get("description_sha256", ""))
        return TrainingState(content["optimizer"], content["torch_rng"], float(content["minutes"]), described)
    except Exception as error:  # torch.load fails with many types on damaged files
        raise BadData("the training state is missing or damaged", where=path, found=error) from error
