"""The mongo engine: marks and graph of one experiment in one database, which knows whose it is.

    lsdflow   owner: the experiment's own id and name; works: stage, key, when begun

The id lies in store/owner.json of the experiment: two experiments that name the same database are told apart.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from lsdflow_contract.arrays import RAW
from lsdflow_contract.errors import MissingInput, NotOurs
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import read_json, write_json
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.graph import overlaps_collection
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.done_marks import BlockStore
from lsdflow_runtime.mongo_blocks import MongoBlocks
from lsdflow_runtime.mongo_connection import MongoConnection, mongo_address, warn_if_open
from lsdflow_runtime.mongo_rag import HEADERS, MongoRagStore
from lsdflow_runtime.rag_store import RagStore
from lsdflow_runtime.volumes import open_volume

ADMINISTRATION = "lsdflow"
OWNER = "owner"


def open_mongo(experiment: Experiment) -> MongoStore:
    """The store of the experiment; reads the file with the URI, connects at the first use."""
    return MongoStore(experiment, MongoConnection(mongo_address(experiment), experiment.store.retry_s))


@dataclass(frozen=True)
class MongoStore:
    """The MongoDB engine of one experiment."""

    experiment: Experiment
    connection: MongoConnection
    _grid: list[Geometry | None] = field(default_factory=list)

    @property
    def rag(self) -> RagStore:
        """The region graph."""
        return MongoRagStore(self.connection)

    def blocks(self, stage: str, key: str, plan: BlockPlan | None = None) -> BlockStore:
        """The done marks of a piece of work; with `plan` they say where each block lies in the world."""
        return MongoBlocks(self.connection, stage, key, functools.partial(self._places, plan))

    def works(self, stage: str) -> list[str]:
        """Keys of the works of a stage, the newest last."""
        find = {"kind": "work", "stage": stage}
        found = self.connection.call(lambda db: list(db[ADMINISTRATION].find(find).sort("begun")))
        return [document["key"] for document in found]

    def begin(self, stage: str, key: str) -> None:
        """Claim the database and note the work. NotOurs (73) if the database is another experiment's."""
        self._claim()
        warn_if_open(self.connection.address)
        work = {"_id": f"{stage}/{key}", "kind": "work", "stage": stage, "key": key, "begun": time.time()}
        self.connection.call(lambda db: db[ADMINISTRATION].replace_one({"_id": work["_id"]}, work, upsert=True))

    def drop_others(self, stage: str, keys: Collection[str]) -> None:
        """Remove the graph rows of other works of the stage: tools that know no keys see one graph."""
        for other in self.works(stage):
            if other not in keys and self._has_graph_rows(other):
                self.drop(stage, other)

    def drop(self, stage: str, key: str) -> None:
        """Remove the marks and the rows of a work. NotOurs (73) if the database is another experiment's."""
        self.require_ours()
        # The marks first: a mark without its rows would be believed.
        self.blocks(stage, key).forget()
        self.rag.drop(key)
        self._forget_work(f"{stage}/{key}")

    def require_ours(self) -> None:
        """NotOurs (73) if the database was claimed by another experiment; writes nothing."""
        owner = self.connection.call(lambda db: db[ADMINISTRATION].find_one({"_id": OWNER}))
        if owner is not None and owner["experiment_id"] != self._own_id():
            raise NotOurs(
                "the database holds the graph of another experiment",
                where=self.connection.address,
                wanted=f"experiment {self.experiment.common.name} in {self.experiment.layout.root}",
                found=f"experiment {owner['name']}, claimed {time.strftime('%Y-%m-%d', time.gmtime(owner['begun']))}",
                hint='choose another database ([store] database = "..."), or restore store/owner.json',
            )

    def _claim(self) -> None:
        path = self.experiment.layout.store / "owner.json"
        if not path.exists():
            self.require_ours()
            write_json(path, {"experiment_id": uuid.uuid4().hex})
        claim = {"kind": "owner", "experiment_id": self._own_id(), "name": self.experiment.common.name}
        first = {"$setOnInsert": {**claim, "begun": time.time()}}
        self.connection.call(lambda db: db[ADMINISTRATION].update_one({"_id": OWNER}, first, upsert=True))
        self.require_ours()

    def _own_id(self) -> str:
        try:
            return str(read_json(self.experiment.layout.store / "owner.json")["experiment_id"])
        except MissingInput:
            return ""

    def _forget_work(self, name: str) -> None:
        self.connection.call(lambda db: db[ADMINISTRATION].delete_one({"_id": name}))

    def _has_graph_rows(self, key: str) -> bool:
        """True for rows of the graph. What evaluate counts is no graph: its works stand side by side."""
        graph = {"$not": {"$regex": f"^{overlaps_collection('')}"}}
        find = {"key": key, "collection": graph}
        return bool(self.connection.call(lambda db: db[HEADERS].find_one(find)))

    def _places(self, plan: BlockPlan | None, number: int) -> dict[str, Any]:
        grid = self._target_grid()
        if plan is None or grid is None:
            return {}
        block = plan.block(number)
        return {"read_roi": _roi(grid, block.read), "write_roi": _roi(grid, block.write)}

    def _target_grid(self) -> Geometry | None:
        """The grid all stages count on, read once; none for an experiment without a target."""
        if not self._grid:
            try:
                self._grid.append(open_volume(self.experiment.layout.target_volume, RAW.dataset).geometry)
            except MissingInput:
                self._grid.append(None)
        return self._grid[0]


def _roi(grid: Geometry, box: Box) -> list[list[int | float]]:
    """[begin, shape] in world units; whole numbers as integers, as the field writes them."""
    begin = grid.position_nm(box.begin_vox)
    shape = [n * s for n, s in zip(box.shape_vox, grid.voxel_size_nm, strict=True)]
    return [[int(v) if float(v).is_integer() else v for v in values] for values in (begin, shape)]
