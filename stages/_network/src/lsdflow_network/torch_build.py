"""Which torch this is, what it was built for, and the GPUs that it can really compute on."""

from __future__ import annotations

from typing import Any

import torch


def torch_facts() -> dict[str, Any]:
    """For `<stage> doctor`; a GPU counts if it adds one and one."""
    names, problem = [], ""
    try:
        for number in range(torch.cuda.device_count()):
            device = torch.device("cuda", number)
            if int((torch.ones(1, device=device) + 1).item()) == 2:
                names.append(torch.cuda.get_device_name(device))
        if torch.version.cuda and not names:
            torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        problem = str(error).strip().splitlines()[0][:300]
    return {
        "torch": f"torch {torch.__version__}",
        "cuda": torch.version.cuda or "",
        "devices": len(names),
        "device_names": names,
        "cuda_problem": problem,
    }
