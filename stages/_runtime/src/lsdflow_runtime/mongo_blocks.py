"""Done marks in MongoDB: a document per finished block, in the collections of the field.

    blocks_predicted, blocks_extracted, blocks_agglomerated, blocks_segmented, blocks_evaluated
        block_id, read_roi, write_roi ([begin, shape], world units), start, duration   + key, record
    blocks_agglomerated_<merge_function>   the same without the record, as the old scripts look for it
    lsdflow_failed                         the last error of a block that is not done

A document means done, as in the field; our own questions always name the key too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pymongo import ASCENDING, IndexModel

from lsdflow_contract.errors import MissingInput
from lsdflow_runtime.mongo_connection import Document, MongoConnection

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

Places = Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class MongoBlocks:
    """The marks of one piece of work. `places` gives read_roi and write_roi of a block number."""

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
        """What was recorded of every finished block, in one reading."""
        wanted, shown = {"key": self.key}, {"block_id": 1, "record": 1}
        found = self.connection.call(lambda db: list(db[self._collection].find(wanted, shown)))
        return {document["block_id"]: document["record"] for document in found}

    def forget(self) -> None:
        """Remove all marks: what they stand for is no longer there."""
        collections = [self._collection, FAILED, *self._copies()]
        for collection in collections:
            self._delete_all(collection)

    def take_back(self, *numbers: int) -> None:
        """Remove marks of blocks: what they stand for is broken."""
        for collection in [self._collection, *self._copies()]:
            for number in numbers:
                self._delete_one(collection, number)

    def take_back_damaged(self, blocks: int) -> set[int]:
        """Nothing to do: each mark is a document of its own."""
        del blocks
        return set()

    def pack(self, blocks: int, *, all_of_them: bool = False) -> None:
        """Nothing to do: the server keeps many marks in few files."""

    def failed(self) -> set[int]:
        """Numbers of blocks that failed and are not done."""
        return self._numbers(FAILED) - self.done()

    def count_failed(self) -> int:
        """How many blocks have failed and not been done since; a mark that was left behind counts."""
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
        """What was recorded when the block was done."""
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
        find, shown = self._all, {"block_id": 1, "_id": 0}
        return {d["block_id"] for d in self.connection.call(lambda db: list(db[collection].find(find, shown)))}

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
