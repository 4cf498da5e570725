"""A block is read back from disk and compared before it counts as written (compute.verify_fraction of the blocks)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lsdflow_contract.errors import StorageFailure


@dataclass(frozen=True)
class ReadBack:
    """Every so many-th block of a level is read back; 1: all."""

    every: int = 1

    @classmethod
    def of_fraction(cls, fraction: float) -> ReadBack:
        """Spread evenly, as `verify` of the stages has it."""
        return cls(max(1, round(1 / fraction)))

    def require(self, number: int, values: npt.NDArray[Any], read: Callable[[], npt.NDArray[Any]], where: str) -> None:
        """StorageFailure (74) if the block of this number is among them, and `read` gives other bits than `values`."""
        if number % self.every:
            return
        found = read()
        if found.dtype != values.dtype or not np.array_equal(_bits(found), _bits(values)):
            raise StorageFailure(
                "what was read back is not what was written",
                where=where,
                fix="the storage loses or changes data: run the same command again, on other storage if it stays so",
            )


def _bits(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Bits, not numbers: nan is itself, and 0 is not -0."""
    return values.view(f"u{values.dtype.itemsize}")
