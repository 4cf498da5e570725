"""Number format and memory order of a network on a device.

Training: bf16 autocast if the device multiplies bf16 natively (GPU: Ampere and later; CPU: avx512_bf16 or AMX), else
float32; weights, losses and outputs are always float32.

Inference: fp16 on GPUs, float32 on CPUs. All GPUs since 2017 multiply fp16 in their tensor cores, as fast as bf16 or
faster, and its 11 bits are eight times nearer to float32 (measured on an H100: benchmarks/RESULTS_GPU.md). Its range is
smaller; what exceeds it is detected (`Predictor.grey_levels`).
"""

from __future__ import annotations

import functools
import logging
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Literal, cast

import torch

from lsdflow_contract.errors import ConfigError
from lsdflow_network.devices import cpu_computes_bf16, require_precision

LOG = logging.getLogger("lsdflow.network")
Precision = Literal["float32", "tf32", "bf16", "fp16"]


def inference_precision(device_type: str, wanted: str = "auto") -> Precision:
    """auto | float32 | tf32 | bf16 | fp16 -> the precision of inference; ConfigError if the device has none such."""
    if wanted != "auto":
        require_precision(device_type, wanted, "precision")
        return cast(Precision, wanted)
    return "fp16" if device_type == "cuda" else "float32"


def choose_precision(device: torch.device, wanted: str = "auto") -> Literal["float32", "bf16"]:
    """auto | float32 | bf16 -> the precision of a training. ConfigError for bf16 on a CPU without it."""
    if wanted not in ("auto", "float32", "bf16"):
        raise ConfigError("unknown precision", where="precision", wanted="auto, float32 or bf16", found=wanted)
    if wanted != "auto":
        require_precision(device.type, wanted, "precision")
        return cast(Literal["float32", "bf16"], wanted)
    if device.type == "cuda":
        return "bf16" if _gpu_has_bf16(device) else "float32"
    return _fastest_on_the_cpu()


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """Context in which convolutions run at this precision."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def memory_format(device: torch.device) -> torch.memory_format:
    """Channels last, because convolutions are fastest with it on GPUs and CPUs."""
    return torch.channels_last_3d if device.type in ("cuda", "cpu") else torch.contiguous_format


def _gpu_has_bf16(device: torch.device) -> bool:
    """True if this GPU multiplies bf16 natively; by default torch also reports emulated bf16."""
    with nullcontext() if device.index is None else torch.cuda.device(device):
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))


@functools.cache
def _fastest_on_the_cpu() -> Literal["float32", "bf16"]:
    """bf16 if the CPU multiplies it natively and oneDNN may use that; otherwise float32, which is then faster."""
    if _cpu_multiplies_bf16() and cpu_computes_bf16():
        return "bf16"
    LOG.info("this CPU does not multiply bf16 natively: networks run in float32")
    return "float32"


def _cpu_multiplies_bf16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags
