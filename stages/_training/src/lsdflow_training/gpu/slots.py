"""Memory that a process and its workers share, to hand over crops without a pipe.

Each worker writes to its own slots in turn.  At a time, it may write one slot while `ahead` more wait in its queue and
the training still copies another one. So with ahead + 2 slots none is overwritten too early.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 64


@dataclass(frozen=True)
class Placed:
    """Position of an array in the shared memory."""

    begin: int
    dtype: str
    shape: tuple[int, ...]


class SharedSlots:
    """`count` slots of `size` bytes, made before the process forks; a page uses memory only once it is written."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self.next = 0
        self.memory = mmap.mmap(-1, count * self.size)

    def write(self, arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Placed] | None:
        """Copy the arrays into the next slot; None if they do not fit."""
        begin, placed = self.next * self.size, {}
        end = begin + self.size
        self.next = (self.next + 1) % self.count
        for name, array in arrays.items():
            placed[name] = Placed(begin, array.dtype.str, array.shape)
            if begin + array.nbytes > end:
                return None
            self.view(placed[name])[...] = array
            begin += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return placed

    def view(self, placed: Placed) -> npt.NDArray[Any]:
        """A view of the array, valid until the slot is overwritten."""
        count = math.prod(placed.shape)
        flat = np.frombuffer(self.memory, np.dtype(placed.dtype), count, placed.begin)
        return flat.reshape(placed.shape)
