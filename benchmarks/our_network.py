"""lsdflow's side of predicting on the CPU: one tile through an LSD network, as a worker of predict does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from serving import Work


def network(folder: Path) -> Work:
    """Raw u8 -> LSDs u8, float32."""
    return _network(folder, "float32")


def network_bf16(folder: Path) -> Work:
    """The same in bf16."""
    return _network(folder, "bf16")


def _network(folder: Path, precision: str) -> Work:
    import torch

    from lsdflow_network.inference import load_predictor
    from lsdflow_predict.evaluation import prepare_torch

    prepare_torch()
    bundle = next((folder / "network").rglob("weights.safetensors")).parent
    predictor = load_predictor(bundle, device="cpu", precision=precision)
    raw = torch.from_numpy(np.load(folder / "raw.npy"))

    def work() -> Any:
        return predictor.grey_levels(raw, None, ("lsds",))[0].numpy()

    work()
    return work
