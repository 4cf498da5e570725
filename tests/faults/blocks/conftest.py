"""One experiment for all rows, and the history of its faults (../judge.py)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))

from harness import SEED, World, make_world  # noqa: E402 - found by the line above


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The experiment, undisturbed; faults hit copies of it."""
    root = tmp_path_factory.mktemp("faults")
    print(f"\nfaults: LSDFLOW_FAULT_SEED={SEED}")
    history = Path(os.environ.get("LSDFLOW_FAULT_HISTORY", root / "history.jsonl"))
    made = make_world(root, history)
    yield made
    made.server.close()
