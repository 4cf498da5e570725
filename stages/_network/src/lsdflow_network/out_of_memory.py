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


def memory_of_gpus() -> str:
    """ "; cuda:0: ..." for each GPU that this process uses: who holds its memory. Empty without one."""
    if not torch.cuda.is_available():
        return ""
    found = ""
    for number in range(torch.cuda.device_count()):
        if own := torch.cuda.memory_reserved(number):
            free, total = torch.cuda.mem_get_info(number)
            sizes = [f"{n / 2**30:.1f} GiB" for n in (total, own, max(0, total - free - own), free)]
            found += "; cuda:{}: {} in all, {} held by this process, {} by others, {} free".format(number, *sizes)
    return found
