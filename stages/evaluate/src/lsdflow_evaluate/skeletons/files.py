"""Reading traced skeletons: one CSV with parents, a pair of CSVs (nodes, edges), or SWC files.

    skeletons.csv              neuron,node,z,y,x,parent      nm; parent empty or -1 for a root
    nodes.csv + edges.csv      neuron,node,z,y,x  and  source,target     (two files in one folder)
    *.swc                      node type x y z radius parent             (nm, x first; each file is a neuron)

An SWC file named by a number is that neuron; others are numbered by their order of name from 1. The same is read from
a MongoDB of the LSD scripts: collections <name>.nodes and <name>.edges. Where nodes do not name their neuron,
each connected skeleton is one, numbered from 1 in the order of its first node.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from lsdflow_contract.errors import BadData, MissingInput
from lsdflow_evaluate.scores.run_length import Skeletons
from lsdflow_runtime.store.mongo_import import read_mongo_skeletons

Node = tuple[int, int, float, float, float]


def read_skeletons(path: Path) -> Skeletons:
    """Read skeletons from a CSV, an SWC, or a folder of them. MissingInput if absent, BadData naming file and line."""
    try:
        return _read(path)
    except UnicodeDecodeError as error:
        raise BadData("not a text file of skeletons", where=path, found=error) from error


def read_skeletons_of_mongo(source: Path, name: str, retry_s: float) -> Skeletons:
    """Read skeletons from a database or a dump of it; raises as `read_mongo_skeletons`, BadData if they do not fit."""
    found = read_mongo_skeletons(source, name, retry_s)
    order = np.argsort(found.id, kind="stable")
    ids = found.id[order]
    if len(np.unique(ids)) != len(ids):
        raise BadData("a node id occurs twice", where=source, fix="node ids must be unique")
    place = np.minimum(np.searchsorted(ids, found.edges), max(len(ids) - 1, 0))
    unknown = found.edges[ids[place] != found.edges] if len(ids) else found.edges
    if len(unknown):
        raise BadData("an edge names a node that is not there", where=source, found=int(unknown.flat[0]))
    edges = order[place].astype(np.int64).reshape(-1, 2)
    neurons = connected_neurons(len(ids), edges) if found.neuron is None else found.neuron
    if len(neurons) and neurons.min() <= 0:
        raise BadData("a neuron needs an id above 0", where=source, found=int(neurons.min()))
    return Skeletons(found.position_nm, neurons.astype(np.uint64), edges)


def connected_neurons(nodes: int, edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each connected skeleton is a neuron of its own: numbers from 1, in the order of first nodes."""
    graph = coo_array((np.ones(len(edges), np.int8), (edges[:, 0], edges[:, 1])), shape=(nodes, nodes))
    _, component = connected_components(graph, directed=False)
    _, first, place = np.unique(component, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[place].astype(np.int64) + 1


def _read(path: Path) -> Skeletons:
    if path.is_file() and path.suffix.lower() == ".csv":
        return _from_csv(path, None)
    if path.is_file() and path.suffix.lower() == ".swc":
        return _from_swc([path])
    if (path / "nodes.csv").is_file() and (path / "edges.csv").is_file():
        return _from_csv(path / "nodes.csv", path / "edges.csv")
    files = sorted(path.glob("*.swc")) if path.is_dir() else []
    if files:
        return _from_swc(files)
    raise MissingInput(
        "no skeletons found", where=path, wanted="a .csv, an .swc, or a folder with nodes.csv + edges.csv or *.swc"
    )


def _from_csv(nodes_path: Path, edges_path: Path | None) -> Skeletons:
    columns = ("neuron", "node", "z", "y", "x") + (("parent",) if edges_path is None else ())
    nodes: list[Node] = []
    pairs: list[tuple[int, int]] = []
    for line, row in _rows(nodes_path, columns):
        neuron, node, z, y, x = (row[name] for name in columns[:5])
        nodes.append(_node(nodes_path, line, (neuron, node, z, y, x)))
        if edges_path is None and row["parent"] not in ("", "-1"):
            pairs.append((_whole(nodes_path, line, row["parent"]), nodes[-1][1]))
    for line, row in _rows(edges_path, ("source", "target")) if edges_path else ():
        source = edges_path or nodes_path
        pairs.append((_whole(source, line, row["source"]), _whole(source, line, row["target"])))
    return _joined(nodes, pairs, edges_path or nodes_path)


def _from_swc(files: Sequence[Path]) -> Skeletons:
    """All files together; node numbers are made unique by the number of the file."""
    nodes: list[Node] = []
    pairs: list[tuple[int, int]] = []
    for order, path in enumerate(files, start=1):
        neuron = int(path.stem) if path.stem.isdigit() and int(path.stem) > 0 else order
        shift = order << 40
        for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            fields = text.split("#", maxsplit=1)[0].split()
            if not fields:
                continue
            if len(fields) != 7:
                raise BadData("not an SWC line", where=f"{path} line {line}", wanted="7 fields", found=text)
            node = _node(path, line, (str(neuron), fields[0], fields[4], fields[3], fields[2]))
            nodes.append((node[0], node[1] + shift, *node[2:]))
            parent = _whole(path, line, fields[6])
            if parent >= 0:
                pairs.append((parent + shift, node[1] + shift))
    return _joined(nodes, pairs, files[0])


def _rows(path: Path, columns: Sequence[str]) -> Iterable[tuple[int, dict[str, str]]]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        missing = [name for name in columns if name not in (reader.fieldnames or ())]
        if missing:
            raise BadData("columns are missing", where=path, wanted=", ".join(columns), found=str(reader.fieldnames))
        for row in reader:
            yield reader.line_num, {name: (row[name] or "").strip() for name in columns}


def _node(path: Path, line: int, fields: tuple[str, str, str, str, str]) -> Node:
    try:
        position = [float(value) for value in fields[2:]]
    except ValueError as error:
        raise BadData("a position is no number", where=f"{path} line {line}", found=str(fields[2:])) from error
    if not np.isfinite(position).all():
        raise BadData("a position is not finite", where=f"{path} line {line}", found=str(fields[2:]))
    neuron = _whole(path, line, fields[0])
    if neuron <= 0:
        raise BadData("a neuron needs an id above 0", where=f"{path} line {line}", found=str(neuron))
    return neuron, _whole(path, line, fields[1]), position[0], position[1], position[2]


def _whole(path: Path, line: int, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise BadData("an id is no whole number", where=f"{path} line {line}", found=repr(text)) from error


def _joined(nodes: list[Node], pairs: list[tuple[int, int]], where: Path) -> Skeletons:
    place = {node[1]: number for number, node in enumerate(nodes)}
    if len(place) != len(nodes):
        raise BadData("a node id occurs twice", where=where, fix="node ids must be unique in the file")
    unknown = [end for pair in pairs for end in pair if end not in place]
    if unknown:
        raise BadData("an edge names a node that is not there", where=where, found=unknown[0])
    edges = np.array([(place[a], place[b]) for a, b in pairs], np.int64).reshape(-1, 2)
    positions = np.array([node[2:] for node in nodes], np.float64).reshape(-1, 3)
    return Skeletons(positions, np.array([node[0] for node in nodes], np.uint64), edges)
