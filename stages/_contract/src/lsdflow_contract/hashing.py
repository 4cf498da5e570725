"""Stable hashes of plain values and arrays, which identify the inputs of a result."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy.typing as npt


def hash_of(value: Any) -> str:
    """sha256 (hex) of a JSON-able value; the order of its keys does not matter."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_of_array(array: npt.NDArray[Any]) -> str:
    """sha256 (hex) of dtype, shape and C-order bytes of an array."""
    import numpy as np  # a third of the time in which a command starts

    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def hash_of_file(path: Path) -> str:
    """sha256 (hex) of a file's bytes, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return digest.hexdigest()
