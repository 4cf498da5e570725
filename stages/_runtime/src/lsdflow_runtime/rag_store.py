"""The region adjacency graph on disk. One protocol, engines behind it; here: `files`, one Parquet file per block.

    store/nodes/<key>/<block>.parquet                    id, center_z, center_y, center_x, size
    store/edges_<merge_function>/<key>/<block>.parquet   u, v, merge_score (null = never merged)

`key` names the work that made the rows, so rows of other parameters are never mixed in. A block's rows are replaced as
one file by rename: safe to write again, safe on NFS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lsdflow_contract.errors import BadData
from lsdflow_contract.files import write_atomically
from lsdflow_contract.graph import NODES_COLLECTION, RagEdges, RagNodes, edges_collection


class RagStore(Protocol):
    """Nodes and edges of the RAG, written block by block."""

    def write_nodes(self, key: str, block: int, nodes: RagNodes) -> None:
        """Replace the nodes of a block."""

    def write_edges(self, key: str, merge_function: str, block: int, edges: RagEdges) -> None:
        """Replace the edges of a block for a merge function."""

    def iter_nodes(self, key: str) -> Iterator[RagNodes]:
        """Nodes, block by block in ascending block number."""

    def iter_edges(self, key: str, merge_function: str) -> Iterator[RagEdges]:
        """Edges of a merge function, block by block in ascending block number."""


@dataclass(frozen=True)
class FilesRagStore:
    """The embedded engine: Parquet files under `root`."""

    root: Path

    def write_nodes(self, key: str, block: int, nodes: RagNodes) -> None:
        """Replace the nodes of a block."""
        center = nodes.center_nm
        columns = {"id": nodes.id, "center_z": center[:, 0], "center_y": center[:, 1], "center_x": center[:, 2]}
        _write(self._folder(NODES_COLLECTION, key), block, pa.table({**columns, "size": nodes.size_vox}))

    def write_edges(self, key: str, merge_function: str, block: int, edges: RagEdges) -> None:
        """Replace the edges of a block for a merge function; NaN scores become null."""
        score = pa.array(edges.merge_score, from_pandas=True)
        table = pa.table({"u": edges.u, "v": edges.v, "merge_score": score})
        _write(self._folder(edges_collection(merge_function), key), block, table)

    def iter_nodes(self, key: str) -> Iterator[RagNodes]:
        """Nodes, block by block in ascending block number."""
        for table in _tables(self._folder(NODES_COLLECTION, key)):
            center = np.stack([table[f"center_{axis}"].to_numpy() for axis in "zyx"], axis=1)
            yield RagNodes(table["id"].to_numpy(), center, table["size"].to_numpy())

    def iter_edges(self, key: str, merge_function: str) -> Iterator[RagEdges]:
        """Edges of a merge function, block by block in ascending block number; null scores become NaN."""
        for table in _tables(self._folder(edges_collection(merge_function), key)):
            score = table["merge_score"].to_numpy().astype(np.float32)
            yield RagEdges(table["u"].to_numpy(), table["v"].to_numpy(), score)

    def _folder(self, collection: str, key: str) -> Path:
        return self.root / collection / key


def _write(folder: Path, block: int, table: pa.Table) -> None:
    path = folder / f"{block}.parquet"
    write_atomically(path, lambda file: pq.write_table(table, file, compression="zstd", write_page_checksum=True))


def _tables(folder: Path) -> Iterator[pa.Table]:
    if not folder.is_dir():
        return
    for path in sorted((p for p in folder.glob("*.parquet") if p.stem.isdigit()), key=lambda p: int(p.stem)):
        try:
            yield pq.read_table(path, page_checksum_verification=True)
        except (pa.ArrowInvalid, OSError) as error:
            raise BadData(
                "damaged graph file", where=path, found=error, hint="run the stage that writes it again"
            ) from error
