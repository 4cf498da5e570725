"""The folder under test, its template read once, and a folder for fake commands of Azure and Slurm."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "slurm_wrappers" / "azure-cyclecloud"


@pytest.fixture(scope="session")
def azure() -> Path:
    """slurm_wrappers/azure-cyclecloud."""
    return FOLDER


@pytest.fixture(scope="session")
def cyclecloud() -> ModuleType:
    """The reader of templates beside this file."""
    here = str(Path(__file__).parent)
    if here not in sys.path:
        sys.path.append(here)
    return importlib.import_module("cyclecloud_template")


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder for stand-in commands, to be put first on PATH."""
    folder = tmp_path / "commands"
    folder.mkdir()
    return folder
