"""How much memory a device has left, and where the raw and the LSDs of a block are held: on the GPU if it has room.

Where they are held changes no bit: they are bytes that are copied.
"""

from __future__ import annotations

import torch

from lsdflow_command.machine import memory_limit_bytes

# Of the memory that is free when a worker starts; the rest is for its networks, their tiles and other workers.
_SHARE_FOR_WINDOWS = 0.25


def memory_of_device(device: str) -> int:
    """Memory that a worker on the device shares with others: what is free on the GPU, or the main memory."""
    if not device.startswith("cuda"):
        return memory_limit_bytes()
    free, _ = torch.cuda.mem_get_info(torch.device(device))
    return int(free)


def window_device(device: str, needed_bytes: int) -> str:
    """The device itself if `needed_bytes` are a small part of its free memory, else the main memory."""
    if not device.startswith("cuda"):
        return "cpu"
    free, _ = torch.cuda.mem_get_info(torch.device(device))
    return device if needed_bytes <= _SHARE_FOR_WINDOWS * free else "cpu"
