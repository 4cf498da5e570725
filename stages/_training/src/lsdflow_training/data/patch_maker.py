"""Who makes the patches: gunpowder on the CPU, or the training device from what gunpowder has drawn (gpu/stream.py)."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from lsdflow_contract.errors import ConfigError

DataPath = Literal["gunpowder", "gpu"]
BEFORE_THE_DEVICE = ("ignore_ids", "sparse_labels")  # work on what is read, whoever makes the patches


def checked_data_path(pipeline: DataPath, lsd_engine: str, targets: Any) -> DataPath:
    """The data path. ConfigError for options of gunpowder's that the device does not do.

    targets: of the recipe; the device knows their published options, which have no default.
    """
    if pipeline == "gunpowder":
        return pipeline
    asked = [f.name for f in dataclasses.fields(targets) if _is_asked_for(targets, f)]
    asked += ["lsd_engine"] if lsd_engine != "lsdflow" else []
    if asked:
        raise ConfigError(
            'pipeline = "gpu" does not do all that this training asks for',
            where="pipeline",
            wanted="these options at their defaults",
            found=", ".join(sorted(asked)),
            fix='use pipeline = "gunpowder"',
        )
    return pipeline


def _is_asked_for(targets: Any, field: dataclasses.Field[Any]) -> bool:
    later = field.default is not dataclasses.MISSING and field.name not in BEFORE_THE_DEVICE
    return bool(later and getattr(targets, field.name) != field.default)
