"""Fixtures for faults of training: one server of lives, undisturbed trainings, and the history of all faults."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parent))


class History:
    """Every fault of this run, as lines of JSON, also in $LSDFLOW_FAULT_HISTORY."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: list[dict[str, Any]] = []

    def add(self, **fault: Any) -> None:
        self.faults.append(fault)
        with self.path.open("a") as file:
            file.write(json.dumps(fault) + "\n")


@pytest.fixture(scope="session")
def release() -> bool:
    """Counts of a release (LSDFLOW_FAULTS=release) instead of those of CI."""
    return os.environ.get("LSDFLOW_FAULTS") == "release"


@pytest.fixture(scope="session")
def fault_seed() -> int:
    """LSDFLOW_FAULT_SEED, or a fixed one; printed, so that a failure can be made again."""
    seed = int(os.environ.get("LSDFLOW_FAULT_SEED", "20"))
    print(f"LSDFLOW_FAULT_SEED={seed}")
    return seed


@pytest.fixture(scope="session")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    """All faults so far."""
    given = os.environ.get("LSDFLOW_FAULT_HISTORY")
    return History(Path(given) if given else tmp_path_factory.mktemp("history") / "training.jsonl")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The process that forks lives of trainings."""
    from training_lives import LifeServer

    server = LifeServer(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture(scope="session")
def undisturbed(server: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """undisturbed(max_iteration, stage, mode) -> the training that nothing happened to; made once each."""
    from training_lives import Training

    made: dict[tuple[Any, ...], Training] = {}

    def make(max_iteration: int, stage: str = "train-acrlsd", mode: str = "mtlsd") -> Training:
        name = (max_iteration, stage, mode)
        if name not in made:
            root = tmp_path_factory.mktemp("undisturbed")
            made[name] = Training(server, root, {"max_iteration": max_iteration, "num_workers": 0}, stage, mode)
            assert made[name].live(places=True) == 0, made[name].log()
        return made[name]

    return make
