"""Detects out-of-memory errors of GPU or machine, by type or, if torch has no type for them, by their text."""

from __future__ import annotations

import torch

_TEXTS = ("out of memory", "can't allocate memory", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """True for MemoryError, torch's OutOfMemoryError, and errors of other types with an equivalent message."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(text in str(error).lower() for text in _TEXTS)


def first_line(error: BaseException) -> str:
    """The first line of the message, without the pages of text that torch may add."""
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__
