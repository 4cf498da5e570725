"""The graph in MongoDB: the usual collections and fields of the field, with the pass key and the block added.

    nodes                    id, center_z, center_y, center_x (world units), size      + key, block
    edges_<merge_function>   u, v, merge_score (null = never merged), agglomerated     + key, block
    edges_faces              u, v, affinity, count: faces not scored yet, one document per pair;
                             binary, of u8 and of little-endian u64 (lsdflow only)     + key, block
    overlaps_<region>        fragment, truth, size (lsdflow only: counted by evaluate) + key, block
    lsdflow_rows             per collection, key and block: number of rows and their hash (lsdflow only)
    meta                     directed: false

`id`, `u`, `v`, `fragment`, `truth` are the uint64 reinterpreted as int64. `_id` is 28 bytes: hash of the key, block,
row. It is the same each time a block is written, and its order is the order of reading: blocks ascending, rows as
written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from bson.binary import Binary
from pymongo import ASCENDING, IndexModel, ReplaceOne
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import BulkWriteError

from lsdflow_contract.errors import BadData, InternalError, OutputConflict
from lsdflow_contract.graph import (
    FACES,
    NODES_COLLECTION,
    Overlaps,
    RagEdges,
    RagFaces,
    RagNodes,
    RegionFaces,
    edges_collection,
    overlaps_collection,
)
from lsdflow_runtime.store.mongo_connection import Document, MongoConnection, codes_of
from lsdflow_runtime.store.rag_store import checksum_of_edges, checksum_of_nodes, checksum_of_overlaps

# Rows of one request: about 2 MB, so that a retry is cheap and the limits of BSON are far.
BATCH = 10_000
HEADERS = "lsdflow_rows"
DUPLICATE = 11000
NODE_FIELDS = ("id", "center_z", "center_y", "center_x", "size")
EDGE_FIELDS = ("u", "v", "merge_score")
FACE_FIELDS = ("u", "v", "affinity", "count")
OVERLAP_FIELDS = ("fragment", "truth", "size")
# Not unique, unlike `id` and `incident` of the old scripts, because a fragment may have rows of several blocks and
# passes.
_BY_BLOCK = IndexModel([("key", ASCENDING), ("block", ASCENDING)], name="block")
_BY_PLACE = IndexModel([(f"center_{axis}", ASCENDING) for axis in "zyx"], name="position")
_NODE_INDEXES = (_BY_PLACE, IndexModel([("id", ASCENDING)], name="id"), _BY_BLOCK)
_EDGE_INDEXES = (IndexModel([("u", ASCENDING), ("v", ASCENDING)], name="incident"), _BY_BLOCK)
_OVERLAP_INDEXES = (_BY_BLOCK,)

Rows = TypeVar("Rows", RagNodes, RagEdges, Overlaps)


@dataclass(frozen=True)
class MongoRagStore:
    """The graph of one experiment's database."""

    connection: MongoConnection

    def write_nodes(self, key: str, block: int, nodes: RagNodes) -> None:
        """Replace the nodes of a block."""
        center = nodes.center_nm.astype(np.float64)
        columns = (_signed(nodes.id), *(center[:, axis].tolist() for axis in range(3)), _signed(nodes.size_vox))
        documents = _documents(key, block, NODE_FIELDS, columns, {})
        self._replace(NODES_COLLECTION, key, block, documents, checksum_of_nodes(nodes))

    def write_edges(self, key: str, merge_function: str, block: int, edges: RagEdges) -> None:
        """Replace the edges of a block for a merge function; NaN scores become null."""
        if isinstance(edges, RegionFaces):
            raise InternalError("faces of super-blocks are kept in files", where=edges_collection(merge_function))
        if isinstance(edges, RagFaces):
            documents = _documents(key, block, FACE_FIELDS, _face_columns(edges), {"agglomerated": False})
            self._replace(edges_collection(merge_function), key, block, documents, checksum_of_edges(edges))
            return
        scores = [None if s != s else s for s in edges.merge_score.astype(np.float64).tolist()]  # noqa: PLR0124 - NaN
        columns = (_signed(edges.u), _signed(edges.v), scores)
        documents = _documents(key, block, EDGE_FIELDS, columns, {"agglomerated": True})
        self._replace(edges_collection(merge_function), key, block, documents, checksum_of_edges(edges))

    def write_overlaps(self, key: str, region: str, block: int, overlaps: Overlaps) -> None:
        """Replace the overlaps of a block in a region."""
        columns = tuple(_signed(c) for c in (overlaps.fragment, overlaps.truth, overlaps.size_vox))
        documents = _documents(key, block, OVERLAP_FIELDS, columns, {})
        self._replace(overlaps_collection(region), key, block, documents, checksum_of_overlaps(overlaps))

    def read_nodes(self, key: str, block: int) -> RagNodes:
        """The nodes of a block. BadData if they are lost or damaged."""
        return self._read(self._header(NODES_COLLECTION, key, block), _nodes, checksum_of_nodes)

    def read_edges(self, key: str, merge_function: str, block: int) -> RagEdges:
        """The edges of a block. BadData if they are lost or damaged."""
        header = self._header(edges_collection(merge_function), key, block)
        return self._read(header, _rows_reader(merge_function), checksum_of_edges)

    def read_overlaps(self, key: str, region: str, block: int) -> Overlaps:
        """The overlaps of a block. BadData if they are lost or damaged."""
        return self._read(self._header(overlaps_collection(region), key, block), _overlaps, checksum_of_overlaps)

    def iter_nodes(self, key: str, blocks: Iterable[int] | None = None) -> Iterator[RagNodes]:
        """Nodes, block by block in ascending block number; BadData if one of `blocks` has none written."""
        for header in self._wanted_headers(NODES_COLLECTION, key, blocks):
            yield self._read(header, _nodes, checksum_of_nodes)

    def iter_edges(self, key: str, merge_function: str, blocks: Iterable[int] | None = None) -> Iterator[RagEdges]:
        """Edges of a merge function, block by block as in iter_nodes; null scores become NaN."""
        for header in self._wanted_headers(edges_collection(merge_function), key, blocks):
            yield self._read(header, _rows_reader(merge_function), checksum_of_edges)

    def count_nodes(self, key: str) -> int:
        """How many rows of nodes there are."""
        return sum(int(header["rows"]) for header in self._headers(NODES_COLLECTION, key))

    def count_edges(self, key: str, merge_function: str) -> int:
        """How many rows of edges of a merge function there are."""
        return sum(int(header["rows"]) for header in self._headers(edges_collection(merge_function), key))

    def drop(self, key: str) -> None:
        """Remove all rows of a pass, block by block, so that no request takes long."""
        collections = self.connection.call(lambda db: db[HEADERS].distinct("collection", {"key": key}))
        for collection in collections:
            for header in self._headers(collection, key):
                self._drop_block(header)
            self._drop_rest(collection, key)

    def _drop_rest(self, collection: str, key: str) -> None:
        """Remove rows without a header, which a killed writer left."""
        self.connection.call(lambda db: db[collection].delete_many({"key": key}))

    def _drop_block(self, header: Document) -> None:
        self.connection.call(lambda db: db[header["collection"]].delete_many(_rows_of(header["key"], header["block"])))
        self.connection.call(lambda db: db[HEADERS].delete_one({"_id": header["_id"]}))

    def _replace(self, collection: str, key: str, block: int, documents: list[Document], checksum: str) -> None:
        """Write the rows, remove surplus rows of an earlier attempt, then write the header."""
        self._prepare(collection)
        for begin in range(0, len(documents), BATCH):
            self._put(collection, documents[begin : begin + BATCH])
        beyond = {"_id": {"$gte": row_id(key, block, len(documents)), "$lt": row_id(key, block + 1, 0)}}
        self.connection.call(lambda db: db[collection].delete_many(beyond))
        identity = {"collection": collection, "key": key, "block": block}
        header = {"_id": _header_id(collection, key, block), **identity, "rows": len(documents), "checksum": checksum}
        self.connection.call(lambda db: db[HEADERS].replace_one({"_id": header["_id"]}, header, upsert=True))

    def _put(self, collection: str, documents: list[Document]) -> None:
        self.connection.call(lambda db: _put(db[collection], documents))

    def _prepare(self, collection: str) -> None:
        if collection not in self.connection.prepared:
            self.connection.call(lambda db: _prepare(db, collection))
            self.connection.prepared.add(collection)

    def _header(self, collection: str, key: str, block: int) -> Document:
        found = self.connection.call(lambda db: db[HEADERS].find_one({"_id": _header_id(collection, key, block)}))
        if found is None:
            raise self._missing(collection, block)
        return found

    def _missing(self, collection: str, block: int) -> BadData:
        where = f"{self.connection.address}.{collection} block {block}"
        fix = "recompute it: lsdflow repair EXPERIMENT"
        return BadData("rows of the graph that should exist do not", where=where, fix=fix)

    def _wanted_headers(self, collection: str, key: str, blocks: Iterable[int] | None) -> Iterator[Document]:
        """Headers of all these blocks, which must exist; None: of all existing blocks. Ascending."""
        wanted = None if blocks is None else iter(sorted(blocks))
        following = None if wanted is None else next(wanted, None)
        for header in self._headers(collection, key):
            if wanted is None:
                yield header
            elif following is None or header["block"] > following:
                break
            elif header["block"] == following:
                yield header
                following = next(wanted, None)
        if following is not None:
            raise self._missing(collection, following)

    def _headers(self, collection: str, key: str) -> Iterator[Document]:
        """Headers in ascending block number, read in pages, so that no cursor is open while the caller computes."""
        last, end = _header_id(collection, key, -1), _header_id(collection, key, 10**12)
        while page := self._page({"_id": {"$gt": last, "$lt": end}}):
            yield from page
            last = page[-1]["_id"]

    def _page(self, wanted: Document) -> list[Document]:
        return self.connection.call(lambda db: list(db[HEADERS].find(wanted).sort("_id").limit(BATCH)))

    def _read(
        self, header: Document, rows: Callable[[Sequence[Document]], Rows], checksum: Callable[[Rows], str]
    ) -> Rows:
        collection, key, block = header["collection"], header["key"], header["block"]
        find = _rows_of(key, block)
        documents = self.connection.call(lambda db: list(db[collection].find(find).sort("_id", ASCENDING)))
        where, fix = f"{self.connection.address}.{collection} block {block}", "recompute it: lsdflow repair EXPERIMENT"
        try:
            found = rows(documents)
        except (KeyError, TypeError, ValueError, OverflowError, BadData) as error:
            raise BadData("damaged rows of the graph", where=where, found=error, fix=fix) from error
        if len(documents) != header["rows"] or checksum(found) != header["checksum"]:
            numbers = {"wanted": f"{header['rows']} rows as written", "found": f"{len(documents)} rows"}
            raise BadData("lost or damaged rows of the graph", where=where, fix=fix, **numbers)
        return found


