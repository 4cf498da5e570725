"""The region adjacency graph on disk: the protocol of both engines, and the engine `files` (a Parquet file per block).

    store/nodes/<key>/<block>.parquet                    id, center_z, center_y, center_x, size
    store/edges_<merge_function>/<key>/<block>.parquet   u, v, merge_score (null = never merged)
    store/edges_faces/<key>/<block>.parquet              u, v, affinity, count: faces that are not scored yet
    store/edges_left_<merge_function>/<key>/...          the same with origin_u, origin_v, left of a super-block
    store/edges_settled_<merge_function>_<part>/<key>/...  u, v, merge_score: final scores of a part of a super-block
    store/overlaps_<region>/<key>/<block>.parquet        fragment, truth, size: overlaps that evaluate counts

`key` is that of the pass that wrote the rows, so rows of other parameters are never mixed in. The rows of a block are
replaced as one file by rename, which can be repeated safely, also on NFS. Pages have checksums. The file's metadata
hold the hash of its rows, because a footer has no checksum, and a flipped bit there could change the rows.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from lsdflow_contract.errors import BadData
from lsdflow_contract.files import storage_errors, write_atomically
from lsdflow_contract.graph import (
    NODES_COLLECTION,
    Overlaps,
    RagEdges,
    RagFaces,
    RagNodes,
    RegionFaces,
    edges_collection,
    overlaps_collection,
)
from lsdflow_contract.hashing import hash_of, hash_of_array

ROWS_HASH = b"lsdflow.rows"
_REPAIR = "run repair of the stage that writes it"
Rows = TypeVar("Rows", RagNodes, RagEdges, Overlaps)


class RagStore(Protocol):
    """Nodes and edges of the RAG and overlaps with the truth, written block by block."""

    def write_nodes(self, key: str, block: int, nodes: RagNodes) -> None:
        """Replace the nodes of a block."""

    def write_edges(self, key: str, merge_function: str, block: int, edges: RagEdges) -> None:
        """Replace the edges of a block for a merge function."""

    def write_overlaps(self, key: str, region: str, block: int, overlaps: Overlaps) -> None:
        """Replace the overlaps of a block in a region."""

    def read_nodes(self, key: str, block: int) -> RagNodes:
        """The nodes of a block. BadData if they are lost or damaged."""

    def read_edges(self, key: str, merge_function: str, block: int) -> RagEdges:
        """The edges of a block. BadData if they are lost or damaged."""

    def read_overlaps(self, key: str, region: str, block: int) -> Overlaps:
        """The overlaps of a block. BadData if they are lost or damaged."""

    def iter_nodes(self, key: str, blocks: Iterable[int] | None = None) -> Iterator[RagNodes]:
        """Nodes, block by block in ascending block number; BadData if one of `blocks` has none written."""

    def iter_edges(self, key: str, merge_function: str, blocks: Iterable[int] | None = None) -> Iterator[RagEdges]:
        """Edges of a merge function, block by block in ascending block number; `blocks` as in iter_nodes."""

    def count_nodes(self, key: str) -> int:
        """How many rows of nodes there are."""

    def count_edges(self, key: str, merge_function: str) -> int:
        """How many rows of edges of a merge function there are."""

    def drop(self, key: str) -> None:
        """Remove all rows of a pass."""


@dataclass(frozen=True)
class FilesRagStore:
    """The embedded engine: Parquet files under `root`."""

    root: Path

    def write_nodes(self, key: str, block: int, nodes: RagNodes) -> None:
        """Replace the nodes of a block."""
        center = nodes.center_nm
        columns = {"id": nodes.id, "center_z": center[:, 0], "center_y": center[:, 1], "center_x": center[:, 2]}
        table = pa.table({**columns, "size": nodes.size_vox})
        _write(self._folder(NODES_COLLECTION, key) / f"{block}.parquet", table, checksum_of_nodes(nodes))

    def write_edges(self, key: str, merge_function: str, block: int, edges: RagEdges) -> None:
        """Replace the edges of a block for a merge function; NaN scores become null."""
        values: dict[str, Any] = {"merge_score": pa.array(edges.merge_score, from_pandas=True)}
        if isinstance(edges, RagFaces):
            values = {"affinity": edges.affinity, "count": edges.count}
        if isinstance(edges, RegionFaces):
            values |= {"origin_u": edges.origin_u, "origin_v": edges.origin_v}
        table = pa.table({"u": edges.u, "v": edges.v, **values})
        path = self._folder(edges_collection(merge_function), key) / f"{block}.parquet"
        _write(path, table, checksum_of_edges(edges))

    def write_overlaps(self, key: str, region: str, block: int, overlaps: Overlaps) -> None:
        """Replace the overlaps of a block in a region."""
        table = pa.table({"fragment": overlaps.fragment, "truth": overlaps.truth, "size": overlaps.size_vox})
        path = self._folder(overlaps_collection(region), key) / f"{block}.parquet"
        _write(path, table, checksum_of_overlaps(overlaps))

    def read_nodes(self, key: str, block: int) -> RagNodes:
        """The nodes of a block. BadData if they are lost or damaged."""
        return _read_nodes(self._folder(NODES_COLLECTION, key) / f"{block}.parquet")

    def read_edges(self, key: str, merge_function: str, block: int) -> RagEdges:
        """The edges of a block. BadData if they are lost or damaged."""
        return _read_edges(self._folder(edges_collection(merge_function), key) / f"{block}.parquet")

    def read_overlaps(self, key: str, region: str, block: int) -> Overlaps:
        """The overlaps of a block. BadData if they are lost or damaged."""
        return _read_overlaps(self._folder(overlaps_collection(region), key) / f"{block}.parquet")

    def iter_nodes(self, key: str, blocks: Iterable[int] | None = None) -> Iterator[RagNodes]:
        """Nodes, block by block in ascending block number."""
        return (_read_nodes(path) for path in _files(self._folder(NODES_COLLECTION, key), blocks))

    def iter_edges(self, key: str, merge_function: str, blocks: Iterable[int] | None = None) -> Iterator[RagEdges]:
        """Edges of a merge function, block by block in ascending block number; null scores become NaN."""
        return (_read_edges(path) for path in _files(self._folder(edges_collection(merge_function), key), blocks))

    def count_nodes(self, key: str) -> int:
        """How many rows of nodes there are."""
        return _count(self._folder(NODES_COLLECTION, key))

    def count_edges(self, key: str, merge_function: str) -> int:
        """How many rows of edges of a merge function there are."""
        return _count(self._folder(edges_collection(merge_function), key))

    def drop(self, key: str) -> None:
        """Remove all rows of a pass."""
        for collection in (NODES_COLLECTION, edges_collection("*"), overlaps_collection("*")):
            for folder in self.root.glob(f"{collection}/{key}"):
                with storage_errors(folder):
                    shutil.rmtree(folder)

    def _folder(self, collection: str, key: str) -> Path:
        return self.root / collection / key


def checksum_of_nodes(nodes: RagNodes) -> str:
    """Hash of the rows of nodes, in their order."""
    return _checksum(nodes.id, nodes.center_nm, nodes.size_vox)


def checksum_of_edges(edges: RagEdges) -> str:
    """Hash of the rows of edges or faces, in their order; all NaN are equal."""
    if isinstance(edges, RegionFaces):
        return _checksum(edges.u, edges.v, edges.affinity, edges.count, edges.origin_u, edges.origin_v)
    if isinstance(edges, RagFaces):
        return _checksum(edges.u, edges.v, edges.affinity, edges.count)
    score = np.where(np.isnan(edges.merge_score), np.float32(np.nan), edges.merge_score)
    return _checksum(edges.u, edges.v, score)


def checksum_of_overlaps(overlaps: Overlaps) -> str:
    """Hash of the rows of overlaps, in their order."""
    return _checksum(overlaps.fragment, overlaps.truth, overlaps.size_vox)


def _checksum(*columns: npt.NDArray[Any]) -> str:
    return hash_of([hash_of_array(np.asarray(c)) for c in columns])


def _write(path: Path, table: pa.Table, checksum: str) -> None:
    marked = table.replace_schema_metadata({ROWS_HASH: checksum})
    write_atomically(path, lambda file: pq.write_table(marked, file, compression="zstd", write_page_checksum=True))


def _files(folder: Path, blocks: Iterable[int] | None = None) -> Iterable[Path]:
    """Files of these blocks, even if missing; None: all existing files. Ascending."""
    if blocks is not None:
        return (folder / f"{number}.parquet" for number in sorted(blocks))
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.glob("*.parquet") if p.stem.isdigit()), key=lambda p: int(p.stem))


def _count(folder: Path) -> int:
    return sum(map(_count_rows, _files(folder)))


def _count_rows(path: Path) -> int:
    try:
        return int(pq.read_metadata(path).num_rows)
    except (pa.ArrowException, OSError) as error:
        raise BadData("damaged graph file", where=path, found=error, fix=_REPAIR) from error


def _read_nodes(path: Path) -> RagNodes:
    def rows(table: pa.Table) -> tuple[RagNodes, str]:
        """The nodes of a table, and their checksum."""
        center = np.stack([table[f"center_{axis}"].to_numpy() for axis in "zyx"], axis=1)
        nodes = RagNodes(table["id"].to_numpy(), center, table["size"].to_numpy())
        return nodes, checksum_of_nodes(nodes)

    return _read(path, rows)


def _read_edges(path: Path) -> RagEdges:
    def rows(table: pa.Table) -> tuple[RagEdges, str]:
        """The edges or faces of a table, and their checksum."""
        u, v = table["u"].to_numpy(), table["v"].to_numpy()
        if "affinity" in table.column_names:
            faces = RagFaces.of(u, v, table["affinity"].to_numpy(), table["count"].to_numpy())
            if "origin_u" in table.column_names:
                faces = RegionFaces(
                    **vars(faces), **{name: table[name].to_numpy() for name in ("origin_u", "origin_v")}
                )
            return faces, checksum_of_edges(faces)
        edges = RagEdges(u, v, table["merge_score"].to_numpy().astype(np.float32))
        return edges, checksum_of_edges(edges)

    return _read(path, rows)


def _read_overlaps(path: Path) -> Overlaps:
    def rows(table: pa.Table) -> tuple[Overlaps, str]:
        """The overlaps of a table, and their checksum."""
        overlaps = Overlaps(*(table[name].to_numpy() for name in ("fragment", "truth", "size")))
        return overlaps, checksum_of_overlaps(overlaps)

    return _read(path, rows)


def _read(path: Path, rows: Callable[[pa.Table], tuple[Rows, str]]) -> Rows:
    """The rows of a file, checked against their stored hash. BadData if missing or damaged."""
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        found, checksum = rows(table)
        wanted = (table.schema.metadata or {})[ROWS_HASH].decode()
    except FileNotFoundError as error:
        missing = f"the rows of block {path.stem}"
        raise BadData("a graph file that should exist does not", where=path, wanted=missing, fix=_REPAIR) from error
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError, BadData) as error:
        raise BadData("damaged graph file", where=path, found=error, fix=_REPAIR) from error
    if checksum != wanted:
        raise BadData("damaged graph file", where=path, wanted=wanted[:12], found=checksum[:12], fix=_REPAIR)
    return found
