"""One experiment for all rows, and the history of its faults (../judge.py)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

HERE = Path(__file__).parent
sys.path.append(str(HERE))

from databases import Databases  # noqa: E402 - found by the line above
from harness import SEED, Hang, World, make_world  # noqa: E402


@pytest.fixture(scope="session")
def databases(mongod_for_tests: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    """A MongoDB server of this session's own: it is killed now and then."""
    folder = tmp_path_factory.mktemp("mongod")
    with mongod_for_tests.running_mongod(folder, options=("--journalCommitInterval", "1")) as server:
        yield Databases(server, folder, mongod_for_tests.write_private)


@pytest.fixture(scope="session")
def world(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The experiment, undisturbed; faults hit copies of it."""
    root = tmp_path_factory.mktemp("faults")
    print(f"\nfaults: LSDFLOW_FAULT_SEED={SEED}")
    made = make_world(root, Path(os.environ.get("LSDFLOW_FAULT_HISTORY", root / "history.jsonl")), databases)
    yield made
    made.server.close()


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a failed test has started ends with it."""
    yield
    if "world" in request.fixturenames:
        request.getfixturevalue("world").server.end_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A command that hangs is a line of the history too."""
    if call.excinfo is not None and call.excinfo.errisinstance(Hang):
        item.funcargs["world"].note("hang", test=item.name, what=str(call.excinfo.value)[:500], hung=True)
    return (yield)
