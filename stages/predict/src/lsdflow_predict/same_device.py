"""All blocks of a result are computed on one kind of device: the first worker records its own, the others must match.

The low bits of a prediction depend on the device: GPUs and CPUs, and different GPUs, add numbers in different orders,
and precision = "auto" means fp16 on GPUs and float32 on CPUs. The record is stored with the arrays of the result, so it
also applies to a run that is resumed or repaired on another machine.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from lsdflow_contract.errors import ContractMismatch
from lsdflow_contract.files import read_json

RECORD = "device.json"


def require_same_device(result: Path, precision: str, device: str) -> None:
    """Record device and precision of the first worker of a result, or compare with the record.

    result: the folder of the result; without it (a measurement) nothing is recorded.
    Raises ContractMismatch (76) if the result was begun on another kind of device or at another precision.
    """
    if not result.is_dir():
        return
    mine = device_record(precision, device)
    _create(result / RECORD, mine)
    theirs = read_json(result / RECORD)
    compared = ("device", "precision")
    if any(theirs[name] != mine[name] for name in compared):
        raise ContractMismatch(
            "this result was begun on another kind of device, whose low bits differ",
            where=result,
            wanted=", ".join(theirs[name] for name in compared),
            found=", ".join(mine[name] for name in compared),
            fix="run the rest there (compute.device; on a cluster: a partition with one kind of GPU), remove this "
            "folder to begin again, or set predict.allow_mixed_devices = true",
        )


def device_record(precision: str, device: str) -> dict[str, Any]:
    """The kind of a torch device, the precision, and the versions that they run with."""
    import torch

    where = torch.device(device)
    name = torch.cuda.get_device_name(where) if where.type == "cuda" else where.type
    return {"device": name, "precision": precision, "torch": torch.__version__, "cuda": torch.version.cuda or ""}


def _create(path: Path, record: dict[str, Any]) -> None:
    """Write the record whole, unless another worker was first."""
    with NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}", encoding="utf-8") as file:
        file.write(json.dumps(record, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(file.name, path)
