"""The store that an experiment names: done marks of every stage and the region graph, behind one protocol.

[store] engine = "files": JSON and Parquet files in the experiment's folder, written by rename; safe on NFS
[store] engine = "mongo": a MongoDB server, with the collections and fields of the field

Opening connects to nothing: an engine does that at its first use, in the process that uses it.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lsdflow_contract.errors import StageError
from lsdflow_contract.experiment import Experiment, StoreTable
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.done_marks import BlockStore, DoneMarks
from lsdflow_runtime.rag_store import FilesRagStore, RagStore


class Store(Protocol):
    """All that is kept beside the arrays."""

    @property
    def rag(self) -> RagStore:
        """The region graph."""

    def blocks(self, stage: str, key: str, plan: BlockPlan | None = None) -> BlockStore:
        """The done marks of a piece of work; `plan` tells where its blocks lie."""

    def works(self, stage: str) -> list[str]:
        """Keys of the works of a stage, the newest last."""

    def begin(self, stage: str, key: str) -> None:
        """Called before the blocks of a run. NotOurs (73) if the store is another experiment's."""

    def drop_others(self, stage: str, keys: Collection[str]) -> None:
        """Remove rows of other works of the stage where they lie beside those of `keys` (mongo)."""

    def drop(self, stage: str, key: str) -> None:
        """Remove the marks and the rows of a work, the marks first."""


@dataclass(frozen=True)
class FilesStore:
    """The embedded engine under `root`; works lie in folders of their own and never mix."""

    root: Path

    @property
    def rag(self) -> RagStore:
        """The region graph."""
        return FilesRagStore(self.root)

    def blocks(self, stage: str, key: str, plan: BlockPlan | None = None) -> BlockStore:
        """The done marks of a piece of work."""
        del plan
        return DoneMarks.of(self.root, stage, key)

    def works(self, stage: str) -> list[str]:
        """Keys of the works of a stage, the newest last."""
        folder = self.root / "blocks" / stage
        if not folder.is_dir():
            return []
        keys = [key for key in folder.iterdir() if key.is_dir()]
        return [key.name for key in sorted(keys, key=lambda key: key.stat().st_mtime)]

    def begin(self, stage: str, key: str) -> None:
        """Nothing to do: the folder is the experiment's own."""

    def drop_others(self, stage: str, keys: Collection[str]) -> None:
        """Nothing to do: works lie apart."""

    def drop(self, stage: str, key: str) -> None:
        """Remove the marks and the rows of a work, the marks first."""
        self.blocks(stage, key).forget()
        self.rag.drop(key)


# An open store per process and experiment: a connection is neither shared with a forked process nor made twice.
_OPEN: dict[tuple[int, Path, StoreTable], Store] = {}


def open_store(experiment: Experiment) -> Store:
    """The store that the experiment names. Nothing is read or connected yet, except the file with the URI (mongo)."""
    if experiment.store.engine == "files":
        return FilesStore(experiment.layout.store)
    from lsdflow_runtime.mongo_store import open_mongo

    identity = (os.getpid(), experiment.path, experiment.store)
    if identity not in _OPEN:
        _OPEN[identity] = open_mongo(experiment)
    return _OPEN[identity]


def problems_of_store(experiment: Experiment) -> list[StageError]:
    """All that would keep a run from its store; writes nothing. A server without a password is warned of in the log."""
    if experiment.store.engine == "files":
        return []
    from lsdflow_runtime.mongo_problems import problems_of_mongo

    return problems_of_mongo(experiment)
