"""The configured store of an experiment: done marks of every stage and the region graph, with one protocol.

[store] engine = "files": JSON and Parquet files in the experiment's folder, written by rename; safe on NFS
[store] engine = "mongo": a MongoDB server, with the usual collections and fields of the field

Opening reads nothing and does not connect; an engine connects at its first use, in the process that uses it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment, StoreTable
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.store.done_marks import BlockStore, DoneMarks
from lsdflow_runtime.store.rag_store import FilesRagStore, RagStore


class Store(Protocol):
    """The stored data of an experiment apart from the arrays."""

    @property
    def rag(self) -> RagStore:
        """The region graph."""

    def blocks(self, stage: str, key: str, plan: BlockPlan | None = None) -> BlockStore:
        """The done marks of a pass; `plan` has the ROIs of its blocks."""

    def keys(self, stage: str) -> list[str]:
        """Keys of the passes of a stage, the newest last."""

    def begin(self, stage: str, key: str) -> None:
        """Called before the blocks of a run. OutputConflict (73) if the store belongs to another experiment."""

    def drop_others(self, stage: str, keys: Collection[str]) -> None:
        """Remove rows of other passes of the stage if they share collections with those of `keys` (mongo)."""

    def drop(self, stage: str, key: str) -> None:
        """Remove the marks and the rows of a pass, the marks first."""


@dataclass(frozen=True)
class FilesStore:
    """The embedded engine under `root`; each pass has its own folders."""

    root: Path

    @property
    def rag(self) -> RagStore:
        """The region graph."""
        return FilesRagStore(self.root)

    def blocks(self, stage: str, key: str, plan: BlockPlan | None = None) -> BlockStore:
        """The done marks of a pass."""
        del plan
        return DoneMarks.of(self.root, stage, key)

    def keys(self, stage: str) -> list[str]:
        """Keys of the passes of a stage, the newest last."""
        folder = self.root / "blocks" / stage
        if not folder.is_dir():
            return []
        keys = [key for key in folder.iterdir() if key.is_dir()]
        return [key.name for key in sorted(keys, key=lambda key: key.stat().st_mtime)]

    def begin(self, stage: str, key: str) -> None:
        """Nothing to do, because the folder belongs to the experiment."""

    def drop_others(self, stage: str, keys: Collection[str]) -> None:
        """Nothing to do, because each pass has its own folder."""

    def drop(self, stage: str, key: str) -> None:
        """Remove the marks and the rows of a pass, the marks first."""
        self.blocks(stage, key).remove_all()
        self.rag.drop(key)


# One open store per process and experiment, so that a connection is not shared with a forked process or made twice.
_OPEN: dict[tuple[int, Path, StoreTable], Store] = {}


def open_store(experiment: Experiment) -> Store:
    """The configured store, which is not read or connected yet."""
    if experiment.store.engine == "files":
        return FilesStore(experiment.layout.store)
    from lsdflow_runtime.store.mongo_store import open_mongo

    identity = (os.getpid(), experiment.path, experiment.store)
    if identity not in _OPEN:
        _OPEN[identity] = open_mongo(experiment)
    return _OPEN[identity]


def problems_of_store(experiment: Experiment) -> list[StageError]:
    """All problems of the store; writes nothing. Logs a warning for a server without a password."""
    if experiment.store.engine == "files":
        return []
    from lsdflow_runtime.store.mongo_store import problems_of_mongo

    return problems_of_mongo(experiment)


def store_facts(experiment: Experiment | None) -> dict[str, Any]:
    """Facts of a mongo store, or its first problem with the fix; for files only the engine."""
    if experiment is None or experiment.store.engine == "files":
        return {"engine": "files"}
    from lsdflow_runtime.store.mongo_connection import QUICK, MongoConnection, mongo_address
    from lsdflow_runtime.store.mongo_store import problems_of_mongo

    try:
        address = mongo_address(experiment)
    except StageError as error:
        return {"engine": "mongo", **_problem(error)}
    known: dict[str, Any] = {"engine": "mongo", "address": str(address)}
    if problems := problems_of_mongo(experiment):
        return {**known, **_problem(problems[0])}
    connection = MongoConnection(address, retry_s=0.0, options=QUICK)
    try:
        return {**known, **_server_facts(connection)}
    except StageError as error:
        return {**known, **_problem(error)}
    finally:
        connection.close()


def _server_facts(connection: Any) -> dict[str, Any]:
    from lsdflow_runtime.store.mongo_connection import warn_if_open

    version = connection.call(lambda db: db.command("buildInfo"))["version"]
    started = time.monotonic()
    hello = connection.call(lambda db: db.command("hello"))
    seconds = time.monotonic() - started
    return {
        "version": version,
        "replica_set": hello.get("setName", ""),
        "lets_strangers_in": warn_if_open(connection.address),
        "seconds_to_answer": seconds,
    }


def _problem(error: StageError) -> dict[str, Any]:
    return {"problem": f"{error.what}; {error.found}".rstrip("; "), "fix": error.fix}
