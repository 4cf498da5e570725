"""The devices of this machine for networks, and the precision that its CPU supports."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import ConfigError

# Device files of the drivers of NVIDIA, of NVIDIA's small boards, of WSL, and of AMD.
_DRIVER_FILES = ("nvidia*", "nvhost*", "nvgpu*", "nvmap", "dxg", "kfd")


def gpu_count(devices: Path = Path("/dev"), *, framework: str = "torch") -> int:
    """How many GPUs torch or tensorflow can use; 0 without a driver: then neither is loaded (it takes seconds).

    They may differ: the image of tensorflow with CUDA has torch for CPUs only.
    """
    if framework not in sys.modules and not _has_driver(devices, _DRIVER_FILES):
        return 0
    if framework == "tensorflow":
        import tensorflow

        return len(tensorflow.config.list_physical_devices("GPU"))
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def cpu_computes_bf16() -> bool:
    """True if oneDNN convolves bf16 on this CPU (it needs AVX-512 or AVX-NE-CONVERT). Loads torch, which takes seconds.

    The answer is oneDNN's own, which also respects ONEDNN_MAX_CPU_ISA (it disables instructions).
    """
    import torch

    mkldnn: Any = torch.backends.mkldnn
    return bool(mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def require_precision(device: str, precision: str, where: str) -> None:
    """Raise ConfigError if networks on this device cannot run at this precision; `where` names the setting.

    torch is loaded only for bf16 on a CPU.
    """
    if device != "cpu" or precision in ("auto", "float32"):
        return
    if precision in ("fp16", "tf32"):
        wanted, found = "a GPU", "a CPU"
    elif cpu_computes_bf16():
        return
    else:
        import torch

        limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
        wanted = "a GPU, or a CPU with the instructions AVX-512 or AVX-NE-CONVERT"
        found = torch.backends.cpu.get_cpu_capability() + (f", ONEDNN_MAX_CPU_ISA={limit}" if limit else "")
    raise ConfigError(
        f"this CPU cannot compute in {precision}",
        where=where,
        wanted=wanted,
        found=found,
        fix='set the precision to "auto" or "float32"; if jobs run on nodes with GPUs, check the settings on one',
    )


def _has_driver(devices: Path, patterns: Sequence[str]) -> bool:
    return any(True for pattern in patterns for _ in devices.glob(pattern))
