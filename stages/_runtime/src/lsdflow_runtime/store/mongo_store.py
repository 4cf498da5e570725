"""The MongoDB engine: done marks and graph of one experiment in one database, with a record of its owner.

    lsdflow   owner: the experiment's own id and name; a document per pass: stage, key, time of its begin
    blocks_predicted, blocks_extracted, blocks_agglomerated, blocks_segmented, blocks_evaluated
              block_id, read_roi, write_roi ([begin, shape], world units), start, duration   + key, record
    blocks_agglomerated_<merge_function>   the same without the record, for the old scripts
    lsdflow_failed                         the last error of a block that is not done

The experiment's id is stored in its store/owner.json, so that a database of another experiment is detected. A document
in a blocks collection means that the block is done, as is usual in the field; queries here also use the key.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from pymongo import ASCENDING, IndexModel

from lsdflow_contract.errors import MissingInput, OutputConflict, PermissionDenied, StageError
from lsdflow_contract.experiment import Experiment
from lsdflow_contract.files import read_json, write_json
from lsdflow_contract.geometry import Box, Geometry
from lsdflow_contract.graph import overlaps_collection
from lsdflow_contract.layout import ExperimentLayout
from lsdflow_runtime.blocks import BlockPlan
from lsdflow_runtime.io.target import target_grid
from lsdflow_runtime.store.done_marks import BlockStore
from lsdflow_runtime.store.mongo_connection import QUICK, Document, MongoConnection, mongo_address, warn_if_open
from lsdflow_runtime.store.mongo_rag import HEADERS, MongoRagStore
from lsdflow_runtime.store.rag_store import RagStore

ADMINISTRATION = "lsdflow"
OWNER = "owner"
DONE = {
    "predict": "blocks_predicted",
    "watershed": "blocks_extracted",
    "agglomerate": "blocks_agglomerated",
    "segment": "blocks_segmented",
    "evaluate": "blocks_evaluated",
}
FAILED = "lsdflow_failed"
_INDEXES = (
    IndexModel([("key", ASCENDING), ("block_id", ASCENDING)], name="key_block_id"),
    IndexModel([("block_id", ASCENDING)], name="block_id"),
)
NEEDED = ("find", "insert", "update", "remove", "createIndex")

Places = Callable[[int], dict[str, Any]]


def open_mongo(experiment: Experiment) -> MongoStore:
    """The store of the experiment; reads the file with the URI and connects at the first use."""
    name, retry_s = experiment.common.name, experiment.store.retry_s
    return MongoStore(name, experiment.layout, lambda: MongoConnection(mongo_address(experiment), retry_s))


@dataclass(frozen=True)
class MongoStore:
    """The MongoDB engine of one experiment, called `name`."""

    name: str
    layout: ExperimentLayout
    connect: Callable[[], MongoConnection]

    @functools.cached_property
    def connection(self) -> MongoConnection:
        """The connection of this process."""
        return self.connect()

    @property
    def rag(self) -> RagStore:
        """The region graph."""
        return MongoRagStore(self.connection)

    def blocks(self, stage: str, key: str, plan: BlockPlan | None = None) -> BlockStore:
        """The done marks of a pass; with `plan` they contain the ROIs of each block in world units."""
        return MongoBlocks(self.connection, stage, key, functools.partial(self._places, plan))

    def keys(self, stage: str) -> list[str]:
        """Keys of the passes of a stage, the newest last."""
        find = {"kind": "work", "stage": stage}
        found = self.connection.call(lambda db: list(db[ADMINISTRATION].find(find).sort("begun")))
        return [document["key"] for document in found]

    def begin(self, stage: str, key: str) -> None:
        """Record the owner and the pass. OutputConflict (73) if the database belongs to another experiment."""
        self._claim()
        warn_if_open(self.connection.address)
        work = {"_id": f"{stage}/{key}", "kind": "work", "stage": stage, "key": key, "begun": time.time()}
        self.connection.call(lambda db: db[ADMINISTRATION].replace_one({"_id": work["_id"]}, work, upsert=True))

    def drop_others(self, stage: str, keys: Collection[str]) -> None:
        """Remove the graph rows of other passes of the stage, so that programs without keys read one graph."""
        for other in self.keys(stage):
            if other not in keys and self._has_graph_rows(other):
                self.drop(stage, other)

    def drop(self, stage: str, key: str) -> None:
        """Remove marks and rows of a pass. OutputConflict (73) if the database belongs to another experiment."""
        self.require_own_database()
        # The marks first, because a mark without its rows would count as done.
        self.blocks(stage, key).remove_all()
        self.rag.drop(key)
        self._remove_record(f"{stage}/{key}")

    def require_own_database(self) -> None:
        """Raise OutputConflict (73) if the database belongs to another experiment; writes nothing."""
        owner = self.connection.call(lambda db: db[ADMINISTRATION].find_one({"_id": OWNER}))
        if owner is not None and owner["experiment_id"] != self._own_id():
            raise OutputConflict(
                "the database holds the graph of another experiment",
                where=self.connection.address,
                wanted=f"experiment {self.name} in {self.layout.root}",
                found=f"experiment {owner['name']}, claimed {time.strftime('%Y-%m-%d', time.gmtime(owner['begun']))}",
                fix='choose another database ([store] database = "..."), or restore store/owner.json',
            )

    def _claim(self) -> None:
        path = self.layout.store / "owner.json"
        if not path.exists():
            self.require_own_database()
            write_json(path, {"experiment_id": uuid.uuid4().hex})
        claim = {"kind": "owner", "experiment_id": self._own_id(), "name": self.name}
        first = {"$setOnInsert": {**claim, "begun": time.time()}}
        self.connection.call(lambda db: db[ADMINISTRATION].update_one({"_id": OWNER}, first, upsert=True))
        self.require_own_database()

    def _own_id(self) -> str:
        try:
            return str(read_json(self.layout.store / "owner.json")["experiment_id"])
        except MissingInput:
            return ""

    def _remove_record(self, name: str) -> None:
        self.connection.call(lambda db: db[ADMINISTRATION].delete_one({"_id": name}))

    def _has_graph_rows(self, key: str) -> bool:
        """True if the pass has rows of the graph. Overlaps of evaluate do not count: several passes may coexist."""
        graph = {"$not": {"$regex": f"^{overlaps_collection('')}"}}
        find = {"key": key, "collection": graph}
        return bool(self.connection.call(lambda db: db[HEADERS].find_one(find)))

    def _places(self, plan: BlockPlan | None, number: int) -> dict[str, Any]:
        if plan is None or self._target_grid is None:
            return {}
        block = plan.block(number)
        return {"read_roi": _roi(self._target_grid, block.read), "write_roi": _roi(self._target_grid, block.write)}

    @functools.cached_property
    def _target_grid(self) -> Geometry | None:
        """The voxel grid of all stages, read once; None for an experiment without a target."""
        try:
            return target_grid(self.layout)
        except MissingInput:
            return None


def _roi(grid: Geometry, box: Box) -> list[list[int | float]]:
    """[begin, shape] in world units, with whole numbers as integers as is usual in the field."""
    begin = grid.position_nm(box.begin_vox)
    shape = [n * s for n, s in zip(box.shape_vox, grid.voxel_size_nm, strict=True)]
    return [[int(v) if float(v).is_integer() else v for v in values] for values in (begin, shape)]


@dataclass(frozen=True)
class MongoBlocks:
    """The marks of one pass. `places` returns read_roi and write_roi of a block number."""

    connection: MongoConnection
    stage: str
    key: str
    places: Places

    @property
    def where(self) -> str:
        """Where the marks are, for messages."""
        return f"{self.connection.address}.{self._collection}"

    def done(self) -> set[int]:
        """Numbers of the finished blocks."""
        return self._numbers(self._collection)

    def count_done(self) -> int:
        """How many blocks are finished."""
        return self.connection.call(lambda db: db[self._collection].count_documents({"key": self.key}))

    def is_done(self, number: int) -> bool:
        """True if the block is finished."""
        wanted = {"_id": self._id(number)}
        return self.connection.call(lambda db: db[self._collection].find_one(wanted, {"_id": 1})) is not None

    def records(self) -> dict[int, dict[str, Any]]:
        """The records of all finished blocks, read at once."""
        wanted, fields = {"key": self.key}, {"block_id": 1, "record": 1}
        found = self.connection.call(lambda db: list(db[self._collection].find(wanted, fields)))
        return {document["block_id"]: document["record"] for document in found}

    def remove_all(self) -> None:
        """Remove all marks, because the data of these blocks is no longer there."""
        collections = [self._collection, FAILED, *self._copies()]
        for collection in collections:
            self._delete_all(collection)

    def remove(self, *numbers: int) -> None:
        """Remove marks of blocks whose data is damaged."""
        for collection in [self._collection, *self._copies()]:
            for number in numbers:
                self._delete_one(collection, number)

    def remove_damaged(self, blocks: int) -> set[int]:
        """Nothing to remove, because each mark is a separate document; returns an empty set."""
        del blocks
        return set()

    def pack(self, blocks: int, *, all_of_them: bool = False) -> None:
        """Nothing to do, because the server stores many marks in few files."""

    def failed(self) -> set[int]:
        """Numbers of blocks that failed and are not done."""
        return self._numbers(FAILED) - self.done()

    def count_failed(self) -> int:
        """How many blocks have failed and are not done; an obsolete mark of a failure also counts."""
        return self.connection.call(lambda db: db[FAILED].count_documents(self._all))

    def mark_done(self, number: int, record: dict[str, Any]) -> None:
        """Record a finished block; the last step of its commit."""
        mark = {
            "block_id": number,
            **self.places(number),
            "start": record.get("finished", 0.0) - record.get("seconds", 0.0),
            "duration": record.get("seconds", 0.0),
            "key": self.key,
        }
        for rows in sorted(record.get("checksums", {})):
            if self.stage == "agglomerate" and rows.startswith("edges_"):
                self._put(f"{self._collection}_{rows.removeprefix('edges_')}", number, mark)
        self._put(self._collection, number, {**mark, "record": record})
        self.connection.call(lambda db: db[FAILED].delete_one({"_id": self._id(number)}))

    def mark_failed(self, number: int, record: dict[str, Any]) -> None:
        """Record why a block failed."""
        document = {"stage": self.stage, "key": self.key, "block_id": number, "record": record}
        self._put(FAILED, number, document)

    def record(self, number: int) -> dict[str, Any]:
        """The record of a finished block."""
        return self._record(self._collection, number)

    def failure(self, number: int) -> dict[str, Any]:
        """Why the block failed."""
        return self._record(FAILED, number)

    @property
    def _collection(self) -> str:
        return DONE.get(self.stage, f"blocks_{self.stage}")

    @property
    def _all(self) -> Document:
        return {"key": self.key, "_id": {"$gte": f"{self.stage}/{self.key}/", "$lt": f"{self.stage}/{self.key}0"}}

    def _id(self, number: int) -> str:
        return f"{self.stage}/{self.key}/{number}"

    def _delete_all(self, collection: str) -> None:
        self.connection.call(lambda db: db[collection].delete_many(self._all))

    def _delete_one(self, collection: str, number: int) -> None:
        self.connection.call(lambda db: db[collection].delete_one({"_id": self._id(number)}))

    def _copies(self) -> list[str]:
        if self.stage != "agglomerate":
            return []
        names = self.connection.call(lambda db: db.list_collection_names())
        return [name for name in names if name.startswith(f"{self._collection}_")]

    def _numbers(self, collection: str) -> set[int]:
        find, fields = self._all, {"block_id": 1, "_id": 0}
        return {d["block_id"] for d in self.connection.call(lambda db: list(db[collection].find(find, fields)))}

    def _put(self, collection: str, number: int, document: Document) -> None:
        if collection not in self.connection.prepared:
            self.connection.call(lambda db: db[collection].create_indexes(list(_INDEXES)))
            self.connection.prepared.add(collection)
        find = {"_id": self._id(number)}
        self.connection.call(lambda db: db[collection].replace_one(find, {**find, **document}, upsert=True))

    def _record(self, collection: str, number: int) -> dict[str, Any]:
        found = self.connection.call(lambda db: db[collection].find_one({"_id": self._id(number)}))
        if found is None:
            raise MissingInput(f"no record of block {number}", where=f"{self.connection.address}.{collection}")
        return dict(found["record"])


def problems_of_mongo(experiment: Experiment) -> list[StageError]:
    """All problems of the store; tries once, writes nothing. Logs a warning if the server requires no password."""
    try:
        address = mongo_address(experiment)
        connection = MongoConnection(address, retry_s=0.0, options=QUICK)
    except StageError as error:
        return [error]
    problems: list[StageError] = []
    try:
        _require_rights(connection)
        MongoStore(experiment.common.name, experiment.layout, lambda: connection).require_own_database()
        warn_if_open(address)
    except StageError as error:
        problems.append(error)
    finally:
        connection.close()
    return problems


def _require_rights(connection: MongoConnection) -> None:
    """Raise PermissionDenied (77) if the user may not write, StoreUnreachable (69) without a writable server."""
    status = connection.call(lambda db: db.command("connectionStatus", showPrivileges=True))["authInfo"]
    if not status["authenticatedUsers"]:
        # Without a login, either the server requires no password, or this call is refused.
        connection.call(lambda db: db.list_collection_names())
        return
    allowed = _allowed(status["authenticatedUserPrivileges"], connection.address.database)
    missing = [action for action in NEEDED if action not in allowed]
    if missing:
        raise PermissionDenied(
            "the user may not write into the store",
            where=connection.address,
            wanted=", ".join(NEEDED),
            found=f"without {', '.join(missing)}",
            fix="give the user the role readWrite on this database",
        )


def _allowed(privileges: list[Document], database: str) -> set[str]:
    """Actions allowed on every collection of the database."""
    actions: set[str] = set()
    for privilege in privileges:
        where: dict[str, Any] = privilege["resource"]
        everywhere = where.get("anyResource") or (where.get("db") in ("", database) and where.get("collection") == "")
        if everywhere:
            actions |= set(privilege["actions"])
    return actions
