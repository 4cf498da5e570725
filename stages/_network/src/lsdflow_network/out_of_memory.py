"""Is an error a lack of memory?  Of the GPU or of the machine, by type or, where torch has none for it, by its text."""

from __future__ import annotations

import torch

_TEXTS = ("out of memory", "can't allocate memory", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """True for MemoryError, torch's OutOfMemoryError, and errors of other types that say the same."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(text in str(error).lower() for text in _TEXTS)


def first_line(error: BaseException) -> str:
    """What the error says, without the pages that torch may add."""
    return str(error).splitlines()[0][:300] if str(error) else type(error).__name__
