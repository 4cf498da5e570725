"""resume.pt: what beside the weights is needed to go on as if nothing had happened."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lsdflow_contract.errors import BadData


@dataclass(frozen=True)
class TrainingState:
    """Optimizer state, torch's random state, minutes trained so far."""

    optimizer: dict[str, Any]
    torch_rng: Tensor
    minutes: float


def state_to_bytes(state: TrainingState) -> bytes:
    """Content of resume.pt; only tensors and plain values, so that it can be read with weights_only."""
    buffer = io.BytesIO()
    torch.save({"optimizer": state.optimizer, "torch_rng": state.torch_rng, "minutes": state.minutes}, buffer)
    return buffer.getvalue()


def read_state(path: Path) -> TrainingState:
    """Read resume.pt (weights_only: nothing in it is executed). BadData if absent or damaged."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        return TrainingState(content["optimizer"], content["torch_rng"], float(content["minutes"]))
    except Exception as error:  # torch.load fails with many types on damaged files
        raise BadData("the training state is missing or damaged", where=path, found=error) from error
