"""Fixtures for all tests."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import settings

# No test fails for being slow on a busy machine.
settings.register_profile("lsdflow", deadline=None)
settings.load_profile("lsdflow")

# A script that starts the tests in the background has them ignore Ctrl-C, and so would every command that they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture
def shared_data() -> Path:
    """Folder of the real volumes, which is beside the checkout and is never part of it."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("real volumes (../shared/data) are not on this machine")
    return folder


@pytest.fixture(scope="session")
def device() -> str:
    """Where tests marked gpu compute: $LSDFLOW_TEST_DEVICE, else a GPU if there is one, else the CPU."""
    import torch

    return os.environ.get("LSDFLOW_TEST_DEVICE") or ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def at_a_terminal() -> Iterator[None]:
    """Ctrl-C and a lost terminal are heard, by what is started too, also where tests run under nohup or behind `&`."""
    signals = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in signals.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def mongod_for_tests() -> ModuleType:
    """The module that fetches and starts a real mongod (tests/mongod); fails, never skips, if it cannot be had."""
    folder = str(REPOSITORY / "tests" / "mongod")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module("mongod_for_tests")


@pytest.fixture(scope="session")
def mongod(mongod_for_tests: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A running mongod that asks for passwords."""
    with mongod_for_tests.running_mongod(tmp_path_factory.mktemp("mongod")) as server:
        yield server
