"""The peer of predicting on the CPU: the same U-Net in plain eager torch; runs in lsdflow's environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from serving import Work, serve
from torch.nn import functional


def eager_network(folder: Path) -> Work:
    """The U-Net in plain eager torch, float32, channels first, as funlib.learn.torch writes it: raw u8 -> LSDs u8.

    Upsampling reduces the channels, as published; the torch U-Nets of the field keep them and do about twice the work.
    """
    torch.set_num_threads(1)
    weights = load_file(next((folder / "network").rglob("weights.safetensors")))
    raw = np.load(folder / "raw.npy")

    def work() -> Any:
        return grey_levels(weights, scaled(raw)[None]).numpy()

    work()
    return work


def scaled(raw: Any) -> Any:
    """Raw u8 -> float32 in [-1, 1]."""
    return torch.from_numpy(raw.astype(np.float32) / 255 * 2 - 1)


def grey_levels(weights: Mapping[str, Any], inputs: Any) -> Any:
    """(channels, z, y, x) float32 -> (channels, z', y', x') u8, both on the device of the weights."""
    levels = sum(1 for name in weights if name.startswith("up.") and name.endswith("weight"))
    head = next(
        name.removesuffix(".weight") for name in weights if name.startswith("heads.") and name.endswith("weight")
    )

    def passes(name: str, x: Any) -> Any:
        for layer in (f"{name}.convs.0", f"{name}.convs.1"):
            x = functional.relu(functional.conv3d(x, weights[f"{layer}.weight"], weights[f"{layer}.bias"]))
        return x

    def features(x: Any, level: int) -> Any:
        skip = passes(f"down.{level}", x)
        if level == levels:
            return skip
        kernel = weights[f"up.{level}.up.weight"]
        factor = tuple(kernel.shape[2:])
        inner = features(functional.max_pool3d(skip, factor, factor), level + 1)
        bias = weights[f"up.{level}.up.bias"]
        up = functional.relu(functional.conv_transpose3d(inner, kernel, bias, stride=factor))
        begins = [(have - want) // 2 for have, want in zip(skip.shape[2:], up.shape[2:], strict=True)]
        z, y, x_ = (slice(b, b + n) for b, n in zip(begins, up.shape[2:], strict=True))
        return passes(f"merge.{level}", torch.cat([skip[:, :, z, y, x_], up], dim=1))

    with torch.no_grad():
        values = functional.conv3d(features(inputs[None], 0), weights[f"{head}.weight"], weights[f"{head}.bias"])
        return (torch.sigmoid(values)[0] * 255).to(torch.uint8)


if __name__ == "__main__":
    serve({"eager_network": eager_network}, ("torch",))
