"""Graphs and skeletons of other programs in the format of the field: MongoDB databases of the LSD scripts, and dumps.

    nodes                    id, center_z, center_y, center_x (world units)        and size from some programs
    edges_<merge_function>   u, v, merge_score (null = never merged)
    blocks_*, *_completed    a document for each finished block
    <skeletons>.nodes        id, z, y, x (world units, nm), and neuron_id from some programs
    <skeletons>.edges        source, target (ids of nodes)

Ids are uint64 reinterpreted as int64. Collections are only read, in batches that are converted to columns at once, so
that the documents of all rows are never in memory together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from bson.int64 import Int64
from pymongo import ASCENDING

from lsdflow_contract.errors import BadData, MissingInput, PermissionDenied, UsageError
from lsdflow_contract.graph import NODES_COLLECTION, edges_collection
from lsdflow_runtime.store.mongo_connection import Document, MongoConnection, address_in
from lsdflow_runtime.store.mongo_dump import BsonFile

# A page of edges has about 5 MB.
PAGE = 50_000
OWN_COLLECTION = "lsdflow"
EDGES = re.compile(edges_collection("([A-Za-z0-9_]+)"))
BLOCKS = re.compile(r"blocks_.+|.+_completed")
DUMPED = re.compile(r"(.+)\.bson(\.gz)?")
WHOLE: frozenset[type] = frozenset({int, Int64})
NUMBER = WHOLE | {float}
SCORE = NUMBER | {type(None)}
NEURON = "neuron_id"


class ForeignRows(Protocol):
    """A collection, in a database or in a dump. `total`: approximate amount to read, in `unit`s."""

    @property
    def where(self) -> str:
        """Where it is, for messages."""

    @property
    def unit(self) -> str:
        """The unit of `total`."""

    @property
    def total(self) -> int:
        """The approximate amount to read."""

    def batches(self) -> Iterator[tuple[list[Document], int]]:
        """Batches of documents, each with its share of `total`."""

    def provenance(self) -> dict[str, Any]:
        """Facts of the source, complete after reading."""


@dataclass(frozen=True)
class ForeignGraph:
    """Nodes, edges by merge function, and the marks of finished blocks by collection."""

    nodes: ForeignRows
    edges: Mapping[str, ForeignRows]
    blocks: Mapping[str, ForeignRows]


@dataclass
class OldCollection:
    """A collection of a database, read in pages, so that no cursor stays open and a server restart can be retried."""

    connection: MongoConnection
    name: str
    unit: str = "document"
    documents: int = 0

    @property
    def where(self) -> str:
        """Server, database and collection, for messages."""
        return f"{self.connection.address}.{self.name}"

    @property
    def total(self) -> int:
        """Approximate number of documents."""
        return self.connection.call(lambda db: db[self.name].estimated_document_count())

    def batches(self) -> Iterator[tuple[list[Document], int]]:
        """Documents in the order of `_id`, each once."""
        self.documents = 0
        page = self._page(None)
        while page:
            self.documents += len(page)
            yield page, len(page)
            page = self._page(page[-1]["_id"])

    def provenance(self) -> dict[str, Any]:
        """Facts of the source: server, database, collection, documents."""
        return {"from": self.where, "documents": self.documents}

    def _page(self, after: Any) -> list[Document]:
        """The documents after an `_id` of any type (a query with $gt would find those of one type only)."""

        def read(db: Any) -> list[Document]:
            """Read one page in the order of `_id`; `min` includes the document `after` itself."""
            found = db[self.name].find().hint([("_id", ASCENDING)]).sort("_id", ASCENDING)
            return list((found if after is None else found.min([("_id", after)])).limit(PAGE + (after is not None)))

        return self.connection.call(read)[after is not None :]


@dataclass(frozen=True)
class NodeColumns:
    """id u64 (n,), centre f64 (n, 3) z, y, x in world units, voxels u64 (n,) if the documents have them."""

    id: npt.NDArray[np.uint64]
    center_nm: npt.NDArray[np.float64]
    size_vox: npt.NDArray[np.uint64] | None


@dataclass(frozen=True)
class EdgeColumns:
    """u, v u64 (n,) in any order, score f64 (n,) as stored, and bool (n,), True where it is null."""

    u: npt.NDArray[np.uint64]
    v: npt.NDArray[np.uint64]
    merge_score: npt.NDArray[np.float64]
    never: npt.NDArray[np.bool_]


def open_foreign(sources: Sequence[Path], database: str | None, retry_s: float) -> ForeignGraph:
    """The graph in `sources`: BSON files, folders of BSON files, or one secret file with the URI of a server.

    Raises MissingInput (66) if nodes or edges are missing, UsageError (2) if a collection occurs twice.
    """
    found: dict[str, ForeignRows] = {}
    for source in sources:
        for name, rows in collections_in(source, database, retry_s):
            if name in found:
                raise UsageError(f"{name} is given twice", where=rows.where, found=found[name].where)
            found[name] = rows
    edges = {match[1]: rows for name, rows in sorted(found.items()) if (match := EDGES.fullmatch(name))}
    if NODES_COLLECTION not in found or not edges:
        raise MissingInput(
            "no graph there: it takes nodes and the edges of a merge function",
            where=", ".join(str(source) for source in sources),
            wanted="nodes and edges_<merge_function>, of a database or as .bson or .bson.gz",
            found=", ".join(sorted(found)) or "none of them",
            fix="a dump: its folder dump/<database>, or --from for every file; a database: check --database",
        )
    blocks = {name: rows for name, rows in sorted(found.items()) if BLOCKS.fullmatch(name)}
    return ForeignGraph(found[NODES_COLLECTION], edges, blocks)


def node_columns(documents: list[Document], where: str) -> NodeColumns:
    """The columns of nodes. BadData (65) for a field that is missing or of another type."""
    center = [column_of(documents, f"center_{axis}", NUMBER, where) for axis in "zyx"]
    ids = _unsigned(column_of(documents, "id", WHOLE, where))
    size = _unsigned(column_of(documents, "size", WHOLE, where)) if "size" in documents[0] else None
    return NodeColumns(ids, np.array(center, np.float64).T.reshape(-1, 3), size)


def edge_columns(documents: list[Document], where: str) -> EdgeColumns:
    """The columns of edges. BadData (65) for a field that is missing or of another type."""
    u, v = (_unsigned(column_of(documents, name, WHOLE, where)) for name in ("u", "v"))
    scores = column_of(documents, "merge_score", SCORE, where)
    never = np.array([score is None for score in scores], np.bool_)
    return EdgeColumns(u, v, np.array(scores, np.float64), never)


def works_in(documents: list[Document]) -> set[object]:
    """Keys of the passes that wrote these rows; one key, or none, in a graph of other programs."""
    return {document.get("key") for document in documents}


def column_of(documents: list[Document], name: str, types: frozenset[type], where: str) -> list[Any]:
    """The values of a field. BadData (65) if it is missing or of another type."""
    try:
        values = [document[name] for document in documents]
    except KeyError:
        without = next(document for document in documents if name not in document)
        raise BadData(f"a document without {name}", where=where, found=f"fields {', '.join(without)}") from None
    if not set(map(type, values)) <= types:
        wrong = next(value for value in values if type(value) not in types)
        wanted = " or ".join(sorted({"null" if t is type(None) else t.__name__.lower() for t in types}))
        raise BadData(
            f"{name} is of another type", where=where, wanted=wanted, found=f"{type(wrong).__name__}: {str(wrong)[:40]}"
        )
    return values


def _unsigned(values: list[int]) -> npt.NDArray[np.uint64]:
    return np.array(values, np.int64).view(np.uint64)


def collections_in(source: Path, database: str | None, retry_s: float) -> list[tuple[str, ForeignRows]]:
    """The collections of a database (a file with its URI), of a folder of a dump, or of one BSON file."""
    if source.is_dir():
        named = [(DUMPED.fullmatch(path.name), path) for path in sorted(source.iterdir())]
        return [(match[1], BsonFile(path)) for match, path in named if match]
    if _begins_with_uri(source):
        connection = MongoConnection(address_in(source, database), retry_s)
        names = connection.call(lambda db: db.list_collection_names())
        if OWN_COLLECTION in names:
            raise UsageError(
                "the database of an experiment of lsdflow",
                where=connection.address,
                fix="segment run reads its own; to move a graph: mongodump, then --from the folder of the dump",
            )
        return [(name, OldCollection(connection, name)) for name in names]
    match = DUMPED.fullmatch(source.name)
    if match is None:
        raise UsageError(
            "neither a BSON file nor a file with a MongoDB URI",
            where=source,
            wanted="nodes.bson, edges_<merge_function>.bson (.gz); or one line mongodb://...",
            fix="the name of a BSON file is that of its collection: rename it or make a link",
        )
    return [(match[1], BsonFile(source))]


def _begins_with_uri(source: Path) -> bool:
    try:
        with source.open("rb") as file:
            return file.read(64).lstrip().startswith((b"mongodb://", b"mongodb+srv://"))
    except FileNotFoundError as error:
        raise MissingInput("no such file or folder", where=source) from error
    except PermissionError as error:
        raise PermissionDenied("may not read", where=source) from error


@dataclass(frozen=True, eq=False)
class SkeletonColumns:
    """Nodes: `id` int64 (n,), `position_nm` float64 (n, 3) z, y, x, `neuron` int64 (n,) or none; edges int64 (m, 2)."""

    id: npt.NDArray[np.int64]
    position_nm: npt.NDArray[np.float64]
    neuron: npt.NDArray[np.int64] | None
    edges: npt.NDArray[np.int64]


def read_mongo_skeletons(source: Path, name: str, retry_s: float) -> SkeletonColumns:
    """The skeletons `name` in a database (a file with its URI, mode 0600) or in the folder of a dump.

    Raises MissingInput (66) if the collections are missing, BadData (65) for fields that are missing or of another
    type.
    """
    there = dict(collections_in(source, None, retry_s))
    missing = [f"{name}.{part}" for part in ("nodes", "edges") if f"{name}.{part}" not in there]
    if missing:
        found = ", ".join(sorted(there)) or "no collection"
        raise MissingInput("no such skeletons", where=source, wanted=", ".join(missing), found=found)
    nodes, edges = there[f"{name}.nodes"], there[f"{name}.edges"]
    ids, positions, neurons = [np.zeros(0, np.int64)], [np.zeros((0, 3))], [np.zeros(0, np.int64)]
    for documents in _batches(nodes):
        ids.append(np.array(column_of(documents, "id", WHOLE, nodes.where), np.int64))
        positions.append(np.array([column_of(documents, axis, NUMBER, nodes.where) for axis in "zyx"], np.float64).T)
        if any(NEURON in document for document in documents):
            neurons.append(np.array(column_of(documents, NEURON, WHOLE, nodes.where), np.int64))
    known = sum(map(len, neurons))
    if known not in (0, sum(map(len, ids))):
        raise BadData(f"some nodes have a {NEURON}, some have none", where=nodes.where)
    ends = [
        np.array([column_of(documents, end, WHOLE, edges.where) for end in ("source", "target")], np.int64).T
        for documents in _batches(edges)
    ]
    return SkeletonColumns(
        np.concatenate(ids),
        np.concatenate(positions),
        np.concatenate(neurons) if known else None,
        np.concatenate([np.zeros((0, 2), np.int64), *ends]),
    )


def _batches(rows: ForeignRows) -> Iterator[list[Document]]:
    return (documents for documents, _ in rows.batches() if documents)
