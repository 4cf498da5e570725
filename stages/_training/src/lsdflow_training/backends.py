"""Find the framework of a training: torch is always installed, tensorflow is optional.

lsdflow-tensorflow imports this package, so it is imported by name when needed, not at the top of this module.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from types import ModuleType

from lsdflow_contract.errors import NotInstalled
from lsdflow_contract.software import REVISION_VARIABLE


def tensorflow_problems(backend: str) -> list[NotInstalled]:
    """An error if this backend is not installed, else []. Imports nothing large."""
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
    """An error if this engine of LSD targets needs the package `lsds` and it is not installed, else []."""
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
    """How to get tensorflow: in an image (images set their revision) use its variant, else set up an environment."""
    if os.environ.get(REVISION_VARIABLE):
        order = "make image STAGE=... BACKEND=tensorflow TORCH=cpu"
        return f"run the image variant <version>-tensorflow of this stage ({order}), pinned in images.env"
    return "make setup-tensorflow, then call .venv/tensorflow/bin/train-lsd or train-acrlsd"


def tensorflow_backend() -> ModuleType:
    """The module lsdflow_tensorflow.trainer. Raises NotInstalled (78) if it is missing."""
    problems = tensorflow_problems("tensorflow")
    if problems:
        raise problems[0]
    return importlib.import_module("lsdflow_tensorflow.trainer")
