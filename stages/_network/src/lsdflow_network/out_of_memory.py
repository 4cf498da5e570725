"""Out-of-memory errors of GPU or machine: detected by type or, if torch has no type for them, by text; reported."""

from __future__ import annotations

import re
from contextlib import suppress

import torch

from lsdflow_contract.errors import ConfigError

_TEXTS = ("out of memory", "can't allocate memory", "cannot allocate memory")
_OTHERS = (
    "end them (nvidia-smi lists them; workers of this run count too: fewer compute.workers), or choose another GPU: "
    "compute.device"
)


def is_out_of_memory(error: BaseException) -> bool:
    """True for MemoryError, torch's OutOfMemoryError, and errors of other types with an equivalent message."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return any(text in str(error).lower() for text in _TEXTS)


def does_not_fit(what: str, error: BaseException, where: str, fix: str) -> ConfigError:
    """The error that says who holds the memory of the GPUs in question; `fix`: for the case that this process does."""
    # torch may add pages of text.
    found = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
    named = re.findall(r"\bGPU (\d+) has", str(error))
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        own = torch.cuda.memory_reserved(number)
        if not own and str(number) not in named:
            continue
        with suppress(RuntimeError):  # not even its context fits
            free, total = torch.cuda.mem_get_info(number)
            others = max(0, total - free - own)
            sizes = [f"{n / 2**30:.1f} GiB" for n in (total, own, others, free)]
            found += "; cuda:{}: {} in all, {} held by this process, {} by others, {} free".format(number, *sizes)
            if others > own:
                what, fix = f"{what}: other processes hold most of the GPU's", _OTHERS
    return ConfigError(what, where=where, found=found, fix=fix)
