"""Which devices this machine has for networks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

# Of NVIDIA's driver, of that of its small boards, of Windows' for Linux, of AMD's.
_DRIVER_FILES = ("nvidia*", "nvhost*", "nvgpu*", "nvmap", "dxg", "kfd")


def gpu_count(devices: Path = Path("/dev")) -> int:
    """How many GPUs torch can use; without any driver 0 at once: torch takes seconds to load."""
    if "torch" not in sys.modules and not _has_driver(devices, _DRIVER_FILES):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _has_driver(devices: Path, patterns: Sequence[str]) -> bool:
    return any(True for pattern in patterns for _ in devices.glob(pattern))
