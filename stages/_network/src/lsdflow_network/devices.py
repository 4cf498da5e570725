"""The devices of this machine for networks, and the precision that its CPU supports."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lsdflow_contract.errors import ConfigError

# Device files of the drivers of NVIDIA, of NVIDIA's small boards, of WSL, and of AMD.
_DRIVER_FILES = ("nvidia*", "nvhost*", "nvgpu*", "nvmap", "dxg", "kfd")
_NAMES_OF_GPUS = (*"0123456789", "GPU-", "MIG-")
# By CUDA's major version: later minor versions run with the driver of the first one.
_OLDEST_DRIVERS = {"11": "450", "12": "525", "13": "580"}


def gpu_count(devices: Path = Path("/dev"), *, framework: str = "torch") -> int:
    """How many GPUs torch or tensorflow can use; 0 without a driver: then neither is loaded (it takes seconds).

    They may differ: the image of tensorflow with CUDA has torch for CPUs only. ConfigError if the driver is too old.
    """
    if framework not in sys.modules and not _has_driver(devices, _DRIVER_FILES):
        return 0
    if framework == "tensorflow":
        import tensorflow

        return len(tensorflow.config.list_physical_devices("GPU"))
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the error below says it
        if torch.cuda.is_available():
            return torch.cuda.device_count()
    if "too old" in (problem := cuda_problem()):
        fix = 'update the driver, install with TORCH=cuda12, or compute without the GPU: compute.device = "cpu"'
        raise ConfigError(problem, where="compute.device", fix=fix)
    return 0


def needed_driver() -> str:
    """The oldest driver of NVIDIA for the CUDA that torch is built for, such as "580"; empty if it is for CPUs."""
    import torch

    return _OLDEST_DRIVERS.get((torch.version.cuda or "").partition(".")[0], "")


def cuda_problem() -> str:
    """Why torch, which is built for CUDA, cannot use it, in one sentence; empty if it can."""
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        text = str(error).strip().splitlines()[0][:300]
    else:
        return ""
    if "too old" not in text:
        return text
    needs = f"torch {torch.__version__} for CUDA {torch.version.cuda} needs {needed_driver()} or newer"
    return f"the driver of the GPU is too old: {needs}"


def torch_facts() -> dict[str, Any]:
    """Facts for `<stage> doctor`; a GPU counts only if a test addition on it succeeds."""
    import torch

    names, problem = [], ""
    try:
        for number in range(torch.cuda.device_count()):
            device = torch.device("cuda", number)
            if int((torch.ones(1, device=device) + 1).item()) == 2:
                names.append(torch.cuda.get_device_name(device))
        if torch.version.cuda and not names:
            problem = cuda_problem()
    except RuntimeError as error:
        problem = str(error).strip().splitlines()[0][:300]
    return {
        "torch": f"torch {torch.__version__}",
        "cuda": torch.version.cuda or "",
        "driver": needed_driver(),
        "devices": len(names),
        "device_names": names,
        "cuda_problem": problem,
    }


def device_facts(device: str) -> dict[str, Any]:
    """The device of this process and, of a GPU, its name and the most memory that was reserved so far (MiB)."""
    if device == "cpu":
        return {"device": device}
    import torch

    name = torch.cuda.get_device_name(torch.device(device))
    peak = torch.cuda.max_memory_reserved(torch.device(device))
    return {"device": device, "device_name": name, "device_peak_mib": peak / 2**20}


def require_gpu(wanted: str, count: int) -> None:
    """ConfigError unless the device `wanted` is one of `count` GPUs, or no GPU.

    A job that was given GPUs and can use none is refused, too: it would take days on the CPU.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if wanted == "auto" and count == 0 and given.startswith(_NAMES_OF_GPUS):
        raise ConfigError(
            "this job was given GPUs, but none can be used",
            where="compute.device",
            found=f"CUDA_VISIBLE_DEVICES={given}, and no driver, or a torch for CPUs",
            fix="check nvidia-smi, that torch was installed with TORCH=cuda, and in a container --nv / --gpus; "
            'to compute without: compute.device = "cpu"',
        )
    if wanted.startswith("cuda") and int(wanted.partition(":")[2] or 0) >= count:
        raise ConfigError(
            "there is no such GPU",
            where="compute.device",
            wanted=wanted,
            found=f"{count} GPUs",
            fix='device = "auto" or "cpu"; in a container: was it started with --nv / --gpus?',
        )


def cpu_computes_bf16() -> bool:
    """True if oneDNN convolves bf16 on this CPU (it needs AVX-512 or AVX-NE-CONVERT). Loads torch, which takes seconds.

    The answer is oneDNN's own, which also respects ONEDNN_MAX_CPU_ISA (it disables instructions).
    """
    import torch

    mkldnn: Any = torch.backends.mkldnn
    return bool(mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def require_precision(device: str, precision: str, where: str) -> None:
    """Raise ConfigError if networks on this device cannot run at this precision; `where` names the setting.

    torch is loaded only for bf16 on a CPU.
    """
    if device != "cpu" or precision in ("auto", "float32"):
        return
    if precision in ("fp16", "tf32"):
        wanted, found = "a GPU", "a CPU"
    elif cpu_computes_bf16():
        return
    else:
        import torch

        limit = os.environ.get("ONEDNN_MAX_CPU_ISA")
        wanted = "a GPU, or a CPU with the instructions AVX-512 or AVX-NE-CONVERT"
        found = torch.backends.cpu.get_cpu_capability() + (f", ONEDNN_MAX_CPU_ISA={limit}" if limit else "")
    raise ConfigError(
        f"this CPU cannot compute in {precision}",
        where=where,
        wanted=wanted,
        found=found,
        fix='set the precision to "auto" or "float32"; if jobs run on nodes with GPUs, check the settings on one',
    )


def _has_driver(devices: Path, patterns: Sequence[str]) -> bool:
    return any(True for pattern in patterns for _ in devices.glob(pattern))
