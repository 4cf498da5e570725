"""Fixtures for all tests."""

from __future__ import annotations

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture
def shared_data() -> Path:
    """Folder of the real volumes, which lies beside the checkout and is never part of it."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("real volumes (../shared/data) are not on this machine")
    return folder