def row_id(key: str, block: int, row: int) -> Binary:
    """`_id` of a row: 16 bytes of the key's hash, 8 of the block, 4 of the row, in the order of reading."""
    return Binary(hashlib.sha256(key.encode()).digest()[:16] + block.to_bytes(8, "big") + row.to_bytes(4, "big"))


def _rows_of(key: str, block: int) -> Document:
    return {"_id": {"$gte": row_id(key, block, 0), "$lt": row_id(key, block + 1, 0)}}


def _header_id(collection: str, key: str, block: int) -> str:
    return f"{collection}/{key}/" + (f"{block:012d}" if block >= 0 else "")


def _documents(
    key: str, block: int, names: tuple[str, ...], columns: tuple[list[Any], ...], constant: Mapping[str, Any]
) -> list[Document]:
    return [
        {
            "_id": row_id(key, block, row),
            **dict(zip(names, values, strict=True)),
            **constant,
            "key": key,
            "block": block,
        }
        for row, values in enumerate(zip(*columns, strict=True))
    ]


def _put(collection: Collection[Document], documents: list[Document]) -> None:
    """Insert rows; those of an earlier attempt or of another worker are replaced."""
    try:
        collection.insert_many(documents, ordered=False)
    except BulkWriteError as error:
        if codes_of(error) != {DUPLICATE}:
            raise
        there = [documents[part["index"]] for part in error.details["writeErrors"]]
        collection.bulk_write([ReplaceOne({"_id": d["_id"]}, d, upsert=True) for d in there], ordered=False)


