"""Which framework trains: torch is always there, tensorflow where it is installed.

lsdflow-tensorflow imports this package, so it is looked up by name when it is asked for, not imported from here.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType

from lsdflow_contract.errors import NotInstalled
from lsdflow_contract.software import REVISION_VARIABLE


def tensorflow_problems(backend: str) -> list[NotInstalled]:
    """What speaks against this backend here: nothing, or that it is not installed. Imports nothing large."""
    if backend != "tensorflow":
        return []
    missing = [name for name in ("tensorflow", "lsdflow_tensorflow") if importlib.util.find_spec(name) is None]
    if not missing:
        return []
    return [
        NotInstalled(
            f"this environment has no tensorflow: {' and '.join(missing)} not installed",
            where="backend",
            found='"tensorflow"',
            fix=f'{where_tensorflow_is()}; or backend = "torch" (same networks, same bundle)',
        )
    ]


def lsds_problems(lsd_engine: str) -> list[NotInstalled]:
    """What speaks against this engine of LSD targets here: nothing, or that the package `lsds` is not installed."""
    if lsd_engine != "lsds" or importlib.util.find_spec("lsd") is not None:
        return []
    return [
        NotInstalled(
            "this environment does not have the package lsds",
            where="lsd_engine",
            found='"lsds"',
            fix='pip install lsds there, or lsd_engine = "lsdflow" (the same values, faster)',
        )
    ]


def where_tensorflow_is() -> str:
    """What somebody without tensorflow is fix: in an image (those tell their revision) use its variant."""
    if os.environ.get(REVISION_VARIABLE):
        order = "make image STAGE=... BACKEND=tensorflow TORCH=cpu"
        return f"run the image variant <version>-tensorflow of this stage ({order}), pinned in images.env"
    return "make setup-tensorflow, then call .venv/tensorflow/bin/train-lsd or train-acrlsd"


def tensorflow_backend() -> ModuleType:
    """lsdflow_tensorflow.backend. ConfigError (78) where it is not installed."""
    problems = tensorflow_problems("tensorflow")
    if problems:
        raise problems[0]
    return importlib.import_module("lsdflow_tensorflow.backend")
