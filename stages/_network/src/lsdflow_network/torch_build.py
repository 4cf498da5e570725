"""The version and build of torch, and the GPUs on which it can compute."""

from __future__ import annotations

from typing import Any

import torch

from lsdflow_network.devices import cuda_problem, needed_driver


def torch_facts() -> dict[str, Any]:
    """Facts for `<stage> doctor`; a GPU counts only if a test addition on it succeeds."""
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
