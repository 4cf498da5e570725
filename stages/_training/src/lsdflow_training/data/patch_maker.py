"""What makes the patches: gunpowder on the CPU, or the training device with gunpowder's draws (gpu/stream.py)."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from lsdflow_contract.errors import ConfigError

DataPath = Literal["gunpowder", "gpu"]
BEFORE_THE_DEVICE = ("ignore_ids", "sparse_labels")  # applied to the data that is read, before either data path


def checked_data_path(pipeline: DataPath, lsd_engine: str, targets: Any) -> DataPath:
    """The data path. Raises ConfigError for options that only gunpowder supports.

    targets: of the recipe. The device supports their published options, which are the fields without a default.
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
