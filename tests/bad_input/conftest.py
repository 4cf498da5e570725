"""The folder of good experiments, built once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1]))

from bad_input.lab import Laboratory  # found by the path above


@pytest.fixture(scope="session")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Laboratory:
    """Good experiments, to be spoilt."""
    return Laboratory(tmp_path_factory.mktemp("laboratory"))
