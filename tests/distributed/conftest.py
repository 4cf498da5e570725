"""Fixtures for tests of trainings of several processes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gunpowder")
sys.path.append(str(Path(__file__).parent))

from worlds import Training


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Callable[..., Training]]:
    """training("name", mode, option=value, ...) -> a training that has not begun."""
    made: list[Training] = []

    def make(name: str, mode: str = "mtlsd", **options: Any) -> Training:
        (tmp_path / name).mkdir()
        made.append(Training.made(tmp_path / name, mode, **options))
        return made[-1]

    yield make
    for process in [process for one in made for process in one.processes]:
        process.kill()