def _prepare(database: Database[Document], collection: str) -> None:
    """Create indexes before the first row. OutputConflict (73) for rows without a key, which are of old scripts."""
    first = database[collection].find_one({}, {"key": 1})
    if first is not None and "key" not in first:
        raise OutputConflict(
            "the collection holds rows of another program",
            where=f"{database.name}.{collection}",
            fix='choose another database ([store] database = "..."); old graphs are read by `segment import-graph`',
        )
    database[HEADERS].create_indexes([IndexModel([("key", ASCENDING)], name="key")])
    database[collection].create_indexes(list(_indexes(collection)))
    database["meta"].replace_one({"_id": "graph"}, {"directed": False}, upsert=True)


def _indexes(collection: str) -> tuple[IndexModel, ...]:
    if collection == NODES_COLLECTION:
        return _NODE_INDEXES
    return _OVERLAP_INDEXES if collection.startswith(overlaps_collection("")) else _EDGE_INDEXES


def _nodes(documents: Sequence[Document]) -> RagNodes:
    center = np.array([[d["center_z"], d["center_y"], d["center_x"]] for d in documents], np.float64).reshape(-1, 3)
    return RagNodes(_unsigned(documents, "id"), center, _unsigned(documents, "size"))


def _edges(documents: Sequence[Document]) -> RagEdges:
    score = np.array([np.nan if d["merge_score"] is None else d["merge_score"] for d in documents], np.float32)
    return RagEdges(_unsigned(documents, "u"), _unsigned(documents, "v"), score)


