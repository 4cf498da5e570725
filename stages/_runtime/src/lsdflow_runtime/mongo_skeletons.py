"""Skeletons that the LSD scripts keep in MongoDB: two collections of a database, or of a dump of it.

    <name>.nodes   id, z, y, x (world units, nm), and neuron_id if the program that wrote them knew it
    <name>.edges   source, target (ids of nodes)

Read only, in batches that become columns at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_runtime.mongo_connection import Document
from lsdflow_runtime.mongo_foreign import NUMBER, WHOLE, ForeignRows, collections_in, column_of

NEURON = "neuron_id"


@dataclass(frozen=True, eq=False)
class SkeletonColumns:
    """Nodes: `id` int64 (n,), `position_nm` float64 (n, 3) z, y, x, `neuron` int64 (n,) or none; edges int64 (m, 2)."""

    id: npt.NDArray[np.int64]
    position_nm: npt.NDArray[np.float64]
    neuron: npt.NDArray[np.int64] | None
    edges: npt.NDArray[np.int64]


def read_mongo_skeletons(source: Path, name: str, retry_s: float) -> SkeletonColumns:
    """The skeletons `name` in a database (a file with its URI, mode 0600) or in the folder of a dump.

    Raises MissingInput (66) if the collections are not there, BadData (65) for fields that are not or of another type.
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
