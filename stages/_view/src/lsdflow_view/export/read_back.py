"""Reads a written block back from disk and compares it (for the fraction compute.verify_fraction of the blocks)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lsdflow_contract.errors import StorageFailure


@dataclass(frozen=True)
class ReadBack:
    """Reads back every n-th block of a level; 1: all."""

    every: int = 1

    @classmethod
    def of_fraction(cls, fraction: float) -> ReadBack:
        """An even sample of this fraction of the blocks, as in `verify` of the stages."""
        return cls(max(1, round(1 / fraction)))

    def require(self, number: int, values: npt.NDArray[Any], read: Callable[[], npt.NDArray[Any]], where: str) -> None:
        """StorageFailure (74) if the block with this number is sampled and `read` returns other bits than `values`."""
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
    """The values as bits, so that nan equals nan, and 0 differs from -0."""
    return values.view(f"u{values.dtype.itemsize}")