def _rows_reader(merge_function: str) -> Callable[[Sequence[Document]], RagEdges]:
    return _faces if merge_function == FACES else _edges


def _face_columns(faces: RagFaces) -> tuple[list[Any], ...]:
    """u, v, and the affinities and counts of each run of rows with the same pair."""
    differs = (faces.u[1:] != faces.u[:-1]) | (faces.v[1:] != faces.v[:-1])
    begins = np.concatenate([np.zeros(min(1, len(faces)), np.int64), np.flatnonzero(differs) + 1])
    ends = [*begins[1:].tolist(), len(faces)]
    count = faces.count.astype("<u8")
    runs = list(zip(begins.tolist(), ends, strict=True)) if len(faces) else []
    affinities = [Binary(faces.affinity[begin:end].tobytes()) for begin, end in runs]
    counts = [Binary(count[begin:end].tobytes()) for begin, end in runs]
    return _signed(faces.u[begins]), _signed(faces.v[begins]), affinities, counts


def _faces(documents: Sequence[Document]) -> RagFaces:
    affinity = np.frombuffer(b"".join(d["affinity"] for d in documents), np.uint8)
    count = np.frombuffer(b"".join(d["count"] for d in documents), "<u8").astype(np.uint64)
    length = [len(d["affinity"]) for d in documents]
    u, v = (np.repeat(_unsigned(documents, name), length) for name in ("u", "v"))
    return RagFaces.of(u, v, affinity, count)


def _overlaps(documents: Sequence[Document]) -> Overlaps:
    return Overlaps(*(_unsigned(documents, name) for name in OVERLAP_FIELDS))


def _signed(values: npt.NDArray[np.uint64]) -> list[int]:
    signed: list[int] = np.ascontiguousarray(values, np.uint64).view(np.int64).tolist()
    return signed


def _unsigned(documents: Sequence[Document], name: str) -> npt.NDArray[np.uint64]:
    return np.array([d[name] for d in documents], np.int64).view(np.uint64)
