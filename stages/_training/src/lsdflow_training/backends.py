"""Which framework trains: torch is always there, tensorflow where it is installed.

lsdflow-tensorflow imports this package, so it is looked up by name when it is asked for, not imported from here.
"""

from __future__ import annotations

import importlib
import importlib.util
from types import ModuleType

from lsdflow_contract.errors import ConfigError


def tensorflow_problems(backend: str) -> list[ConfigError]:
    """What speaks against this backend here: nothing, or that it is not installed. Imports nothing large."""
    if backend != "tensorflow":
        return []
    missing = [name for name in ("tensorflow", "lsdflow_tensorflow") if importlib.util.find_spec(name) is None]
    if not missing:
        return []
    return [
        ConfigError(
            f"this environment has no tensorflow: {' and '.join(missing)} not installed",
            where="backend",
            found='"tensorflow"',
            hint='backend = "torch" (same networks, same bundle), or `make setup-tensorflow` and .venv/tensorflow/bin',
        )
    ]


def tensorflow_backend() -> ModuleType:
    """lsdflow_tensorflow.backend. ConfigError (78) where it is not installed."""
    problems = tensorflow_problems("tensorflow")
    if problems:
        raise problems[0]
    return importlib.import_module("lsdflow_tensorflow.backend")
